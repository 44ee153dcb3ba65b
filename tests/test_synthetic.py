"""Synthetic rows: those of the run's own sampler, on which an algorithm is tried before work starts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest

from marl_verl import plugins
from marl_verl.algo.sampling import SESSION, Independent, Sample, Sampler, State, attempt, expand, leaf_episode, root
from marl_verl.config.fit import SyntheticTeam, check_advantage, check_fit
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig, read_team
from tests.batches import SHIPPED, algorithm

AGENTS: dict[str, Any] = {"planner": {"policy": "one", "reward": "valid-answer"}, "worker": {"policy": "two"}}
JOINT = (("planner", "worker"),)


def team(agents: dict[str, Any] = AGENTS) -> TeamConfig:
    parts = {part: {"name": "inventory"} for part in ("task", "workflow", "algorithm")}
    return read_team({"agents": agents, "policies": {"one": {}, "two": {}}, **parts})


class Chains(Sampler):
    """Chains from one root: one act after the other, and no node of several agents."""

    branches: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    chains: int = 2

    async def sample(self, context: Any) -> Sample:
        start = await attempt(context, SESSION, root(context, SESSION))
        assert isinstance(start, State)
        found, index = Sample(), 0
        for chain in range(self.chains):
            state = start
            while state.acts:
                name, parent = f"{chain}.{index}", state.turn.node if state.turns else None
                state = await expand(
                    context, state, state.acts[0], SESSION, name, index=index, parent=parent, partial_value="zero"
                )
                index += 1
            found.episodes.append(leaf_episode(state))
        return found


def synthetic(name: str, sampler: Sampler | None = None, moves: Any = (), **options: Any) -> SyntheticTeam:
    method = algorithm(name, **options)
    known = plugins.load()
    return SyntheticTeam(sampler or known.get("samplers", method.sampler)(), method, team(), moves)


@pytest.mark.parametrize("moves", [(), JOINT])
def test_a_tree_whose_agents_act_one_after_the_other_goes_with_returns_that_sum_a_path(moves: Any) -> None:
    chains = synthetic("magrpo", Chains(), moves)
    check_fit(chains.sampler, chains.algorithm, chains.team)
    check_advantage(chains)


def test_different_rewards_of_one_joint_action_are_refused_before_the_start() -> None:
    check_advantage(synthetic("magrpo"))  # the agents act one after the other
    with pytest.raises(MarlError, match=r"algorithm 'inventory' does not fit the team: rows .* are one joint action"):
        check_advantage(synthetic("magrpo", moves=JOINT))
    with pytest.raises(MarlError, match="are one joint turn"):
        check_advantage(synthetic("magrpo-sessions"))


def test_rows_are_those_of_the_sampler_with_all_agents_and_components() -> None:
    method = synthetic("sharp", Independent(2), moves=(("planner",), ("planner",)))
    turns = method.turns(0)
    assert [(turn.session, turn.agent) for turn in turns] == [
        (session, agent) for session in range(2) for agent in ("planner", "planner", "worker")
    ]
    assert {turn.team_reward for turn in turns} != {turns[0].team_reward}
    assert {name for turn in turns for name in turn.rewards} == {"role", "tool", "mc"}
    assert turns == method.turns(0)
    assert all(turn.node is not None and "team" in turn.rewards for turn in synthetic("at-grpo").turns(0))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ("gigpo", "magrpo-sessions")])
def test_every_algorithm_is_tried_on_its_own_sampler(name: str) -> None:
    check_advantage(synthetic(name))


def test_a_component_that_the_team_does_not_make_is_unknown() -> None:
    plain = {name: {"policy": agent["policy"]} for name, agent in AGENTS.items()}
    method = dataclasses.replace(synthetic("at-grpo", alpha=0.5), team=team(plain))
    with pytest.raises(MarlError, match="does not fit the team: unknown reward component 'role'"):
        check_advantage(method)
    assert method.table(method.turns(0)).declared == {"team"}


def test_a_sampler_that_fails_is_named() -> None:
    class Broken(Sampler):
        async def sample(self, context: Any) -> Sample:
            return Sample()

    with pytest.raises(
        MarlError, match="sampler 'independent' fails on a synthetic task of the team: it returned no turns"
    ):
        check_advantage(synthetic("grpo", Broken()))
