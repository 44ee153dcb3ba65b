"""`marl-verl export RUN`: a policy from a checkpoint as a Hugging Face folder for transformers and vLLM.

    model     the trained weights
    adapter   B and A of each layer, for the run's base model, in peft's format
    merged    W + (alpha / r) B A in place of W    (LoRA, Hu et al. 2021, arXiv 2106.09685, eq. 3)

Weights have the dtype of training. Uses verl internals: the files of `FSDPCheckpointManager`. A policy's folder in a
checkpoint has `model_world_size_W_rank_R.pt` from each of W ranks. Its tensors are DTensors: the rank's shard along one
dimension. A policy with an adapter saves only the adapter.
"""

import argparse
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.config.stored import check_run, read_config, team_of
from marl_verl.errors import MarlError, check_known, user_error
from marl_verl.files import read_json, write_json
from marl_verl.models.count import model_folder
from marl_verl.run.checkpoint import folders
from marl_verl.run.terminal import harmless, show

EXAMPLES = """
The folder has weights (safetensors), config, tokenizer with chat template and generation config. A policy that trained
an adapter (LoRA) is written as an adapter in peft's format, which names its base model; --merge writes a full model.
Weights keep the precision of training. No process is started, and DIR is written completely or not at all.

  marl-verl export runs/inventory-1 --policy asker --output asker --step 20   default: the latest complete checkpoint
"""

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
OF_MODEL = ("config.json", "generation_config.json")
"""Files that are left out of an adapter's folder, because they mark the folder of a model."""


@dataclass(frozen=True)
class Source:
    """A policy in a checkpoint: the folder that verl saved, and the settings `actor_rollout_ref.model`."""

    policy: str
    step: int
    folder: Path
    settings: dict[str, Any]

    @classmethod
    def of(cls, run: Path, step: int | None, policy: str, config: Any) -> "Source":
        """A policy in the run's checkpoint of a step, or in its newest one. MarlError if it is missing or damaged."""
        checkpoint = folders.intact(folders.choose(run, step), f"policies/{policy}/")
        settings: Any = OmegaConf.to_container(config.policies[policy].actor_rollout_ref.model)
        return cls(policy, folders.step_of(checkpoint), checkpoint / "policies" / policy, settings)

    @property
    def model(self) -> str:
        """The initial model of training, which is an adapter's base model."""
        path = str(self.settings["path"])
        return str(Path(path).resolve()) if Path(path).is_dir() else path

    @property
    def lora(self) -> dict[str, Any] | None:
        """`r`, `lora_alpha` and `task_type` of an adapter; None where all weights were trained."""
        path = self.folder / "lora_train_meta.json"
        meta = read_json(path) if path.is_file() else None
        return meta and {key: meta[key] for key in ("r", "lora_alpha", "task_type")}


def choose(run: Path, name: str, step: int | None) -> Source:
    """Find the given policy and checkpoint. MarlError if they do not exist, or the policy was not trained."""
    check_run(run, "config.yaml")
    config = read_config(run / "config.yaml")
    check_known("trained policy", name, team_of(config).trained)
    return Source.of(run, step, name, config)


def export(source: Source, output: Path, merge: bool = False) -> str:
    """Write a folder for transformers and vLLM, completely or not at all. Returns what it holds. `merge`: merge an
    adapter, if the policy has one, into its base model. MarlError: the output cannot be written."""
    kind, write = f"an adapter of '{source.model}'", _adapter
    if source.lora is None:
        kind, write = "a full model", _model
    elif merge:
        kind, write = "a full model with the adapter merged", _merged
    writing = output.parent / f".exporting-{output.name}-{os.getpid()}"
    try:
        with user_error(f"cannot write '{output}'", OSError):
            writing.mkdir(parents=True)
            write(source, writing)
            os.replace(writing, output)
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return kind


def _model(source: Source, folder: Path) -> None:
    """Write verl's Hugging Face copy or, if the run saved none, the assembled shards."""
    ready = source.folder / "huggingface"
    whole = any(ready.glob("*.safetensors"))
    _copy(ready, folder, () if whole else WEIGHTS)
    if not whole:
        import torch

        kind, settings = _auto_class(source, folder)
        with torch.device("meta"):
            model = kind.from_config(**settings)
        model.load_state_dict(assembled(source.folder), assign=True)
        model.tie_weights()
        model.save_pretrained(folder)
    _correct_config(folder)


