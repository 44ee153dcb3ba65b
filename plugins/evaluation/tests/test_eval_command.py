"""`marl-verl eval` on the command line: error messages, and the files that a run keeps of an evaluation."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_evaluation.request import RESULT, Request
from omegaconf import DictConfig, OmegaConf
from safetensors.numpy import save_file

from marl_verl.cli.main import main
from marl_verl.config.compose import compose, with_overrides
from marl_verl.run import prepare, supervisor
from marl_verl.run.checkpoint.folders import manifest
from marl_verl.run.progress import Display

pytestmark = pytest.mark.slow  # whole configs are composed and resolved

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart" / "inventory.yaml"
SMALL = ["marl.task.train_size=40", "marl.task.test_size=6", "marl.run.seed=5"]
Refused = Callable[..., str]


@pytest.fixture(scope="session")
def composed() -> DictConfig:
    return compose(RECIPE, [*SMALL, "marl.run.backend=verl"], hardware="cpu")


class _Played:
    """Fake of the evaluation's process: writes the same files and records its arguments."""

    seen: dict[str, Any]

    def __init__(self, folder: Path, policies: list[str], module: str, log: Path, lock: int, gpu: bool) -> None:
        self.folder, self.log = folder, log
        _Played.seen = {"policies": policies, "module": module}

    def run(self, display: Display) -> None:
        request = Request.read(self.folder)
        config: Any = OmegaConf.load(self.folder / "config.yaml")
        _Played.seen |= {"request": request, "config": config, "folder": self.folder}
        self.log.write_text("log\n")
        (self.folder / "episodes").mkdir()
        (self.folder / "episodes" / f"step_{request.step:05d}.jsonl").write_text("{}\n")
        display.event({"event": "phase", "name": "starting policies"})
        display.event({"event": "playing", "sampled": False, "done": 0, "tasks": 6})
        display.event({"event": "playing", "sampled": False, "done": 6, "tasks": 6})
        agent = {"rewards": {"team": 0.5}, "response_length": 4.0, "read_length": 1.5, "invalid": 0.25, "turns": 1.0}
        agents = {
            name: {"policy": assignment.source, "weights": assignment.describe(), **agent, "cut_off": None, "tokens": 9}
            for name, assignment in request.assignments.items()
        }
        result = {
            **{"step": request.step, "eval_tasks": 6, "success": 0.5, "success_interval": [0.2, 0.8]},
            **{"episodes": 8, "avg@8": 0.25, "avg@8_interval": [0.125, 0.375], "agents": agents},
            **{"tokens_per_second": 1234.5, "answer_seconds": None, "attempts": 54},
            **{"failed": 2, "failed_reasons": {"timeout": 2}, "tokens": 1234},
        }
        (self.folder / RESULT).write_text(json.dumps(result))


