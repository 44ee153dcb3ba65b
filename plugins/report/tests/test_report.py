"""The numbers at the end of a run, and the curve."""

from collections.abc import Sequence
from typing import Any

import pytest
from marl_verl_report import curves
from marl_verl_testing.rows import algorithm, row

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Failure
from marl_verl.backend.protocol import Report, TurnCount
from marl_verl.errors import MarlError
from marl_verl.run.records import Records
from marl_verl.tasks.base import wilson
from marl_verl.trainer.metrics import outcome_metrics, team_metrics, validation_metrics


@pytest.mark.parametrize(("successes", "tasks"), [(1, 10), (299, 300)])
def test_wilson_ends_where_the_score_test_does(successes: int, tasks: int) -> None:
    """The ends are the shares p with (successes/tasks - p)^2 = z^2 p (1 - p) / tasks."""
    share = successes / tasks
    low, high = wilson(successes, tasks)
    assert 0 < low < share < high < 1
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / tasks)


# What the driver makes of the rollout workers' reports


def turn(agent: str, read: float) -> TurnCount:
    return TurnCount(agent, 1, read, False, False)


def reported(successes: Sequence[bool], failures: int = 0, **own: Any) -> Report:
    failed = [Failure(session, "timeout", "the episode took too long") for session in range(failures)]
    return Report("u", "t", len(successes) + failures, successes=list(successes), failures=failed, **own)


@pytest.mark.slow
def test_a_metric_is_the_mean_over_the_tasks_that_report_it() -> None:
    table = RowTable.from_rows([row("q", session, 0, 0, "solver", team=session) for session in range(2)])
    reports = [
        reported(
            [True, False],
            metrics={"tree/gain": 1.0},
            extra_tokens={"rollout": 5},
            measures=[{"pass_rate": 0.5}, {}],
            turns=[turn("solver", 4.0), turn("solver", 0.0)],
        ),
        reported([False], failures=2, metrics={"tree/gain": 0.5}, extra_tokens={"rollout": 2, "credit": 1}),
        reported([False]),
    ]
    found = team_metrics(table, algorithm("grpo").compute(table), reports)
    assert (found["tree/gain"], found["train/success"]) == (0.75, 0.25)
    assert (found["train/answer/pass_rate"], found["agent/solver/read_length"]) == (0.25, 2.0)
    assert (found["train/attempts"], found["train/failed_episodes"], found["train/failed/timeout"]) == (6, 2, 2)
    assert (found["train/extra_tokens/rollout"], found["train/tokens"]) == (7, 6 + 8)  # two rows of three tokens


@pytest.mark.slow
def test_validation_counts_tasks_and_a_failed_one_as_unsolved() -> None:
    greedy = [reported([True], rewards=[{"a": {"role": 1.0}}]), reported([], failures=1)]
    found = validation_metrics(greedy, [reported([True, False, False, False]), reported([False])])
    assert found == {
        **{"validation/success": 0.5, "validation/success_sampled": 0.125, "validation/success_any": 0.5},
        **{"validation/failed_episodes": 1.0, "validation/agent/a/role": 1.0},
    }


@pytest.mark.slow
def test_validation_has_held_out_sets_and_measures_of_answers() -> None:
    greedy = [
        reported([True], set="easy", measures=[{"pass_rate": 1.0}], turns=[turn("a", 3.0)]),
        reported([False], set="hard", measures=[{"pass_rate": 0.5}], turns=[turn("a", 1.0)]),
        reported([], failures=1, set="hard"),
        reported([False], set="hard"),  # its measures raised an error
    ]
    found = validation_metrics(greedy, greedy[:2])
    assert (found["validation/set/easy/success"], found["validation/set/hard/success"]) == (1.0, 0.0)
    assert found["validation/set/hard/success_sampled"] == 0.0
    assert (found["validation/answer/pass_rate"], found["validation/answer/pass_rate_sampled"]) == (0.5, 0.75)
    assert found["validation/agent/a/read_length"] == 2.0
    lines = curves.lines([{"step": 0, **found}], tasks=3)
    by_set = [(line["label"], line["y"]) for line in lines if line["chart"] == "Held-out success by set"]
    assert by_set == [("easy", [1.0]), ("hard", [0.0])]
    assert [line["label"] for line in lines if line["chart"] == "Answers: pass_rate"] == ["validation"]


@pytest.mark.slow
def test_metrics_and_curves_are_per_side() -> None:
    games = [(1.0, -1.0), (0.0, 0.0), (-2.0, 2.0), (3.0, 0.0)]
    assert outcome_metrics([], []) == {}
    reports = [reported([True], outcomes=[{"red": red, "blue": blue}]) for red, blue in games]
    found = validation_metrics(reports, reports[2:3])
    assert (found["validation/draws"], found["validation/draws_sampled"]) == (0.25, 0.0)
    assert found["validation/side/red/wins"] == found["validation/side/red/outcome"] == 0.5
    assert (found["validation/side/blue/wins_sampled"], found["validation/side/blue/outcome_sampled"]) == (1.0, 2.0)
    train = {f"train/{name}": value for name, value in outcome_metrics(reports, []).items()}
    records = [{"step": 0, **found, **train}]
    lines = [line for line in curves.lines(records, tasks=4) if line["chart"] == "Wins of each side"]
    assert {line["label"]: line["y"] for line in lines} == {
        **{"validation/side/red/wins": [0.5], "validation/side/blue/wins": [0.25]},
        **{"validation/side/red/wins_sampled": [0.0], "validation/side/blue/wins_sampled": [1.0]},
        **{"train/side/red/wins": [0.5], "train/side/blue/wins": [0.25]},
    }


@pytest.mark.slow
def test_a_run_ends_above_its_share_of_failed_attempts_and_not_at_it() -> None:
    records = object.__new__(Records)
    records._marl = {"rollout": {"max_failed_share": 0.5}}
    records.check_failures([reported([True], failures=1)])
    with pytest.raises(MarlError, match=r"2 of 3 attempts failed, above .*=0.5. First failure: timeout: the episode"):
        records.check_failures([reported([True], failures=2)])
    with pytest.raises(MarlError, match="sampling task 't' failed: a bug"):
        records.check_failures([reported([True]), reported([], error="a bug")])
    records._marl = {"rollout": {"max_failed_share": 0.0}}
    records.check_failures([reported([])])
    with pytest.raises(MarlError, match="1 of 9 attempts failed"):
        records.check_failures([reported([True] * 8, failures=1)])
