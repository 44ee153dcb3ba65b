"""Who acts with which weights in an evaluation, and the file evaluation.json that tells it to the process that plays.

Exchanges come first, then the untrained: with `--swap a=b --untrained a` agent a has the initial model of b's policy.
Only the policy moves; instructions, role reward and sampling of an agent stay with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from marl_verl.checkpoint.export import Source
from marl_verl.errors import MarlError, nearest
from marl_verl.process.run_dir import REQUEST
from marl_verl.team import TeamConfig

RESULT, MODELS = "result.json", "models"
Weights = Literal["trained", "untrained", "frozen", "outside"]
Swap = tuple[str, str]


@dataclass(frozen=True)
class Part:
    """The policy that an agent acts with: the `source` in the run, and the name of the `policy` in the evaluation,
    where a policy may act trained for one agent and untrained for another."""

    source: str
    weights: Weights
    policy: str

    def describe(self, step: int) -> str:
        """The weights in words."""
        return {"trained": f"step {step}", "untrained": "before training"}.get(self.weights, self.weights)


@dataclass(frozen=True)
class Request:
    """What to play; the result is in result.json beside it.

    Attributes:
        step: of the checkpoint; it enters the seeds, as in the validation at that step.
        sessions: sampled of each task; 0 for the greedy pass alone.
        seed: of the intervals.
        parts: agent -> the policy that it acts with.
        exports: policy -> the source of a model to make below `models/` first.
    """

    step: int
    sessions: int
    ks: tuple[int, ...]
    seed: int
    parts: dict[str, Part]
    exports: dict[str, Source] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=1, default=str)  # a path becomes a string
        (folder / REQUEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Request:
        return msgspec.json.decode((folder / REQUEST).read_bytes(), type=cls, dec_hook=lambda kind, value: kind(value))


def parse_swap(given: str) -> Swap:
    """Two names from "a=b". MarlError if it is something else."""
    first, _, second = given.partition("=")
    if not first or not second:
        raise MarlError(f"--swap '{given}' must name two agents, e.g. --swap solver=verifier")
    return first, second


def cast(team: TeamConfig, step: int, swaps: Sequence[Swap] = (), untrained: Sequence[str] = ()) -> dict[str, Part]:
    """Agent -> the policy that it acts with. MarlError for an unknown agent, or a request that changes nothing.

    Args:
        step: of the checkpoint; 0 for the team before training.
        swaps: pairs of agents that exchange policies.
        untrained: agents that act with the model from before training.
    """
    policies = {agent.name: agent.policy for agent in team.agents.values()}
    named = [("--swap", name) for pair in swaps for name in pair] + [("--untrained", name) for name in untrained]
    for option, name in named:
        if name not in policies:
            raise MarlError(f"{option} names the unknown agent '{name}': {nearest(name, policies)}")
    seen: set[str] = set()
    for first, second in swaps:
        if first == second or policies[first] == policies[second]:
            shared = f"agents '{first}' and '{second}' share policy '{policies[first]}'"
            reason = f"agent '{first}' is on both sides" if first == second else shared
            raise MarlError(f"--swap {first}={second} changes nothing: {reason}")
        if both := seen & {first, second}:
            raise MarlError(f"agent '{min(both)}' is in two swaps: an agent exchanges its policy once")
        seen |= {first, second}
        policies[first], policies[second] = policies[second], policies[first]
    for name in untrained:
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
    if step == 0 or not untrained:
        return Part(source, "trained" if step else "untrained", source)
    name = f"{source}-untrained"
    while name in team.policies:
        name += "-1"
    return Part(source, "untrained", name)


def acting(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The policies in use, by their names in the evaluation, in the order of the agents."""
    return {part.policy: part for part in parts.values()}
