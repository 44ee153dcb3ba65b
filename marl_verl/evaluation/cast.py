"""Who acts with which weights in an evaluation: every agent as in training, unless exchanged or put back.

First the exchanges, then the untrained: with `--swap a=b --untrained a` agent a has the model that b's policy began as.
Only the policy moves; instructions, role reward and sampling of an agent stay with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from marl_verl.errors import MarlError, nearest
from marl_verl.team import TeamConfig

Weights = Literal["trained", "untrained", "frozen", "outside"]
Swap = tuple[str, str]


@dataclass(frozen=True)
class Part:
    """The policy that an agent acts with.

    Attributes:
        source: the policy of the run that it comes of.
        weights: of the checkpoint, from before training, never trained, or those of a server outside.
        policy: its name in the evaluation, where a policy may act trained for one agent and untrained for another.
    """

    source: str
    weights: Weights
    policy: str

    def describe(self, step: int) -> str:
        """The weights in words."""
        told = {"trained": f"step {step}", "untrained": "before training", "outside": "outside"}
        return told.get(self.weights, self.weights)


def parse_swap(given: str) -> Swap:
    """Two names from "a=b". MarlError if it is something else."""
    first, equals, second = given.partition("=")
    if not equals or not first or not second:
        raise MarlError(f"--swap '{given}' must name two agents, e.g. --swap solver=verifier")
    return first, second


def cast(team: TeamConfig, step: int, swaps: Sequence[Swap] = (), untrained: Sequence[str] = ()) -> dict[str, Part]:
    """Agent -> the policy that it acts with.

    Args:
        step: of the checkpoint; 0 for the team before training.
        swaps: pairs of agents that exchange policies.
        untrained: agents that act with the model from before training.

    Raises:
        MarlError: an unknown agent (nearest offered), or a request that changes nothing.
    """
    policies = {agent.name: agent.policy for agent in team.agents.values()}
    seen: set[str] = set()
    for first, second in swaps:
        for name in (first, second):
            _check_agent("--swap", name, policies)
        if first == second or policies[first] == policies[second]:
            shared = f"agents '{first}' and '{second}' share policy '{policies[first]}'"
            said = f"agent '{first}' is on both sides" if first == second else shared
            raise MarlError(f"--swap {first}={second} changes nothing: {said}")
        if both := seen & {first, second}:
            raise MarlError(f"agent '{min(both)}' is in two swaps: an agent exchanges its policy once")
        seen |= {first, second}
        policies[first], policies[second] = policies[second], policies[first]
    for name in untrained:
        _check_agent("--untrained", name, policies)
        policy = team.policies[policies[name]]
        if policy.frozen:
            raise MarlError(f"--untrained {name} changes nothing: its policy '{policy.name}' was never trained")
        if step == 0:
            raise MarlError(f"--untrained {name} changes nothing: at --step 0 no policy is trained yet")
    return {name: _part(team, policy, step, name in untrained) for name, policy in policies.items()}


def _part(team: TeamConfig, source: str, step: int, untrained: bool) -> Part:
    policy = team.policies[source]
    if policy.frozen:
        return Part(source, "frozen" if policy.endpoint is None else "outside", source)
    if step == 0:
        return Part(source, "untrained", source)
    if not untrained:
        return Part(source, "trained", source)
    name = f"{source}-untrained"
    while name in team.policies:
        name += "-1"
    return Part(source, "untrained", name)


def _check_agent(option: str, name: str, agents: Mapping[str, str]) -> None:
    if name not in agents:
        raise MarlError(f"{option} names the unknown agent '{name}': {nearest(name, agents)}")


def acting(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Every policy that somebody acts with, by its name in the evaluation, in the order of the agents."""
    return {part.policy: part for part in parts.values()}
