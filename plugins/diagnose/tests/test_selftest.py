"""`marl-verl selftest`: criteria, report, time limits and Ctrl-C with checks of this file; the real log-prob check.

tests/e2e/test_selftest.py runs a check of the stack.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from marl_verl_diagnose.selftest import Check, CriterionError, Figures, Place, checks, runs, stock
from marl_verl_diagnose.selftest.throughput import rate
from omegaconf import OmegaConf

from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from tests.selftest_checks import made

GIB = 1 << 30


def selftest(monkeypatch: pytest.MonkeyPatch, folder: Path, found: tuple[Check, ...]) -> tuple[int, dict[str, Any]]:
    """(exit code, report.json)."""
    monkeypatch.setattr(checks, "CHECKS", found)
    code = main(["selftest", "--output", str(folder)])
    return code, json.loads((folder / "report.json").read_text())


def ended(file: Path) -> bool:
    """Whether the process whose id a file has ends within 30 seconds; nobody may have waited for it."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def test_a_failed_check_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("passes", "fails", "raises", "run_fails", "skips", "dies")
    code, report = selftest(monkeypatch, tmp_path / "new", made(*names))
    found = {check["name"]: check for check in report["checks"]}
    assert code == 1
    assert list(found) == list(names)
    assert {name: check["state"] for name, check in found.items()} == {
        **dict.fromkeys(names, "failed"),
        "passes": "passed",
        "skips": "skipped",
    }
    assert found["passes"]["figures"] == {"tokens per second": 12.3456789, "gpus": 1}
    assert (found["fails"]["message"], found["fails"]["figures"]) == ("differs by 0.3", {"difference": [0.01, 0.3]})
    assert found["fails"]["log"] == [f"line {number}" for number in range(60, 100)]
    assert found["raises"]["message"] == "ValueError: no such thing"
    assert "in raises" in "\n".join(found["raises"]["log"])
    assert found["run_fails"]["log"][-1] == "the reason is here"
    assert found["skips"]["message"] == "needs a GPU"
    assert found["dies"]["message"] == "its process ended with exit code -9"
    text = (tmp_path / "new" / "report.md").read_text()
    assert "| fails | failed |" in text
    assert "- tokens per second: 12.35\n- gpus: 1\n" in text
    assert "- difference: 0.01, 0.3\n" in text
    assert "line 99" in text
    assert "line 59\n" not in text
    assert {"verl", "torch"} <= set(report["packages"])
    assert report["machine"]["cpus"] == os.cpu_count()
    out = capsys.readouterr().out
    assert "[2/6] fails: failed in" in out
    assert "failed: fails, raises, run_fails, dies" in out
    assert (tmp_path / "new" / "work").is_dir()


def test_all_passed_or_skipped_is_exit_code_0_and_removes_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, report = selftest(monkeypatch, tmp_path / "new", made("passes", "skips"))
    assert (code, report["passed"]) == (0, True)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["logs", "report.json", "report.md"]


def test_a_check_that_hangs_ends_at_its_time_limit_with_its_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, report = selftest(monkeypatch, tmp_path / "new", (*made("hangs", seconds=10), *made("passes")))
    first, second = report["checks"]
    assert (code, first["state"], second["state"]) == (1, "failed", "passed")
    assert first["message"] == "not finished after 10 s"
    assert first["seconds"] < 60
    assert ended(tmp_path / "new" / "work" / "hanging.pid")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_leaves_nothing_running(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from marl_verl.cli.main import main; from marl_verl_diagnose.selftest import checks\n"
        "from tests.selftest_checks import made\n"
        f"checks.CHECKS = made('passes', 'hangs', 'passes'); sys.exit(main(['selftest', '--output', '{tmp_path}/new']))"
    )
    child = tmp_path / "new" / "work" / "hanging.pid"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) as process:
        until = time.monotonic() + 60
        while not (child.is_file() and child.read_text()):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(timeout=60) == (130 if number == signal.SIGINT else -number)
    assert ended(child)
    if number == signal.SIGINT:  # a report of what has been checked until then
        report = json.loads((tmp_path / "new" / "report.json").read_text())
        assert [check["name"] for check in report["checks"]] == ["passes"]


def test_list_and_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [check.name for check in checks.CHECKS]
    assert [check.name for check in checks.choose(["mappo", "versions"])] == ["versions", "mappo"]
    with pytest.raises(MarlError, match="unknown check 'lorra': did you mean 'lora'"):
        checks.choose(["lorra"])


