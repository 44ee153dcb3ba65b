"""ReMax and GDPO: a greedy episode as baseline, and reward components that are normalised one by one."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_baselines import GreedyBaseline
from marl_verl_baselines.presets import GDPO, REMAX
from marl_verl_scripts.reward_function import FunctionScored
from marl_verl_testing.rows import algorithm

from marl_verl import plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.rewards import Mix
from marl_verl.algo.sampling import Sample
from marl_verl.algo.sampling.context import GREEDY, TaskContext, score_parts
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.episode import Action, Team, Workflow
from marl_verl.episode.codec import decode_episode
from marl_verl.errors import MarlError
from marl_verl.plugins.one_file import read_file
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import AgentConfig, Sampling

TASK = Task("t", "question")
AGENTS = {"solver": AgentConfig("solver", "p", sampling=Sampling(temperature=0.7)), "judge": AgentConfig("judge", "p")}
AGENTS["judge"] = replace(AGENTS["judge"], reward="helpful")


class Checked(Workflow):
    """The judge acts only after a long answer, and then once more."""

    async def run(self, task: Task, team: Team) -> str:
        answer = (await team["solver"].act(task.prompt)).text
        for _ in range(2 if len(answer) > 2 else 0):
            await team["judge"].act(answer)
        return answer


class Length(TaskSet):
    quick = True

    def score(self, task: Task, answer: Any) -> float:
        return float(len(answer))


class Server:
    """Answers "aaa" and "aaaa" to sampled requests, and `greedy` to those at temperature 0."""

    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": 5}

    def __init__(self, greedy: str | None) -> None:
        self.greedy, self.asked = greedy, list[Any]()

    def too_long(self, *_: Any) -> None:
        return None

    async def answer(self, messages: Any, sampling: Any, request_id: str, *_: Any) -> Action:
        self.asked.append({name: sampling[name] for name in ("temperature", "top_p", "top_k")})
        greedy = sampling["temperature"] == 0
        if greedy and self.greedy is None:
            raise RuntimeError("no greedy answer")
        text = str(self.greedy) if greedy else "a" * (3 + int(request_id.rpartition("-")[2]))
        return Action(text, [1], [2] * len(text), [-1.0] * len(text))


def sampled(greedy: str | None, **mix: float) -> tuple[Sample, Server]:
    server = Server(greedy)
    helpful = {"helpful": lambda task, turn, episode: 10.0 + turn.turn}
    context = TaskContext(Checked(), Length(), AGENTS, helpful, Mix(**mix))
    parts = WorkerContext(context, {"p": server}, 0, trained=frozenset({"p"}))
    return asyncio.run(GreedyBaseline(2).sample(PolicySamplingContext(parts, TASK, "u", 1, None))), server


@pytest.mark.parametrize(
    ("greedy", "mix", "judge"), [("g" * 5, {"team": 2.0}, 10.0), ("g", {"team": 2.0, "role": 1.0}, 2.0)]
)
def test_the_baseline_is_a_greedy_episode_that_is_stored(greedy: str, mix: dict[str, float], judge: float) -> None:
    sample, server = sampled(greedy, **mix)
    weight = mix.get("team", 1.0)
    assert {turn.session for turn in sample.turns} == {0, 1}
    assert all(
        turn.columns == {GREEDY: weight * len(greedy) if turn.agent == "solver" else judge} for turn in sample.turns
    )
    assert sum(asked == {"temperature": 0.0, "top_p": 1.0, "top_k": -1} for asked in server.asked) in (1, 3)
    assert {asked["temperature"] for asked in server.asked} == {0.0, 0.7, 1.0}
    assert sample.greedy is not None
    assert sample.extra_tokens == {GREEDY: sum(turn.length for turn in sample.greedy.turns)}
    assert decode_episode(json.loads(sample_lines(sample, "u", "t", tokens=True)[-1])).id == "u_2"
    algorithm = replace(REMAX, rewards=Mix(**mix))
    table = RowTable.of(sample.turns, algorithm.components(AGENTS), {"p"})
    result = algorithm.compute(table)
    rewards = [
        weight * turn.components["team"] + turn.components.get("role", 0) * (not mix or "role" in mix)
        for turn in sample.turns
    ]
    np.testing.assert_allclose(result.advantage, np.array(rewards) - table.column(GREEDY))
    again = algorithm.compute(RowTable.from_rows(algorithm.placed(table).to_rows()))  # as `explain` does
    np.testing.assert_array_equal(again.advantage, result.advantage)


def test_without_its_greedy_episode_a_task_has_no_rows() -> None:
    sample, _ = sampled(None)
    assert (sample.turns, sample.dropped, sample.attempts) == ([], 2, 3)
    assert [failure.session for failure in sample.failures] == [2]


def rows(count: int, seed: int) -> tuple[list[dict[str, Any]], Any]:
    rng = np.random.default_rng(seed)
    made = [
        {"uid": f"q{i % 5}", "session": i // 5, "index": 0, "turn": 0, "agent": "a", "policy": "p"}
        | {"rewards": {"x": float(rng.integers(0, 2)), "y": float(rng.normal())}, "team_reward": float(rng.normal())}
        | {"length": int(rng.integers(1, 7)), "columns": {GREEDY: float(rng.normal())}}
        for i in range(count)
    ]
    return made, rng


def test_gdpo_whitens_each_policy_by_itself() -> None:
    made, _ = rows(20, 4)
    others = [{**row, "uid": f"{row['uid']}x", "policy": "other"} for row in rows(15, 5)[0]]
    method = algorithm(GDPO, **{"keys": ["x", "y"]})
    found = method.compute(RowTable.from_rows(made + others)).advantage
    np.testing.assert_allclose(found[:20], method.compute(RowTable.from_rows(made)).advantage)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_both_are_those_of_stock_verl(seed: int) -> None:
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    made, rng = rows(23, seed)
    length = torch.tensor([row["length"] for row in made])
    mask = (torch.arange(6) < length[:, None]).float()
    scores = torch.zeros(len(made), 6)
    scores[torch.arange(len(made)), length - 1] = torch.tensor([row["team_reward"] for row in made])
    table = RowTable.from_rows([{**row, "rewards": {}} for row in made])
    baselines = torch.tensor([row["columns"][GREEDY] for row in made])
    stock, _ = core_algos.compute_remax_outcome_advantage(scores, baselines, mask)
    np.testing.assert_allclose(REMAX.compute(table).advantage, stock[:, 0].numpy(), atol=1e-6)

    weights = rng.normal(size=2).tolist()
    config = AlgoConfig(adv_estimator="gdpo", gdpo_reward_keys=["x", "y"], gdpo_reward_weights=weights)
    batch = {
        "prompts": torch.zeros(len(made), 1),
        "attention_mask": torch.cat([torch.ones(len(made), 1), mask], 1).long(),
    }
    parts = {key: np.array([row["rewards"][key] for row in made]) for key in "xy"}
    index = np.array([row["uid"] for row in made], dtype=object)
    stock, _ = core_algos.compute_gdpo_outcome_advantage(
        scores, mask, index, config=config, non_tensor_batch=parts, batch=batch
    )
    method = algorithm(GDPO, **{"keys": ["x", "y"], "key_weights": weights})
    np.testing.assert_allclose(method.compute(RowTable.from_rows(made)).advantage, stock[:, 0].numpy(), atol=1e-5)


SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": 3.0, "format_reward": True, "accuracy_reward": 2, "note": "text"}
"""


def test_parts_of_a_score_become_components_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE)
    plugins.use_files([read_file("reward/mine.py", tmp_path / "mine.py")])
    tasks = FunctionScored(function="mine.py:compute_score")
    keys = ("format_reward", "accuracy_reward")
    score = tasks.score(TASK, "g")
    with pytest.raises(MarlError, match=r"no part 'acuracy_reward', .*: did you mean 'accuracy_reward'"):
        score_parts(score, ("acuracy_reward",))
    with pytest.raises(MarlError, match=r"no part 'format_reward', .*: it is 0\.0"):
        score_parts(0.0, keys)
    parts = WorkerContext(TaskContext(Checked(), tasks, AGENTS, parts=keys), {"p": Server("g")}, 0)
    parts.task_context.rewards.update(helpful=lambda *_: 1.0)  # type: ignore[attr-defined]
    sample = asyncio.run(GreedyBaseline(1).sample(PolicySamplingContext(parts, TASK, "u", 1, None)))
    assert {turn.agent for turn in sample.turns} == {"solver", "judge"}
    assert all(turn.rewards.items() >= {"format_reward": 1.0, "accuracy_reward": 2.0}.items() for turn in sample.turns)
    assert all(turn.team_reward == 3.0 for turn in sample.turns)
