"""Exports of policies that verl has saved: its own worker, FSDP2 on gloo, one rank, in this process."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from marl_verl_inspect.export import assembled
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_verl.cli.main import main
from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.run.checkpoint import folders
from tests.verl_actor import cpu_verl, make_model

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  agents:
    {a: {policy: whole}, b: {policy: adapter}, c: {policy: still}, d: {policy: out}, e: {policy: shards}}
  policies:
    whole: {}
    shards: {actor: {checkpoint: {save_contents: [model, optimizer, extra]}}}
    adapter: {model: {lora_rank: 4, lora_alpha: 8}}
    still: {frozen: true}
    out: {endpoint: {url: "http://there:1/v1", model: big}}
"""

TOKENS = [[3, 9, 4, 12, 7, 5, 11, 6]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a policy that trained all of its weights and one with an adapter, both moved, at steps 4 and 8."""
    root = tmp_path_factory.mktemp("runs")
    make_model(root / "model")
    recipe = root / "recipe.yaml"
    recipe.write_text(RECIPE)
    overrides = [
        f"marl.policies.{name}.model.path={root / 'model'}" for name in ("whole", "shards", "adapter", "still")
    ]
    config = with_overrides(compose(recipe, [], hardware="cpu"), overrides)
    resolved = resolve(config, team_of(config))
    folder = root / "mine-1"
    folder.mkdir()
    OmegaConf.save(resolved, folder / "config.yaml")
    with cpu_verl():
        from verl.workers.engine_workers import ActorRolloutRefWorker

        for name in ("whole", "shards", "adapter"):
            worker: Any = ActorRolloutRefWorker(config=resolved.policies[name].actor_rollout_ref, role="actor")
            worker.init_model()
            for step in (4, 8):
                random = torch.Generator().manual_seed(step)
                for parameter in worker.actor.engine.module.parameters():
                    if parameter.requires_grad:
                        part = parameter.detach().to_local()
                        part.add_(0.05 * torch.randn(part.shape, generator=random))
                saved = folder / "checkpoints" / f"step_{step}" / "policies" / name
                worker.save_checkpoint(str(saved), None, step, None)
            (root / f"{name}.json").write_text(json.dumps(_log_probs_of_verl(worker)))
            worker.load_checkpoint(str(folder / "checkpoints" / "step_4" / "policies" / name), None, False)
            (root / f"{name}-loaded.json").write_text(json.dumps(_log_probs_of_verl(worker)))
    for saved in (folder / "checkpoints").iterdir():
        team_file = {"step": folders.step_of(saved), "fingerprint": {}, "plugins": {}, "files": folders.manifest(saved)}
        (saved / "team.json").write_text(json.dumps(team_file))
    return folder


def _log_probs_of_verl(worker: Any) -> list[float]:
    """What the module of training gives for TOKENS, at the step that was saved last."""
    module = worker.actor.engine.module
    module.eval()
    with torch.no_grad():
        logits = module(input_ids=torch.tensor(TOKENS)).logits
    return _chosen(logits)


def _chosen(logits: Any) -> list[float]:
    found = torch.log_softmax(logits[0, :-1].float(), dim=-1)
    return [float(found[place, token]) for place, token in enumerate(TOKENS[0][1:])]


def _log_probs(folder: Path) -> list[float]:
    """What plain transformers gives."""
    with torch.no_grad():
        return _chosen(AutoModelForCausalLM.from_pretrained(folder)(input_ids=torch.tensor(TOKENS)).logits)


def _export(run: Path, policy: str, output: Path, *arguments: str) -> int:
    return main(["export", str(run), "--policy", policy, "--output", str(output), *arguments])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "more", "kind"),
    [
        ("whole", [], "a full model"),
        ("shards", [], "a full model"),
        ("adapter", [], "an adapter of"),
        ("adapter", ["--merge"], "a full model with the adapter merged"),
    ],
)
def test_it_gives_the_log_probs_of_training(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, more: list[str], kind: str
) -> None:
    assert _export(run, policy, tmp_path / "new" / "out", *more) == 0
    assert f"policy {policy} of step 8 as {kind}" in capsys.readouterr().out
    folder = tmp_path / "new" / "out"
    expected = json.loads((run.parent / f"{policy}.json").read_text())
    assert _log_probs(folder) == pytest.approx(expected, abs=1e-5)
    before = _log_probs(run.parent / "model")
    assert max(abs(one - other) for one, other in zip(before, expected, strict=True)) > 0.01
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"out"}
    if kind == "an adapter of":
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(run.parent / "model")
    else:
        config = json.loads((folder / "config.json").read_text())
        assert config["dtype"] == "float32"
        assert config["architectures"] == ["Qwen3ForCausalLM"]
        assert "attn_implementation" not in config
        assert (folder / "generation_config.json").is_file()


@pytest.mark.slow
def test_an_adapter_is_merged_in_the_dtype_of_training_whatever_its_base_says(run: Path, tmp_path: Path) -> None:
    path = run.parent / "model" / "config.json"
    config = path.read_text()
    path.write_text(json.dumps({**json.loads(config), "dtype": "bfloat16"}))  # as that of most models
    try:
        assert _export(run, "adapter", tmp_path / "out", "--merge") == 0
    finally:
        path.write_text(config)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    expected = json.loads((run.parent / "adapter.json").read_text())
    assert _log_probs(tmp_path / "out") == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_shards_of_several_ranks_are_put_together(tmp_path: Path, replicas: int) -> None:
    world, outer = 2 * replicas, [Replicate()] * (replicas - 1)
    whole = {"uneven": torch.arange(15.0).view(3, 5), "columns": torch.arange(8.0).view(2, 4), "same": torch.ones(3)}
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    names = ("fsdp",) if replicas == 1 else ("ddp", "fsdp")
    mesh = init_device_mesh("cpu", (2,) if replicas == 1 else (2, 2), mesh_dim_names=names)

    def shard(name: str, dim: int, rank: int) -> Any:
        tensor = whole[name]
        part = tensor.chunk(2, dim)[rank % 2].clone()
        places = [*outer, Shard(dim)]
        return DTensor.from_local(part, mesh, places, run_check=False, shape=tensor.shape, stride=tensor.stride())

    for rank in range(world):
        state = {"uneven": shard("uneven", 0, rank), "columns": shard("columns", 1, rank), "same": whole["same"]}
        torch.save(state, tmp_path / f"model_world_size_{world}_rank_{rank}.pt")
    torch.distributed.destroy_process_group()
    (tmp_path / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    found = assembled(tmp_path)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {n: t.tolist() for n, t in whole.items()}
    (tmp_path / f"model_world_size_{world}_rank_1.pt").unlink()
    with pytest.raises(MarlError, match=r"rank_1\.pt' cannot be loaded"):
        assembled(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "whle"], "unknown trained policy 'whle': did you mean 'whole'?"),
        (["--policy", "still"], "unknown trained policy 'still': valid: "),
    ],
)
def test_what_cannot_be_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["export", str(run), "--output", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Any, target: Any) -> None:
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert _export(run, "whole", tmp_path / "out") == 2
    assert f"cannot write '{tmp_path / 'out'}': [Errno 28] No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
