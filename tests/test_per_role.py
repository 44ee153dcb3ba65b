"""An algorithm per agent: a role's advantages are those of its own estimator, on its own rows."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_baselines.presets import reinforce_pp
from marl_verl_inspect.explained import ExplainedRows
from marl_verl_testing import check_algorithm

from marl_verl import plugins
from marl_verl.algo.advantage import Advantage, AdvantageResult, Discounted, FloatArray, PerRole, RowTable
from marl_verl.algo.algorithms import Algorithm, PlainRows, in_groups, rewards_of
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.algo.algorithms.presets import grpo
from marl_verl.config.fit import SyntheticTeam, check_advantage, check_fit
from marl_verl.config.parts import algorithm_of, loss_of
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig, read_team
from tests.batches import Rows, episodes, keep, row


def per_role(rows: PlainRows, roles: Mapping[str, Callable[..., list[float]]], others: Any) -> list[float]:
    """The rows of each of `roles` by themselves, and the rest by themselves; "worker#2" is a worker."""
    parts: dict[Any, list[int]] = {}
    for place in range(len(rows)):
        role = rows[place]["agent"].partition("#")[0]
        parts.setdefault(role if role in roles else None, []).append(place)
    advantages = [0.0] * len(rows)
    for role, places in parts.items():
        for place, value in zip(places, roles.get(role, others)([rows[place] for place in places]), strict=True):
            advantages[place] = value
    return advantages


POLICIES = {"planner": "one", "solver": "one", "verifier": "two"}
BY_AGENT = {"options": {"advantage": {"group": "agent", "singleton": "zero"}}}


def team(run: Any = "grpo", policies: Any = None, **algorithms: Any) -> TeamConfig:
    """A team of three with an algorithm of the run, and of some agents."""
    agents = {name: {"policy": policy, "algorithm": algorithms.get(name)} for name, policy in POLICIES.items()}
    algorithm = {"name": run} if isinstance(run, str) else run
    parts = {"task": {"name": "t"}, "workflow": {"name": "w"}, "algorithm": algorithm}
    return read_team({"agents": agents, "policies": {"one": {}, "two": {}, **(policies or {})}, **parts})


def checked(made: TeamConfig) -> Algorithm:
    algorithm = algorithm_of(made)
    sampler = plugins.load().get("samplers", algorithm.sampler)()
    check_fit(sampler, algorithm, made)
    check_advantage(SyntheticTeam(sampler, algorithm, made))
    return algorithm


@given(data=st.data())
@settings(max_examples=25)
def test_each_role_is_compared_by_its_own_estimator(data: st.DataObject) -> None:
    rows = keep(data.draw(episodes()), team="team")
    rows = [{**r, "agent": f"planner#{r['turn']}"} if r["agent"] == "planner" and r["turn"] else r for r in rows]
    algorithm = checked(team(planner="reinforce++", solver=BY_AGENT))
    own = {"planner": reinforce_pp, "solver": lambda rows: in_groups(rewards_of(rows), rows, ["uid"])}
    result = check_algorithm(algorithm, rows, reach="batch")
    np.testing.assert_allclose(result.advantage, per_role(rows, own, grpo), rtol=1e-6, atol=1e-6)
    table = RowTable.from_rows(rows)
    explained = ExplainedRows(json.loads(json.dumps(step_document("grpo", algorithm, table, result, 1))))
    assert explained.difference is None
    columns = {"planner": ["agent"], "solver": ["agent", "uid"], "verifier": ["uid"]}
    for record in explained:
        if len({r["agent"].partition("#")[0] for r in rows}) > 2:
            assert sorted(record["group"]) == columns[record["agent"].partition("#")[0]]
        assert all(np.isfinite(step["value"]) for step in record["transforms"])


def test_the_estimator_of_a_role_works_on_the_rows_of_a_tree() -> None:
    checked(team("at-grpo", solver={"options": {"advantage": {"group": "task"}}}))


def test_the_team_reward_of_a_role_is_where_its_returns_want_it() -> None:
    rows = [{**row("q", 0, i, i // 2, "ab"[i % 2]), "team_reward": 1.0} for i in range(4)]
    algorithm = Algorithm(advantage=PerRole("a", Advantage(returns=Discounted()), Advantage()))
    assert algorithm.placed(RowTable.from_rows(rows)).rewards["team"].tolist() == [0, 1, 1, 1]


@dataclass(frozen=True)
class Halved(Advantage):
    """The last token has half of the advantage."""

    name: ClassVar[str] = "halved"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        result = super().compute(table, reward)
        return result.with_tokens([[a, a, a / 2] for a in result.advantage])


@pytest.mark.parametrize(("mine", "others"), [(Halved(), Advantage()), (Advantage(), Halved())])
def test_one_role_may_have_advantages_of_tokens(mine: Advantage, others: Advantage) -> None:
    rows: Rows = [row("q", i // 2, i % 2, 0, "ab"[i % 2], team=float(i)) for i in range(8)]
    result = Algorithm(advantage=PerRole("a", mine, others)).compute(RowTable.from_rows(rows))
    for place, r in enumerate(rows):
        halved = isinstance(mine if r["agent"] == "a" else others, Halved)
        a = result.advantage[place]
        assert result.of_tokens(place, 3).tolist() == [a, a, a / 2 if halved else a]
        assert a != 0


RAE = {"name": "grpo", "options": {"advantage": "marl_verl_self_play.role_conditioned:RoleConditioned"}}


@pytest.mark.parametrize(
    ("run", "algorithm", "message"),
    [
        ("grpo", "gigpo", "advantage 'group-in-group' needs the rows of all agents, .*: it sums the steps"),
        ("magrpo-sessions", {"options": {"advantage": {"returns": "immediate"}}}, "returns 'path_sum' needs the rows"),
        ("grpo", "ippo", "the advantages of 'planner' and of the others need different critics"),
        ("mappo", "grpo", "need different critics"),
        (
            {"name": "mappo", "options": {"sampler": "best-of"}},
            None,
            "'best-of' makes off-path turns, which have no joint",
        ),
        (RAE, "grpo", "advantage 'role-conditioned' depends on earlier steps"),
        ("grpo", "at-grpo", 'another sampler than the run: set marl.agents.planner.*options.sampler="independent"'),
        ("grpo", "dr-mas", 'another rewards .*options.rewards={"name": "weights", "weights": null}'),
        ("grpo", {"options": {"credit": "efficiency"}}, r"another credit than the run: set .*options.credit=\[\]"),
        ("grpo", {"name": "reinforce"}, r"unknown algorithm 'reinforce': did you mean 'reinforce\+\+'"),
        (
            "grpo",
            {"options": {"advantage": {"grup": "task"}}},
            "'marl.agents.planner.algorithm.options.advantage.grup'",
        ),
    ],
)
def test_what_all_agents_share_is_refused(run: Any, algorithm: Any, message: str) -> None:
    with pytest.raises(MarlError, match=message):
        checked(team(run, planner=algorithm))


def test_the_loss_of_an_agent_is_that_of_its_policy() -> None:
    made = team(verifier={"options": {"loss": "gspo"}})
    assert [loss_of(made, policy)[0] for policy in made.policies] == ["ppo-clip", "gspo"]
    assert algorithm_of(made).advantage == algorithm_of(team()).advantage  # compared with the others as before
    with pytest.raises(MarlError, match="policy 'one' has one loss, 'gspo', but that of agent 'solver' is 'ppo-clip'"):
        checked(team(planner={"options": {"loss": "gspo"}}))
    assert loss_of(team(policies={"one": {"loss": "reinforce"}}, planner="reinforce++"), "one")[0] == "reinforce"
    with pytest.raises(MarlError, match="policy 'two' is frozen: remove"):
        checked(team(policies={"two": {"frozen": True}}, verifier="grpo"))
