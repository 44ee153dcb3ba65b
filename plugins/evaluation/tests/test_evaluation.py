"""pass@k, intervals, counts of agents, and the weights of each agent."""

import itertools
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_evaluation import run as evaluate
from marl_verl_evaluation.request import Assignment, Options, Pairing, Request
from marl_verl_evaluation.run import agent_metrics, pass_at_k, sampled_scores, share_interval, totals
from omegaconf import OmegaConf

from marl_verl.algo.sampling import Failure
from marl_verl.backend.protocol import Report, TurnCount
from marl_verl.tasks.base import wilson


@st.composite
def _drawn(draw: st.DrawFn) -> tuple[int, int, int]:
    episodes = draw(st.integers(1, 9))
    return episodes, draw(st.integers(0, episodes)), draw(st.integers(1, episodes))


@given(_drawn())
def test_pass_at_k_is_the_share_of_all_draws_with_a_solved_session(drawn: tuple[int, int, int]) -> None:
    episodes, solved, k = drawn
    outcomes = [True] * solved + [False] * (episodes - solved)
    draws = [any(chosen) for chosen in itertools.combinations(outcomes, k)]
    assert pass_at_k(episodes, solved, k) == pytest.approx(np.mean(draws), abs=1e-12)


def test_an_interval_is_near_the_bootstrap_of_the_mean_over_tasks() -> None:
    values = [0.0] * 20 + [0.25] * 15 + [1.0] * 25
    rng = np.random.default_rng(3)
    means = [rng.choice(values, size=len(values)).mean() for _ in range(4_000)]  # drawn task by task
    assert share_interval(values) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.01)


def test_an_interval_of_equal_tasks_is_not_a_point() -> None:
    assert share_interval([1.0] * 30) == wilson(30, 30)
    assert share_interval([0.5] * 30) == wilson(15, 30)
    assert share_interval([0.0]) == wilson(0, 1)


def test_sampled_scores() -> None:
    scores: dict[str, Any] = sampled_scores([4, 0, 2], episodes=4, ks=(1, 2, 4))
    keys = ("avg@4", "pass@1", "pass@2", "pass@4")
    assert list(scores) == [name for key in keys for name in (key, f"{key}_interval")]
    assert scores["avg@4"] == pytest.approx(scores["pass@1"]) == pytest.approx(0.5)
    assert (scores["pass@2"], scores["pass@4"]) == pytest.approx(((1 + 0 + (1 - 1 / 6)) / 3, 2 / 3))
    for name in ("avg@4", "pass@2", "pass@4"):
        low, high = scores[f"{name}_interval"]
        assert 0 <= low < scores[name] < high <= 1


def test_what_each_agent_did_is_counted() -> None:
    turns = [("a", 4, 1.0, False, False), ("b", 8, 0.0, True, True), ("a", 6, 2.0, False, True)]
    rewards = [{"a": {"team": 1.0, "role": 0.5}, "b": {"team": 1.0}}, {"a": {"team": 0.0, "role": 0.0}}]
    reports = [
        Report("u0", "t", successes=[True], rewards=rewards[:1], turns=[TurnCount(*turn) for turn in turns]),
        Report("u1", "t", successes=[False], rewards=rewards[1:], turns=[TurnCount("a", 2, 0.0, False, False)]),
    ]
    reports[1].failures = [Failure(1, "timeout", "")]
    counted = {"attempts": 0, "failed": 1, "failed_reasons": {"timeout": 1}, "tokens": 20}
    assert totals(reports, 10) == {**counted, "tokens_per_second": 2.0, "answer_seconds": None}
    # rewards: mean over an episode's turns, then over episodes, as a validation has them
    assert agent_metrics(reports, "a") == {
        "rewards": {"role": 0.25, "team": 0.5},
        "response_length": 4.0,
        "read_length": 1.0,
        "invalid": 0.0,
        "cut_off": pytest.approx(1 / 3),
        "turns": 1.5,
        "tokens": 12,
    }
    assert agent_metrics(reports, "b")["rewards"] == {"team": 1.0}
    assert (agent_metrics(reports, "b")["invalid"], agent_metrics(reports, "b")["turns"]) == (1.0, 0.5)
    silent = agent_metrics(reports, "silent")
    assert (silent["rewards"], silent["response_length"], silent["turns"], silent["tokens"]) == ({}, None, 0.0, 0)


