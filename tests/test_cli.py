"""The command line: every user error is one line on standard error with exit code 2, and nothing is written."""

import json
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from marl_verl import extensions
from marl_verl.cli.main import COMMANDS, main, registered
from marl_verl.config.compose import compose, with_overrides
from marl_verl.errors import MarlError
from marl_verl.run import prepare
from marl_verl.run.checkpoint.folders import manifest
from marl_verl.run.prepare import make_run_directory
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import locked
from marl_verl.run.terminal import termination_as_interrupt
from tests.run_folder import made_run

pytestmark = pytest.mark.slow  # whole configs are composed, a quarter of a second each

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"
# what these tests rely on, whatever the recipe says
SMALL = ["marl.task.train_size=40", "marl.task.test_size=5", "trainer.total_training_steps=30"]
SMALL += ["marl.policies.holder.tiny.steps=200", "marl.policies.asker.tiny.steps=200"]
SMALL += ["actor_rollout_ref.actor.optim.lr=5e-4", "data.train_batch_size=32"]
Refused = Callable[..., str]


@pytest.fixture(scope="session")
def composed() -> DictConfig:
    return compose(RECIPE, [*SMALL, "marl.run.backend=verl"], hardware="cpu")


@pytest.fixture(autouse=True)
def _quick(composed: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to stand in, and the quickstart recipe composed once; tests/test_config.py has the composing."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(prepare, "compose", lambda recipe, overrides: with_overrides(composed, overrides))

    def no_trainer(*_: object, **__: object) -> None:
        pytest.fail("a trainer was started: this command had to be refused, or lacks --dry-run")

    monkeypatch.setattr("marl_verl.run.supervisor.TrainerProcess", no_trainer)


def test_a_mistaken_command(refused: Refused) -> None:
    assert "unknown command 'trian': did you mean 'train'?" in refused("trian")
    assert "unknown option '--dry-rum'" in refused("train", "r.yaml", "--dry-rum")
    assert "not a command: marl-verl train r.yaml a=b" in refused("r.yaml", "a=b")
    with pytest.raises(MarlError, match=r"'my.py' is a plugin file, not a recipe: .* train RECIPE --plugin my.py"):
        compose(Path("my.py"), [])
    assert f"comes first: marl-verl train {RECIPE} a=b --dry-run" in refused("train", "a=b", str(RECIPE), "--dry-run")
    folder = str(RECIPE.parent)
    assert f"install it with `pip install -e {folder}`" in refused("plugins", "--plugin", folder)
    assert refused("plugins", "reviw").count("--plugin FILE") == 1


def test_a_dry_run_prints_the_team_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = ["marl.policies.holder.model.lora_rank=4", "marl.policies.holder.model.target_modules=[q_proj,v_proj]"]
    pool = ["marl.pools.both.gpus=2", "marl.policies.holder.pool=both", "marl.policies.asker.pool=both"]
    loss = ["marl.policies.holder.loss=gspo", "marl.policies.holder.actor.use_kl_loss=true"]
    assert main(["train", str(RECIPE), "--dry-run", "marl.policies.asker.frozen=true", *adapter, *pool, *loss]) == 0
    output = capsys.readouterr().out
    assert "agent   holder acts with policy holder" in output
    model = r"tiny qwen3 model, 200 warm-up steps[^;]*"  # with its parameters if it was made before
    assert re.search(rf"policy  asker: {model}; frozen", output)
    assert re.search(rf"policy  holder: {model}; LoRA rank 4 trained, gspo, updates per batch: 1, lr", output)
    assert "KL 0.001 low_var_kl" in output
    assert "devices pool both: 1 x 2 slots for holder, asker" in output
    assert "task    inventory (40 train, 5 test), workflow inventory" in output
    assert "group: [uid, turn, agent, slot]" in output
    assert list(Path().iterdir()) == []


# the run directory


@pytest.fixture
def run(no_models: None) -> Path:
    """A run directory as `train` makes it, with a checkpoint at step 20."""
    return made_run(RECIPE, 20)


def test_two_runs_that_start_at_once_get_two_numbers(no_models: None) -> None:
    plans = [prepare.plan_run(RECIPE, []), prepare.plan_run(RECIPE, [])]
    folders = [make_run_directory(plan, Display()) for plan in plans]
    assert folders == [Path("runs/inventory-1"), Path("runs/inventory-2")]
    for folder in folders:
        assert OmegaConf.load(folder / "config.yaml").marl.run.folder == str(folder.resolve())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # no other user reads it
    named = [prepare.plan_run(RECIPE, ["marl.run.name=mine"]) for _ in range(2)]
    make_run_directory(named[0], Display())
    with pytest.raises(MarlError, match="run directory 'runs/mine' exists"):
        make_run_directory(named[1], Display())


def test_a_run_in_use_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (run / "config.yaml").read_bytes()
    with locked(run):
        assert main(["train", "--resume", str(run), "trainer.total_training_steps=50"]) == 2
    printed = capsys.readouterr()
    assert f"run directory '{run}' is in use by process {os.getpid()} on " in printed.err
    assert not printed.out  # refused before it is planned
    assert (run / "config.yaml").read_bytes() == config


def test_a_run_is_continued_with_its_own_config(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["trainer.total_training_steps=50", "marl.policies.asker.actor.optim.lr=1e-2"]
    plan = prepare.continue_run(run, overrides)
    assert plan.resumed
    make_run_directory(plan, Display())
    config: Any = OmegaConf.load(run / "config.yaml")
    assert config.trainer.resume_mode == "auto"
    optims = [config.policies[name].actor_rollout_ref.actor.optim for name in ("holder", "asker")]
    assert [optim.total_training_steps for optim in optims] == [50, 50]
    assert [optim.lr for optim in optims] == [5e-4, 1e-2]
    first, second = json.loads((run / "starts.json").read_text())
    assert (first["arguments"], second["arguments"]) == ([str(RECIPE)], ["--resume", str(run), *overrides])
    assert (run / "checkpoints" / "step_20" / "team.json").is_file()


def test_a_run_may_go_on_with_another_backend(run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "trainer.total_training_steps=50"
    assert prepare.continue_run(run, [steps]).resolved.marl.run.backend == "verl"
    make_run_directory(prepare.continue_run(run, [steps, "marl.run.backend=local"]), Display.of(False))
    plan = prepare.continue_run(run, [steps])  # the backend of the last start
    assert (plan.config.marl.run.backend, plan.resolved.marl.run.backend) == ("local", "local")
    assert prepare.continue_run(run, [steps, "marl.run.backend=verl"]).resolved.marl.run.backend == "verl"
    arguments = ("train", "--resume", str(run), steps, "--local", "trainer.n_gpus_per_node=2")
    assert "but with marl.run.backend=local it has one" in refused(*arguments)
    installed = extensions.extension
    monkeypatch.setattr(extensions, "extension", lambda *key: None if key[0] == "backend" else installed(*key))
    message = "marl.run.backend=local is not installed: pip install 'marl-verl[local]' adds it"
    assert message in refused("train", "--resume", str(run), steps, "--local")


def test_what_cannot_be_continued(run: Path, refused: Refused) -> None:
    assert "is at step 20 already" in refused("train", "--resume", str(run), "trainer.total_training_steps=20")
    more = "trainer.total_training_steps=50", "trainer.total_epochs=30"
    assert "trainer.total_epochs=30 of 40 tasks ends at step 30" in refused("train", "--resume", str(run), *more)
    assert "marl.run.seed (0 -> 1)" in refused("train", "--resume", str(run), "marl.run.seed=1")
    assert "'recipe.yaml' is not of the form" in refused("train", "--resume", str(run), "recipe.yaml")
    assert "did you mean 'runs/inventory-1'?" in refused("train", "--resume", "runs/inventry-1")
    (run / "checkpoints" / "step_20" / "team.json").write_text("{")
    assert "is damaged" in refused("train", "--resume", str(run))
    (run / "checkpoints" / "step_20" / "team.json").unlink()
    assert "is damaged" in refused("train", "--resume", str(run))


class _Planted:
    """Written to a file, an object whose loading by pickle creates a folder."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("planted",)


@pytest.mark.parametrize("dump", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
@pytest.mark.parametrize("file", ["random.pt", "policies/asker/model_world_size_1_rank_0.pt"])
def test_a_checkpoint_with_code_is_not_loaded(run: Path, refused: Refused, file: str, dump: Any) -> None:
    saved = run / "checkpoints" / "step_20"
    (saved / file).parent.mkdir(parents=True, exist_ok=True)
    dump({"a": _Planted()}, saved / file)
    team = json.loads((saved / "team.json").read_text())
    files = {name: found for name, found in manifest(saved).items() if name != "team.json"}
    (saved / "team.json").write_text(json.dumps({**team, "files": files}))
    message = refused("train", "--resume", str(run), "trainer.total_training_steps=50")
    assert f"{file}' cannot be loaded safely: " in message
    assert not Path("planted").exists()


# in a process of its own

HEAVY = ("torch", "ray", "verl", "vllm", "transformers", "openai", "httpx", "anthropic", "mcp", "uvicorn")
HEAVY += ("agents", "langgraph", "langchain_openai", "pydantic_ai", "autogen_agentchat", "smolagents")
HEAVY += ("textarena", "pettingzoo", "verifiers", "nltk", "pygame")


LIGHT = ("hydra", "omegaconf", "matplotlib", "rich", "pandas", "scipy")
IMPORTED: dict[str, tuple[str, ...]] = {  # what a process does one after the other -> what it must not have imported
    "import marl_verl": (*LIGHT, "numpy", "asyncio"),
    "marl_verl.cli.main.main(['--help'])": (*LIGHT, "numpy"),
    "import marl_verl.plugins; marl_verl.plugins.discover('').get('algorithms', 'grpo')": LIGHT,
    **{f"marl_verl.cli.main.main({line!r})": more for line, more in (
        (["plugins"], LIGHT),
        (["explain", str(RECIPE.parents[2] / "examples" / "trees.json"), "--json"], LIGHT),
        (["train", str(RECIPE), "--dry-run"], ()),
    )},
}  # fmt: skip


def test_nothing_heavy_is_imported() -> None:
    code = "import sys\n"
    for line, more in IMPORTED.items():
        line = f"import marl_verl.cli.main\ntry:\n    {line}\nexcept SystemExit:\n    pass" if "main(" in line else line
        code += f"{line}\nprint('HEAVY', [name for name in {HEAVY + more!r} if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert [line for line in done.stdout.splitlines() if "HEAVY" in line] == ["HEAVY []"] * len(IMPORTED), done.stderr


def test_an_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from marl_verl.cli import train

    def fails(options: object) -> int:
        raise TypeError("no such\nthing")

    monkeypatch.setattr(train, "run", fails)
    assert main(["train", "recipe.yaml"]) == 1
    assert re.fullmatch(r"marl-verl: TypeError: no such thing \(.*test_cli.py, line \d+\).*\n", capsys.readouterr().err)


@pytest.mark.parametrize("command", [*COMMANDS, *registered()])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    output = capsys.readouterr().out
    assert end.value.code == 0
    assert "%%" not in output, "argparse reads % in the help of an option, and not in a description"
    assert f"usage: marl-verl {command}" in output
    assert len(output.splitlines()) > 5


def test_sigterm_ends_a_command_as_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from marl_verl.cli import main, train

    def preparing(options: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        return 0

    def before(*_: object) -> None:
        """Without the handler of the command, it would sleep and succeed."""

    previous = signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(train, "run", preparing)
    try:
        assert main.main(["train", "recipe.yaml"]) == 130
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert capsys.readouterr().err == "marl-verl: interrupted\n"


def test_a_signal_that_is_ignored_remains_ignored() -> None:
    """As under nohup: a run goes on when its terminal is closed."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)
