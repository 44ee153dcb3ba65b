"""The numbers at the end of a run, and the curve."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_report import steps
from marl_verl_testing.rows import algorithm, row
from rich.console import Console

from marl_verl.algo.advantage import RowTable
from marl_verl.errors import MarlError
from marl_verl.inspect import summary
from marl_verl.inspect.run_files import use_plugin_files
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import RunDir
from marl_verl.trainer.report import _agents, wilson, write_summary
from tests.run_folder import run_folder


@pytest.mark.parametrize(("successes", "tasks"), [(5, 10), (1, 10), (30, 300), (299, 300)])
def test_wilson_ends_where_the_score_test_does(successes: int, tasks: int) -> None:
    """The ends are the shares p with (successes/tasks - p)^2 = z^2 p (1 - p) / tasks."""
    share = successes / tasks
    low, high = wilson(successes, tasks)
    assert 0 < low < share < high < 1
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / tasks)


def test_wilson_stays_between_0_and_1() -> None:
    low, high = wilson(0, 10)
    assert low == 0.0
    assert 0.2 < high < 0.35
    assert wilson(10, 10) == pytest.approx((1 - high, 1.0))


def test_wilson_without_tasks_knows_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_agents_have_their_last_metrics() -> None:
    step = {"agent/a/reward": 0.5, "agent/b/reward": 0.25, "train/success": 1.0}
    validation = {"validation/agent/a/reward": 0.75}
    assert _agents(step, validation) == {"a": {"reward": 0.5, "validation/reward": 0.75}, "b": {"reward": 0.25}}


# What the driver makes of the rollout workers' reports


def reported(successes: Sequence[bool], failures: int = 0, **own: Any) -> Any:
    from marl_verl.algo.sampling import Failure
    from marl_verl.backend.report import Report

    failed = [Failure(session, "timeout", "the episode took too long") for session in range(failures)]
    return Report("u", "t", len(successes) + failures, successes=list(successes), failures=failed, **own)


@pytest.mark.slow
def test_a_metric_is_the_mean_over_the_tasks_that_report_it() -> None:
    from marl_verl.trainer.metrics import team_metrics

    table = RowTable.from_rows([row("q", session, 0, 0, "solver", team=session) for session in range(2)])
    reports = [
        reported(
            [True, False],
            metrics={"tree/gain": 1.0},
            extra_tokens={"rollout": 5},
            measures=[{"pass_rate": 0.5}, {}],
            read=[("solver", 4.0), ("solver", 0.0)],
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
    from marl_verl.trainer.validation import validation_metrics

    greedy = [reported([True], rewards=[{"a": {"role": 1.0}}]), reported([], failures=1)]
    found = validation_metrics(greedy, [reported([True, False, False, False]), reported([False])])
    assert found == {
        "validation/success": 0.5,
        "validation/success_sampled": 0.125,
        "validation/success_any": 0.5,
        "validation/failed_episodes": 1.0,
        "validation/agent/a/role": 1.0,
    }


@pytest.mark.slow
def test_validation_has_held_out_sets_and_measures_of_answers() -> None:
    from marl_verl_report import curves

    from marl_verl.trainer.validation import validation_metrics

    greedy = [
        reported([True], set="easy", measures=[{"pass_rate": 1.0}], read=[("a", 3.0)]),
        reported([False], set="hard", measures=[{"pass_rate": 0.5}], read=[("a", 1.0)]),
        reported([], failures=1, set="hard"),
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
    games = [
        {"red": 1.0, "blue": -1.0},
        {"red": 0.0, "blue": 0.0},
        {"red": -2.0, "blue": 2.0},
        {"red": 3.0, "blue": 0.0},
    ]
    from marl_verl_report import curves

    from marl_verl.trainer.metrics import side_metrics
    from marl_verl.trainer.validation import validation_metrics

    assert side_metrics([], "train/") == {}
    reports = [reported([True], outcomes=[each]) for each in games]
    found = validation_metrics(reports, reports[2:3])
    assert (found["validation/draws"], found["validation/draws_sampled"]) == (0.25, 0.0)
    assert found["validation/side/red/wins"] == found["validation/side/red/outcome"] == 0.5
    assert (found["validation/side/blue/wins_sampled"], found["validation/side/blue/outcome_sampled"]) == (1.0, 2.0)
    records = [{"step": 0, **found, **side_metrics(games, "train/")}]
    lines = [line for line in curves.lines(records, tasks=4) if line["chart"] == "Wins of each side"]
    assert {line["label"]: line["y"] for line in lines} == {
        **{"red, held-out, greedy": [0.5], "blue, held-out, greedy": [0.25]},
        **{"red, held-out, sampled": [0.0], "blue, held-out, sampled": [1.0]},
        **{"red, training, sampled": [0.5], "blue, training, sampled": [0.25]},
    }


@pytest.mark.slow
def test_a_run_ends_above_its_share_of_failed_attempts_and_not_at_it() -> None:
    from marl_verl.run.records import Records

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


@pytest.mark.slow
def test_weight_change(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from marl_verl.run.checkpoint.weights import weight_change

    for name, weight in (("before", [3.0, 4.0]), ("after", [3.0, 4.5])):
        (tmp_path / name).mkdir()
        save_file({"w": torch.tensor(weight)}, tmp_path / name / "model.safetensors")
    assert weight_change(tmp_path / "before", tmp_path / "after") == pytest.approx((2, 0.1))  # 0.5 of 5
    assert weight_change(tmp_path / "before", tmp_path / "before") == (2, 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a run of two steps leaves behind."""
    lines: list[dict[str, Any]] = [
        {"step": 0, "validation/success": 0.1, "validation/success_sampled": 0.2},
        {"step": 1, "train/success": 0.3},
        {"step": 2, "train/success": 0.4},
        {"step": 2, "validation/success": 0.5, "validation/success_sampled": 0.6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "config.yaml").write_text(
        "trainer: {total_training_steps: 2}\nmarl:\n  run: {recipe: my/recipe.yaml}\n"
        "  policies: {scout: {}, mover: {}}\n  agents: {scout: {policy: scout}, mover: {policy: mover}}\n"
        "  task: {name: t}\n  workflow: {name: w}\n  algorithm: {name: a}\n"
    )
    summary = {
        "steps": 2,
        "eval_tasks": 300,
        "success_before": 0.1,
        "success_after": 0.5,
        "success_before_interval": [0.07, 0.14],
        "success_after_interval": [0.44, 0.56],
        "success_before_sampled": 0.2,
        "success_after_sampled": 0.6,
        "answer_before": {"pass_rate": 0.25},
        "answer_after": {"pass_rate": 0.75},
        "policies": {
            "scout": {"parameters": 87104, "weight_change": 0.123, "frozen": False},
            "mover": {"parameters": 87104, "weight_change": 0.0, "frozen": True},
        },
        "seconds_total": 100.0,
        "seconds_to_first_step": 60.0,
        "seconds_per_step": 1.5,
        "checkpoint": "checkpoints/step_2",
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


@pytest.mark.parametrize(("first", "before"), [(0, 0.1), (5, None)])
def test_only_a_validation_before_the_first_step_is_before(tmp_path: Path, first: int, before: float | None) -> None:
    validations = [(first, 0.1), (10, 0.5)]
    for step, value in validations:
        values = {"success": value, "success_sampled": value, "answer/pass_rate": value, "answer/other_sampled": 0.0}
        RunDir(tmp_path).metrics(step, {f"validation/{name}": number for name, number in values.items()})
    team, data = SimpleNamespace(policies={}), SimpleNamespace(held_out=range(10))
    trainer: Any = SimpleNamespace(run_dir=RunDir(tmp_path), data=data, team=team, config=None)
    document = write_summary(trainer)
    assert (document["success_before"], document["success_before_sampled"]) == (before, before)
    assert (document["success_before_interval"] is None) == (before is None)
    assert document["success_after"] == 0.5
    assert document["answer_before"] == ({} if before is None else {"pass_rate": before})
    assert document["answer_after"] == {"pass_rate": 0.5}


def test_a_run_without_a_first_validation_and_a_small_change(run: Path, shown: Callable[[Path], str]) -> None:
    """The last validation is not "before", and a change of the weights that is small is not 0.0%."""
    document = json.loads((run / "summary.json").read_text())
    document |= {name: None for name in document if "_before" in name}
    document["policies"]["scout"]["weight_change"] = 4.2e-5
    (run / "summary.json").write_text(json.dumps(document))
    printed = shown(run)
    assert "after" in printed
    assert "before" not in printed
    assert "weights changed by 0.0042%" in printed


def test_the_curve_is_drawn(run: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = summary.draw_curve(run)
    assert curve == run / "curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    monkeypatch.setattr(summary, "draw_curve", lambda folder: folder / "curve.png")

    def shown(run: Path) -> str:
        out = io.StringIO()
        summary.show(run, Display(Console(file=out, width=120, soft_wrap=True)))
        return out.getvalue()

    return shown


def test_only_commands_that_work_are_suggested(run: Path, shown: Callable[[Path], str]) -> None:
    (run / "summary.json").write_text((run / "summary.json").read_text().replace('"checkpoints/step_2"', "null"))
    assert "next, try" not in shown(run)  # no checkpoint, no journals
    RunDir(run).journals(1, ["{}"])
    assert "marl-verl replay " in shown(run)
    assert f"marl-verl report {run}  " in shown(run)


def test_the_end_is_reported(run: Path, shown: Callable[[Path], str]) -> None:
    printed = shown(run)
    assert "300 held-out tasks" in printed
    assert "10.0% (7.0 to 14.0)" in printed
    assert re.search(r"pass_rate, greedy.+0\.250.+0\.750", printed)
    assert "policy scout: 87,104 parameters, weights changed by 12%" in printed
    assert "policy mover: 87,104 parameters, frozen" in printed
    assert f"marl-verl train --resume {run} trainer.total_training_steps=4" in printed
    assert f"marl-verl eval {run} --untrained scout" in printed


# What a size limit leaves out of a step of the HTML report


def test_a_size_limit_counts_failed_attempts_and_groups(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=1, tasks=4)
    use_plugin_files(folder, [])
    whole = steps.read(folder, "train", 1)
    sizes = {name: steps._size(value) for name, value in whole.items()}
    assert (len(whole["episodes"]), len(whole["groups"]), whole["failures_left_out"]) == (7, 4, 0)

    limit = sum(sizes.values()) - sizes["groups"]
    few = steps.read(folder, "train", 1, limit)
    assert 0 < few["left_out"] < 7
    rows = [
        turn["row"] for each in few["episodes"] for turn in (*each["effects"], *each["off_path_turns"]) if "row" in turn
    ]
    assert {row["group"] for row in rows} == set(range(len(few["groups"])))  # none of an omitted episode

    journal = folder / "journals" / "step_00001.jsonl"
    lines = journal.read_text().splitlines()
    failed = json.loads(next(line for line in lines if '"failure"' in line))
    more = [json.dumps({**failed, "session": 10 + at, "detail": f"{at:04}" * 750}) for at in range(64)]
    journal.write_text("\n".join([*lines[:1], *more, *lines[1:]]) + "\n")
    short = steps.read(folder, "train", 1, limit)
    assert short["left_out"] > few["left_out"]
    assert (len(short["failures"]), short["failures_left_out"]) == (20, 48)
    assert short["failures"][3]["detail"] == "0003" * 250 + " ... (cut: 3000 characters)"
    live = steps.read(folder, "train", 1)
    assert (len(live["failures"]), live["failures_left_out"], len(live["failures"][3]["detail"])) == (68, 0, 3000)