class Trainer:
    """As much of a trainer as an evaluation asks for; three tasks, of which the second fails in part."""

    def __init__(self) -> None:
        self.team = types.SimpleNamespace(agents={"a": None})
        rollout, validation = {"keep_episodes": 1}, {"options": {"episodes": 2}}
        self.config: Any = OmegaConf.create({"marl": {"rollout": rollout, "validation": validation}})
        self.data = types.SimpleNamespace(held_out=["0", "1", "2"])
        self.stored: list[str] = []
        self.checked = 0
        self.records, self.step = self, 4
        self.asked: list[tuple[bool, int]] = []

    def episodes(self, step: int, lines: list[str]) -> None:
        self.stored += lines

    def check_failures(self, reports: list[Any]) -> None:
        self.checked += len(reports)

    def sample(self, tasks: Sequence[Any], step: int, validate: bool) -> list[Report]:
        assert (step, validate) == (4, True)
        self.asked.append((tasks[0]["sampled"], len(tasks)))
        return [self.report(int(row["task"]), row["sampled"], row["keep"]) for row in tasks]

    def report(self, task: int, sampled: bool, keep: bool) -> Report:
        failed = [Failure(1, "timeout", "too slow")] if task == 1 else []
        good = [task < 2] + [task == 0] * (sampled and not failed)
        report = Report(f"u{task}", "t", attempts=len(good) + len(failed), successes=good, failures=failed)
        report.lines = ["an episode"] * len(good) * keep + ["a failure"] * len(failed)
        report.measures = [{"pass_rate": 0.25 * task}] * len(good)
        report.turns = [TurnCount("a", 3, 2.0 * task, False, False)] * len(good)
        report.scores = [float(score) for score in good]
        report.answer_seconds = [1.5] * len(good)
        return report


def test_an_evaluation_samples_greedily_then_randomly(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, events = Trainer(), []
    monkeypatch.setattr(evaluate, "emit", lambda event, **values: events.append(values))
    assignments = {"a": Assignment("p", "trained", "p", 4)}
    request = Request(4, (Pairing(assignments),), Options(episodes=2, k=(1, 2), at_once=2))
    result = evaluate.play_all(trainer, request)  # type: ignore[arg-type]
    assert trainer.asked == [(False, 2), (False, 1), (True, 1), (True, 1), (True, 1)]
    assert (result["success"], result["score"], result["eval_tasks"]) == (2 / 3, 2 / 3, 3)
    assert result["avg@2"] == pytest.approx((1 + 1 / 2 + 0) / 3)  # the failed session is one of the two
    assert result["pass@2"] == pytest.approx(2 / 3)
    assert (result["attempts"], result["failed"], result["failed_reasons"]) == (4 + 6, 2, {"timeout": 2})
    agent = result["agents"]["a"]
    assert (trainer.checked, agent["weights"], agent["read_length"]) == (6, "step 4", 2.0)
    assert (agent["tokens"], result["tokens"]) == (9, 24)
    assert result["tokens_per_second"] > 24
    assert result["answer_seconds"] == 1.5
    assert not {"sides", "sets"} & set(result)
    assert result["answer"] == {"pass_rate": 0.25}
    assert result["answer_sampled"] == {"pass_rate": pytest.approx((0 + 0 + 0.25 + 0.5 + 0.5) / 5)}
    # the first task's greedy episode, and every failure
    assert trainer.stored == ["an episode", "a failure", "a failure"]
    passes = [(False, 0), (False, 2), (False, 3), (True, 0), (True, 1), (True, 2), (True, 3)]
    assert [(event["sampled"], event["done"]) for event in events] == passes
