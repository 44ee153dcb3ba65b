"""How far the weights of a policy moved in a run."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marl_verl_inspect import export
from safetensors.torch import load_file

from marl_verl.config.stored import read_yaml
from marl_verl.files import read_json
from marl_verl.models.count import model_folder
from marl_verl.run.checkpoint import folders


def change(run: Path, policy: str) -> float:
    """||W - W0|| / ||W0|| in the newest checkpoint, of an adapter ||(alpha / r) B A|| / ||W0||; 0 if it has none."""
    saved = Path((folders.complete(run / "checkpoints") or [run])[-1], "policies", policy)
    if not saved.is_dir():
        return 0.0
    model = model_folder(read_yaml(run / "config.yaml")["policies"][policy]["actor_rollout_ref"]["model"]["path"])
    assert model is not None
    before, now = load_file(model / "model.safetensors"), export.assembled(saved)
    moved = [now[name] - tensor for name, tensor in before.items() if name in now]
    if (path := saved / "lora_train_meta.json").is_file():
        adapter = read_json(path)
        pairs = [(name.replace(".lora_A.", ".lora_B."), name) for name in now if ".lora_A." in name]
        moved = [adapter["lora_alpha"] / adapter["r"] * now[b] @ now[a] for b, a in pairs]
    return _norm(moved) / _norm(before.values())


def _norm(tensors: Iterable[Any]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