@pytest.fixture(scope="module")
def made(composed: DictConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as `train` makes it, with checkpoints at steps 20 and 40, and the models it began with."""
    place = tmp_path_factory.mktemp("made")
    models = {name: _model(place / "cache" / name) for name in ("holder", "asker")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(prepare, "compose", lambda recipe, overrides: with_overrides(composed, overrides))
        patch.setattr(
            "marl_verl_tiny.model.ensure_all", lambda specs, progress: [models[spec.agents[0]] for spec in specs]
        )
        folder = prepare.make_run_directory(prepare.plan_run(RECIPE, []), Display())
    for step in (20, 40):
        for name in models:
            _model(place / folder / "checkpoints" / f"step_{step}" / "policies" / name / "huggingface")
        saved = place / folder / "checkpoints" / f"step_{step}"
        (saved / "team.json").write_text(
            json.dumps({"step": step, "fingerprint": {}, "plugins": {}, "files": manifest(saved)})
        )
    return place


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, seen from the folder that it was made in, and a process that does not really play."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "TrainerProcess", _Played)
    return Path("runs") / "inventory-1"


def _model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def test_options_without_an_effect(refused: Refused, run: Path) -> None:
    assert "--k is of the sampled episodes" in refused("eval", run, "--greedy-only", "--k", "1")
    assert "--swap asker=asker has no effect" in refused("eval", run, "--swap", "asker=asker")
    for name in ("--tasks", "--episodes", "--at-once"):
        assert f"{name} must be 1 or more, got 0" in refused("eval", run, name, "0")


def test_tasks_that_were_trained_on(refused: Refused, run: Path) -> None:
    trained = run / "data" / "train.jsonl"
    assert "40 of the tasks were used in training, e.g. " in refused("eval", run, f"marl.task.test_file={trained}")


def test_the_latest_checkpoint_is_evaluated_with_frozen_policies(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--tasks", "4", "--untrained", "asker"]) == 0
    seen = _Played.seen
    config, request = seen["config"], seen["request"]
    assert seen["module"] == "marl_verl_evaluation.run"
    assert (request.step, request.options.sampled, request.options.ks) == (40, 8, [1, 4, 8])
    assert config.marl.run.seed == 5
    assert seen["policies"] == list(config.policies) == ["holder", "asker-untrained"]
    paths = [config.policies[name].actor_rollout_ref.model.path for name in seen["policies"]]
    assert paths[0] == str((run / "checkpoints/step_40/policies/holder/huggingface").resolve())
    assert paths[1].endswith("cache/asker")
    assert all(policy.frozen for policy in config.marl.policies.values())
    assert (config.marl.validation.options.episodes, config.data.val_batch_size) == (8, 4)
    assert config.data.val_files == config.data.train_files == str(seen["folder"].resolve() / "data" / "test.jsonl")
    printed = capsys.readouterr().out
    assert "agent   asker acts with policy asker, before training" in printed
    assert "6 of 6 tasks evaluated greedily" in printed
    assert "50.0%" in printed
    assert "(20.0 to 80.0)" in printed
    assert "2 of 54 attempts failed, 2 timeout; 1,234 tokens" in printed


def test_a_recipe_is_evaluated_without_training(
    made: Path,
    composed: DictConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "TrainerProcess", _Played)
    monkeypatch.setattr(prepare, "compose", lambda recipe, overrides: with_overrides(composed, overrides))
    models = {name: made / "cache" / name for name in ("holder", "asker")}
    monkeypatch.setattr(
        "marl_verl_tiny.model.ensure_all", lambda specs, progress: [models[spec.agents[0]] for spec in specs]
    )
    assert main(["eval", str(RECIPE), "data.train_batch_size=16", "--greedy-only", "--at-once", "1"]) == 0
    config, request = _Played.seen["config"], _Played.seen["request"]
    assert (request.step, request.options.sampled, request.options.at_once) == (0, 0, 1)
    assert config.data.train_batch_size == 16  # a key of training
    assert all(policy.frozen for policy in config.marl.policies.values())
    assert config.policies.asker.actor_rollout_ref.model.path.endswith("cache/asker")
    assert [path.name for path in Path("runs/inventory-1/evaluations").glob("*.json")] == ["step_0.json"]
    assert "agent   asker acts with policy asker, before training" in capsys.readouterr().out


def test_an_adapter_is_merged_before_it_is_served(run: Path) -> None:
    saved = run / "checkpoints" / "step_40"
    policy = saved / "policies" / "asker"
    (policy / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}))
    assert main(["eval", str(run)]) == 0
    config, request, folder = (_Played.seen[key] for key in ("config", "request", "folder"))
    assert list(request.exports) == ["asker"]
    assert (request.exports["asker"].folder, request.exports["asker"].lora["r"]) == (policy, 4)
    served = config.policies.asker.actor_rollout_ref.model
    assert (served.path, served.lora_rank) == (str(folder / "models" / "asker"), 0)
    assert not folder.exists()
    (policy / "lora_train_meta.json").unlink()
    (policy / "huggingface" / "model.safetensors").unlink()  # a run that saves shards only
    team = json.loads((saved / "team.json").read_text())
    (saved / "team.json").write_text(json.dumps({**team, "files": manifest(saved)}))
    assert main(["eval", str(run)]) == 0
    assert _Played.seen["request"].exports["asker"].lora is None


def test_a_script_may_act_in_place_of_a_trained_policy(run: Path, refused: Refused) -> None:
    assert main(["eval", str(run), "marl.policies.asker.script=kuhn-equilibrium"]) == 0
    assert _Played.seen["config"].marl.policies.asker == {"script": "kuhn-equilibrium"}
    assert _Played.seen["request"].assignments["asker"].weights == "external"
    assert "policy 'asker': a person" in refused("eval", run, "marl.policies.asker.script=human")


def test_template_and_stop_strings_are_those_of_training(run: Path) -> None:
    composed = OmegaConf.load(run / prepare.COMPOSED)
    composed.marl.policies.asker.update(
        stop=["4"], apply_chat_template_kwargs={"thinks": False}, model={"custom_chat_template": "{{ messages }}"}
    )
    composed.marl.agents.holder.sampling = {"stop": ["9"]}
    OmegaConf.save(composed, run / prepare.COMPOSED)
    assert main(["eval", str(run), "marl.agents.holder.sampling.stop=[END]"]) == 0
    config = _Played.seen["config"]
    own, policies = config.policies.asker, config.marl.policies
    assert own.data.apply_chat_template_kwargs == {"thinks": False}
    assert config.policies.holder.data.apply_chat_template_kwargs == {}
    assert own.actor_rollout_ref.model.custom_chat_template == "{{ messages }}"
    assert policies.asker.stop == ["4"]
    assert policies.holder.get("stop") is None
    assert config.marl.agents.holder.sampling.stop == ["END"]


def test_a_run_keeps_the_result(run: Path) -> None:
    assert main(["eval", str(run), "--swap", "asker=holder", "--step", "20", "--seed", "9"]) == 0
    document = json.loads((run / "evaluations" / "step_20_swap-asker-holder.json").read_text())
    assert (document["success"], document["eval_tasks"], set(document["agents"])) == (0.5, 6, {"holder", "asker"})
    assert (document["step"], document["settings"]["swap"]) == (20, [["asker", "holder"]])
    assert document["agents"]["asker"]["policy"] == "holder"
    assert document["seconds"] > 0
    assert document["settings"]["seed"] == 9
    assert _Played.seen["config"].marl.run.seed == 9
    kept = run / "evaluations"
    names = ["step_20_swap-asker-holder.json", "step_20_swap-asker-holder.jsonl", "step_20_swap-asker-holder.log"]
    assert sorted(path.name for path in kept.iterdir()) == names