def _adapter(source: Source, folder: Path) -> None:
    """Write the adapter in peft's format, with the config that verl gave it, or that of the initial adapter."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    _copy(source.folder / "huggingface", folder, (*WEIGHTS, *OF_MODEL))
    trained = assembled(source.folder)
    tensors = {re.sub(r"\.default(?=\.|$)", "", name): tensor.contiguous() for name, tensor in trained.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    if initial := source.settings.get("lora_adapter_path"):
        config = LoraConfig.from_pretrained(initial)
    else:
        targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
        excluded = source.settings.get("exclude_modules")
        config = LoraConfig(target_modules=targets, exclude_modules=excluded, **(source.lora or {}))
    config.base_model_name_or_path = source.model
    config.inference_mode = True
    config.save_pretrained(folder)


def _merged(source: Source, folder: Path) -> None:
    import torch
    from peft import PeftModel

    base = model_folder(source.model)  # of the hub's name, if the model is not in its cache: transformers downloads it
    _copy(source.folder / "huggingface", folder, WEIGHTS)
    kind, settings = _auto_class(source, base)
    with tempfile.TemporaryDirectory(dir=folder) as adapter:
        _adapter(source, Path(adapter))
        dtype = getattr(torch, _dtype(Path(adapter)))  # not the base's: bfloat16 would round the adapter's changes
        model = PeftModel.from_pretrained(kind.from_pretrained(base, dtype=dtype, **settings), adapter)
    model.merge_and_unload().save_pretrained(folder)
    _correct_config(folder)


def _auto_class(source: Source, folder: Path) -> tuple[Any, dict[str, Any]]:
    """transformers' class for a folder's model, and the arguments of its constructor."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    trust = bool(source.settings.get("trust_remote_code", False))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    seeing = "ForConditionalGeneration" in str((config.architectures or [""])[0])
    kind = transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM
    return kind, {"config": config, "trust_remote_code": trust}


def _copy(ready: Path, folder: Path, leave: tuple[str, ...]) -> None:
    """Copy files (config, tokenizer, chat template, code), except those matching `leave`."""
    for path in sorted(ready.iterdir()):
        if path.is_file() and not any(path.match(pattern) for pattern in leave):
            shutil.copyfile(path, folder / path.name)


def _correct_config(folder: Path) -> None:
    """Correct the dtype in config.json, where verl always writes bfloat16, and remove the attention kernel of training,
    which may not be installed elsewhere."""
    config = read_json(folder / "config.json")
    config.pop("torch_dtype", None)
    config.pop("attn_implementation", None)
    write_json(folder / "config.json", {**config, "dtype": _dtype(folder)})


def _dtype(folder: Path) -> str:
    """The dtype of the weights in a folder, e.g. "float32"."""
    from safetensors import safe_open

    with safe_open(next(folder.glob("*.safetensors")), framework="pt") as file:
        return str(file.get_tensor(next(iter(file.keys()))).dtype).removeprefix("torch.")


def assembled(folder: Path) -> dict[str, Any]:
    """The tensors of a policy's folder in a checkpoint, by name, in the dtype of training: `verl.model_merger` would
    convert them to bfloat16. MarlError if a shard cannot be read or is not in FSDP's format."""
    from torch.distributed.tensor import DTensor

    world = int(read_json(folder / "fsdp_config.json")["world_size"])
    # with several nodes, all ranks must save to a shared folder
    shards = [folders.load_pickle(folder / f"model_world_size_{world}_rank_{rank}.pt") for rank in range(world)]
    # a tensor that is not a DTensor is a buffer, equal on every rank
    return {
        name: _joined([shard[name] for shard in shards], name, folder) if isinstance(first, DTensor) else first
        for name, first in shards[0].items()
    }


def _joined(parts: list[Any], name: str, folder: Path) -> Any:
    """Join a tensor from the ranks' DTensors. With replicas (a 2D mesh) the ranks of the first replica suffice."""
    import torch

    mesh, placement = parts[0].device_mesh.mesh, parts[0].placements[-1]
    local_parts = [parts[rank]._local_tensor for rank in mesh.reshape(-1, mesh.shape[-1])[0].tolist()]
    whole = local_parts[0] if placement.is_replicate() else None
    if placement.is_shard():
        whole = torch.cat(local_parts, dim=placement.dim)
    if whole is None or whole.shape != parts[0].shape:
        raise MarlError(f"tensor '{name}' in '{folder}' has an unsupported sharding: {placement}")
    return whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--policy", metavar="NAME", required=True, help="a trained policy")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint step (default: the latest complete one)")
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")


def run(options: argparse.Namespace) -> int:
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        raise MarlError(f"'{options.output}' exists, and is not an empty folder. Choose another --output.")
    source = choose(options.folder, options.policy, options.step)
    kind = export(source, options.output, options.merge)
    show(harmless(f"wrote '{options.output}': policy {source.policy} of step {source.step} as {kind}"))
    return 0
