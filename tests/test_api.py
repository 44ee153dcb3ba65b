"""`from marl_verl import train, evaluate, explain, load_run`: the same checks and results as the commands."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from marl_verl_inspect.explained import ExplainedRows
from omegaconf import DictConfig

from marl_verl import MarlError, RunError, evaluate, explain, load_run, train
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.api import override_lines
from marl_verl.cli.main import main
from marl_verl.config.compose import compose, parse_overrides, with_overrides
from marl_verl.run import prepare
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import RunDir
from marl_verl.run.supervisor import TrainerProcess
from tests.sleeper import NAP, WHO

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "quickstart" / "inventory.yaml"
SMALL = {"marl.task.train_size": 40, "marl.task.test_size": 5}
DOCUMENT: dict[str, Any] = {
    "algorithm": "grpo",
    "options": {},
    "rows": [
        {"uid": "q", "session": s, "index": 0, "turn": 0, "agent": "a", "rewards": {"team": 1.0 - s}, "length": 4}
        for s in range(2)
    ],
}


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose(RECIPE, [*override_lines(SMALL, "verl"), "data.train_batch_size=32"], hardware="cpu")


@pytest.fixture(autouse=True)
def _here(composed: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "compose", lambda recipe, overrides: with_overrides(composed, overrides))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with one stored step."""
    folder = tmp_path / "runs" / "stored-1"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("marl: {run: {seed: 3}}\n")
    (folder / "metrics.jsonl").write_text('{"step": 0, "validation/success": 0.25}\n{"step": 1, "train/suc')
    found = ExplainedRows(DOCUMENT)
    RunDir(folder).rows(12, step_document("grpo", found.algorithm, found.table, found.result, 12))
    saved = folder / "checkpoints" / "step_20"
    saved.mkdir(parents=True)
    (saved / "team.json").write_text("{}")
    return folder


@pytest.mark.parametrize("value", [1e-6, "it's, \\ {odd}: [x]=$", "end\\", {"a": [1.5, None]}])
def test_values_of_overrides_arrive_as_they_are(value: Any) -> None:
    (line,) = override_lines({"some.key": value})
    (change,) = parse_overrides([line])
    assert (change.key_or_group, change.value()) == ("some.key", value)


@pytest.mark.slow
def test_a_process_trains_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        entered.set()
        leave.wait(30)
        raise MarlError("stop")

    monkeypatch.setattr(prepare, "plan_run", wait)

    def stopped() -> None:
        with pytest.raises(MarlError, match="stop"):
            train(RECIPE)

    first = threading.Thread(target=stopped)
    first.start()
    assert entered.wait(30)
    with pytest.raises(MarlError, match="already trains or evaluates a run"):
        evaluate("runs/x")
    leave.set()
    first.join()
    with pytest.raises(MarlError, match="no run in"):
        evaluate("runs/x")


class _Trained:
    """Replaces the trainer's process."""

    failure: BaseException | None = None

    def __init__(self, folder: Path, policies: list[str], module: str, log: Path, lock: int, gpu: bool) -> None:
        self.folder = folder

    def run(self, display: Display) -> None:
        display.event({"event": "phase", "name": "starting"})
        if self.failure is not None:
            raise self.failure
        (self.folder / "summary.json").write_text('{"success_after": 0.5}')


@pytest.fixture
def trained(no_models: None, monkeypatch: pytest.MonkeyPatch) -> type[_Trained]:
    monkeypatch.setattr("marl_verl.run.supervisor.TrainerProcess", _Trained)
    monkeypatch.setattr("marl_verl.api._show_summary", lambda folder, display: None)
    monkeypatch.setattr(_Trained, "failure", None)
    return _Trained


@pytest.mark.slow
def test_a_run_that_fails_raises_with_its_reason(
    trained: type[_Trained], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.log").write_text("Traceback of the trainer\n")
    for mistake, code in ((True, 2), (False, 1)):
        monkeypatch.setattr(trained, "failure", RunError("the trainer was killed", Path("train.log"), mistake))
        assert main(["train", str(RECIPE), *["--debug"] * mistake]) == code
        error = capsys.readouterr().err
        assert error == "marl-verl: the trainer was killed (log: train.log)\n" or mistake
        assert ("Traceback of the trainer\n" in error) == mistake
    with pytest.raises(RunError, match=re.escape("the trainer was killed (log: train.log)")):
        train(RECIPE, progress=False)
    capsys.readouterr()
    monkeypatch.setattr(trained, "failure", KeyboardInterrupt("interrupted. No checkpoint was saved yet"))
    assert main(["train", str(RECIPE)]) == 130
    assert capsys.readouterr().err == ""  # the run has printed it


@pytest.mark.slow
def test_an_error_in_a_callback_ends_a_run_in_a_thread_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real trainer's process and its helpers, and a process that the script starts meanwhile."""
    monkeypatch.chdir(ROOT)  # `python -m tests.sleeper`
    bystanders: list[subprocess.Popen] = []
    raised: list[BaseException] = []

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            bystanders.append(subprocess.Popen([sys.executable, "-c", NAP]))
        if event["event"] == "doing":
            while not (tmp_path / WHO).is_file():
                time.sleep(0.1)
            raise ValueError("enough")

    def work() -> None:
        try:
            TrainerProcess(tmp_path, [], module="tests.sleeper").run(Display.of(report))
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=120)
    (bystander,) = bystanders
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert [str(error) for error in raised] == ["enough"]
    who = json.loads((tmp_path / WHO).read_text())
    assert not any(psutil.pid_exists(pid) for pid in who["pids"])
    assert not Path(who["scratch"]).exists()


def test_a_stored_run(run: Path) -> None:
    found = load_run(run)
    assert found.metrics == [{"step": 0, "validation/success": 0.25}]  # not the line that is being written
    assert found.summary is None
    assert (found.config.marl.run.seed, found.checkpoints) == (3, {20: run / "checkpoints" / "step_20"})
    assert (list(found.rows), explain(found.rows[12])) == ([12], explain(run))
    assert (list(found.episodes), list(found.validations)) == ([], [])
    assert (str(found.folder), repr(found)) == (str(run), f"Run({str(run)!r})")
    assert Path(found) == run


@pytest.mark.slow
def test_what_the_page_shows_runs(
    trained: type[_Trained], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the trainer's process and the evaluation's, which tests/e2e/test_whole.py has."""
    whole, dry, stored = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    (Path() / "recipes").symlink_to(ROOT / "recipes")
    compile(whole, "docs/python.md", "exec")
    exec(compile(dry, "docs/python.md", "exec"), {})
    assert "runs/inventory-1" not in map(str, Path("runs").iterdir())
    run.rename("runs/inventory-1")
    capsys.readouterr()
    exec(compile(stored, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.startswith("3 [20] []\n'runs/inventory-1/rows/step_00012.json.gz' 0.7")