@pytest.mark.parametrize(("arguments", "why"), [(("--gpus", "0"), "--gpus must be"), ((), "exists: give a new folder")])
def test_what_cannot_be_done_is_said_before_the_start(
    arguments: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", *arguments, "--output", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Criteria


class FakeRun:
    """The metrics of a run of one policy."""

    def __init__(self, steps: int, **last: float) -> None:
        line = {"train/success": 0.1, "train/tokens": 30.0, "seconds/step": 2.0}
        line |= {"policy/a/grad_norm": 0.5, "policy/a/rollout_corr/log_ppl_abs_diff": 0.001}
        self.metrics = [{"step": step, **line} for step in range(1, steps + 1)]
        self.metrics[-1] |= {name.replace("__", "/"): value for name, value in last.items()}


def test_a_run_must_have_trained_all_its_steps() -> None:
    figures: Figures = {}
    run: Any = FakeRun(3)
    assert len(runs.learnt(run, (1, 2, 3), ["a"], figures)) == 3
    assert figures["tokens per second"] == 15.0
    with pytest.raises(CriterionError, match=r"steps \[1, 2, 3\] were trained, not \[1, 2, 3, 4\]"):
        runs.learnt(run, (1, 2, 3, 4), ["a"], {})
    with pytest.raises(CriterionError, match=r"gradient norms of policy 'a'.*nan"):
        runs.learnt(FakeRun(2, policy__a__grad_norm=float("nan")), (1, 2), ["a"], {})  # type: ignore[arg-type]
    with pytest.raises(CriterionError, match=r"gradient norms of policy 'b': \[\]"):
        runs.learnt(run, (1, 2, 3), ["b"], {})


def test_log_probs_of_every_step_must_agree() -> None:
    figures: Figures = {}
    runs.agreed(FakeRun(2).metrics, ["a"], figures)
    assert figures == {"a: sampled against recomputed log-probs": [0.001, 0.001]}
    apart = FakeRun(3, policy__a__rollout_corr__log_ppl_abs_diff=0.03).metrics
    with pytest.raises(CriterionError, match=r"differ by 0\.03"):
        runs.agreed(apart, ["a"], {})


def test_memory_while_asleep_is_the_lowest_of_each_step_after_the_first() -> None:
    samples = [(0.5, 1), (1.5, 900), (1.6, 400), (1.9, 700), (2.5, 950), (2.6, 450), (9.0, 2)]
    assert runs.asleep(samples, [1.0, 2.0, 3.0]) == [400, 450]


def test_memory_is_read_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nfor n in 10 20 '[N/A]' 30; do echo $n; done; exec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    samples: list[tuple[float, int]] = []
    with runs.gpu_memory(samples):
        until = time.monotonic() + 20
        while len(samples) < 3 and time.monotonic() < until:
            time.sleep(0.05)
    assert [used for _, used in samples] == [10, 20, 30]


def test_throughput_leaves_out_the_first_step() -> None:
    assert rate([(1000, 50.0), (100, 2.0), (100, 3.0)]) == 40.0


def test_an_earlier_failure_of_a_run_is_not_repeated(tmp_path: Path) -> None:
    place = Place(tmp_path, 1, gpu=False)
    (place.work / "runs" / "adapter").mkdir(parents=True)
    with pytest.raises(CriterionError, match="run 'adapter' has failed in an earlier check"):
        runs.trained(place, "adapter", {}, {})


@pytest.mark.slow
def test_stock_verl_has_the_settings_of_our_policy_and_nothing_of_the_team(tmp_path: Path) -> None:
    from marl_verl.config.compose import compose
    from marl_verl.config.resolve import resolve
    from marl_verl.team import read_team

    content = runs.recipe(Place(tmp_path, 1, gpu=False), {"both": {"actor": {"optim": {"lr": 3e-4}}}}, pool=False)
    OmegaConf.save({"defaults": ["marl_trainer", "_self_"], **content}, tmp_path / "recipe.yaml")
    config = compose(tmp_path / "recipe.yaml", [], hardware="cpu")
    config = resolve(config, read_team(OmegaConf.to_container(config.marl, resolve=True)))  # type: ignore[arg-type]
    found = stock.stock_config(config, tmp_path, episodes=8)
    assert found.actor_rollout_ref.actor.optim.lr == 3e-4
    assert (found.actor_rollout_ref.rollout.name, found.actor_rollout_ref.rollout.n) == ("vllm", 8)
    assert not {"marl", "policies", "critics"} & set(found)
    assert "marl_verl" not in OmegaConf.to_yaml(found)
    (tmp_path / "data").mkdir()
    task = {"id": "x", "prompt": "digits 3 4 index second", "data": {"digits": ["3", "4"], "index": 2}}
    for split in ("train", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(json.dumps(task) + "\n")
    stock.write_data(tmp_path)
    import pyarrow.parquet

    (row,) = pyarrow.parquet.read_table(found.data.train_files).to_pylist()
    assert row["prompt"] == [{"role": "user", "content": task["prompt"]}]
    assert row["reward_model"]["ground_truth"] == "4"


# The log-prob check, for real


@pytest.mark.slow
@pytest.mark.long  # test_losses.py compares verl's engine with the equations
def test_log_probs_of_verls_engine(tmp_path: Path) -> None:
    code = "import sys; from marl_verl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "selftest", "--only", "log-probs", "--output", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = json.loads((tmp_path / "new" / "report.json").read_text())["checks"]
    found = check["figures"]["passes"]
    cases = [(row["batch"], row["tokens"], row["entropy"]) for row in found]
    assert cases == [
        *((name, n, on) for n in (256, 512) for name in ("packed", "padded") for on in (False, True)),
        *(("fused", n, on) for n in (256, 512) for on in (False, True)),
    ]
    assert max(row["largest"] for row in found) < 1e-4
    needed = {(row["batch"], row["tokens"], row["entropy"]): row["estimate GiB"] for row in found}
    for name, positions in (("packed", 512), ("padded", 1024)):  # 12 bytes of each logit for an entropy with gradient
        more = needed[name, 512, True] - needed[name, 512, False]
        assert more == pytest.approx(12 * positions * 4096 / GIB)
    for tokens in (256, 512):
        assert len({round(row["grad norm"], 4) for row in found if row["tokens"] == tokens}) == 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What every pass of the check measures; nothing is computed."""
    import torch
    from marl_verl_diagnose.selftest import log_probs

    found = {"mean": 0.0, "largest": 0.0, "grad norm": 1.0, "seconds": 0.0, "peak GiB": 0.0}
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(log_probs, "random_model", lambda place: "model")
    monkeypatch.setattr(log_probs, "_reference", lambda *_: torch.zeros(1))
    monkeypatch.setattr(log_probs, "_settings", lambda *_: None)
    monkeypatch.setattr(log_probs, "_worker", lambda *_: None)
    logits = {True: 20.5, False: 8.5}  # bytes
    monkeypatch.setattr(
        log_probs, "_estimate", lambda _, n, how, gpu: n * 151_936 * logits[how["calculate_entropy"]] / GIB
    )
    monkeypatch.setattr(log_probs, "_measured", lambda *_: dict(found))
    monkeypatch.setattr(log_probs, "gc", SimpleNamespace(collect=lambda: None))  # nothing to collect; takes seconds
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 << 30))
    return found


@pytest.mark.parametrize(
    ("gpu", "wrong", "why"),
    [
        (False, {"largest": 2e-4}, r"packed, 256 tokens, entropy False: log-probs differ .* by 0\.0002 \(largest\)"),
        (True, {"mean": 0.03}, r"packed, 4096 tokens, entropy False: log-probs differ .* by 0\.03 \(mean\)"),
        (True, {"grad norm": float("nan")}, "gradient nan"),
        (
            True,
            {"peak GiB": 9.0},
            r"packed, 4096 tokens, entropy False: 9\.0 GiB were needed, and the estimate is 4\.9",
        ),
        (False, {"grad norm": 0.0}, r"gradient 0\.0"),
    ],
)
def test_wrong_log_probs_and_gradients_fail(
    gpu: bool, wrong: dict[str, float], why: str, measured: dict[str, float], tmp_path: Path
) -> None:
    from marl_verl_diagnose.selftest import log_probs

    log_probs.check(Place(tmp_path, 1, gpu), {})
    measured |= wrong
    with pytest.raises(CriterionError, match=why):
        log_probs.check(Place(tmp_path, 1, gpu), {})


def test_a_pass_whose_logits_do_not_fit_is_skipped(measured: dict[str, float], tmp_path: Path) -> None:
    from marl_verl_diagnose.selftest import log_probs

    figures: Figures = {}
    log_probs.check(Place(tmp_path, 1, gpu=True), figures)
    skipped = {
        (row["batch"], row["tokens"], row["entropy"]): row["skipped"] for row in figures["passes"] if "skipped" in row
    }
    assert skipped == {("padded", 16384, True): "about 95 GiB are needed, and the GPU has 80"}
