"""Export of a policy from a checkpoint to a Hugging Face folder: model, adapter, or adapter merged into its model.

    model     the trained weights
    adapter   B and A of each layer, for the run's base model, in peft's format
    merged    W + (alpha / r) B A in place of W    (LoRA, Hu et al. 2021, arXiv 2106.09685, eq. 3)

Weights have the dtype of training. Uses verl internals: the files of `FSDPCheckpointManager`.
"""

import json
import math
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.config.stored import check_run, read_config, team_of
from marl_verl.errors import MarlError, unknown
from marl_verl.files import read_json
from marl_verl.run.checkpoint import folders, weights
from marl_verl.run.checkpoint.folders import step_of

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
    def of(cls, checkpoint: Path, policy: str, config: Any) -> "Source":
        """A policy in a checkpoint of the run with this config.yaml."""
        settings: Any = OmegaConf.to_container(config.policies[policy].actor_rollout_ref.model)
        return cls(policy, step_of(checkpoint), checkpoint / "policies" / policy, settings)

    @property
    def model(self) -> str:
        """The initial model of training, which is an adapter's base model."""
        path = str(self.settings["path"])
        return str(Path(path).resolve()) if Path(path).is_dir() else path

    @property
    def lora(self) -> dict[str, Any] | None:
        """`r` and `lora_alpha`; None where all weights were trained."""
        return weights.lora(self.folder)


def choose(run: Path, name: str | None, step: int | None) -> Source:
    """Find the given policy and checkpoint. MarlError if they do not exist, or the policy was not trained."""
    check_run(run, "config.yaml")
    config = read_config(run / "config.yaml")
    trained = [policy.name for policy in team_of(config).policies.values() if policy.trained]
    if name is None:
        if len(trained) != 1:
            raise MarlError(f"run '{run}' has trained {', '.join(trained) or 'no policy'}: choose one with --policy")
        name = trained[0]
    if name not in trained:
        raise unknown("trained policy", name, trained)
    return Source.of(folders.intact(folders.choose(run, step), f"policies/{name}/"), name, config)


@dataclass(frozen=True)
class Exported:
    """The result of an export: `kind` is "model", "adapter" or "merged", `base` the base model of an adapter, `size` in
    bytes."""

    policy: str
    step: int
    kind: str
    output: str
    base: str | None
    parameters: int
    dtype: str
    size: int


def export(source: Source, output: Path, merge: bool = False) -> Exported:
    """Write a folder for transformers and vLLM, completely or not at all. `merge`: merge an adapter into its model.

    Raises:
        MarlError: the output cannot be written, there is no base model or no adapter to merge, or a file is missing.
    """
    whole = source.lora is None
    if merge and whole:
        raise MarlError(
            f"policy '{source.policy}' has no adapter to merge: all of its weights were trained. Leave out --merge."
        )
    check_output(output)
    kind, write = ("model", _model) if whole else ("merged", _merged) if merge else ("adapter", _adapter)
    writing = output.parent / f".exporting-{output.name}-{os.getpid()}"
    try:
        writing.mkdir(parents=True)
        write(source, writing)
        parameters, dtype = _content(writing)
        os.replace(writing, output)
    except OSError as error:
        raise MarlError(f"cannot write '{output}': {error}") from error
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    size = sum(path.stat().st_size for path in output.iterdir())
    base = source.model if kind == "adapter" else None
    return Exported(source.policy, source.step, kind, str(output), base, parameters, dtype, size)


def check_output(output: Path) -> None:
    """Raise MarlError unless the output is an empty folder or does not exist."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise MarlError(f"'{output}' exists, and is not an empty folder. Choose another --output.")


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
        model.load_state_dict(weights.assembled(source.folder), assign=True)
        model.tie_weights()
        model.save_pretrained(folder)
    _set_dtype(folder)


def _adapter(source: Source, folder: Path) -> None:
    from safetensors.torch import save_file

    _copy(source.folder / "huggingface", folder, (*WEIGHTS, *OF_MODEL))
    tensors = _adapter_tensors(source)
    _adapter_config(source, list(tensors)).save_pretrained(folder)
    save_file(tensors, folder / weights.ADAPTER, metadata={"format": "pt"})


def _adapter_tensors(source: Source) -> dict[str, Any]:
    """The adapter's weights by their names in peft's files."""
    trained = weights.assembled(source.folder)
    return {re.sub(r"\.default(?=\.|$)", "", name): tensor.contiguous() for name, tensor in trained.items()}


def _adapter_config(source: Source, names: list[str]) -> Any:
    """peft's config of an adapter that verl created, or of the initial adapter."""
    from peft import LoraConfig

    if begun := source.settings.get("lora_adapter_path"):
        config = LoraConfig.from_pretrained(begun)
    else:
        targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in names})
        excluded = source.settings.get("exclude_modules")
        config = LoraConfig(target_modules=targets, exclude_modules=excluded, **(source.lora or {}))
    config.base_model_name_or_path = source.model
    config.inference_mode = True
    return config


def _merged(source: Source, folder: Path) -> None:
    from peft import get_peft_model, set_peft_model_state_dict

    _copy(source.folder / "huggingface", folder, WEIGHTS)
    base = weights.local(source.model)
    if base is None:
        raise MarlError(
            f"policy '{source.policy}' is an adapter of '{source.model}', which is not on this machine. Download it, "
            "or export only the adapter, without --merge."
        )
    tensors = _adapter_tensors(source)
    kind, settings = _auto_class(source, base)
    dtype = next(iter(tensors.values())).dtype  # not the base's dtype: bfloat16 would round the adapter's changes
    model = kind.from_pretrained(base, dtype=dtype, **settings)
    adapted = get_peft_model(model, _adapter_config(source, list(tensors)))
    loaded: Any = set_peft_model_state_dict(adapted, tensors)
    if loaded.unexpected_keys:
        raise MarlError(
            f"the adapter of policy '{source.policy}' does not match '{base}': no '{loaded.unexpected_keys[0]}' there"
        )
    adapted.merge_and_unload().save_pretrained(folder)
    _set_dtype(folder)


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


def _set_dtype(folder: Path) -> None:
    """Correct the dtype in config.json, where verl always writes bfloat16, and remove the attention kernel of training,
    which may not be installed elsewhere."""
    path = folder / "config.json"
    config = read_json(path)
    config.pop("torch_dtype", None)
    config.pop("attn_implementation", None)
    config["dtype"] = _content(folder)[1]
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _content(folder: Path) -> tuple[int, str]:
    """Parameters and most frequent dtype of the weights in a folder, from the files' headers."""
    from safetensors import safe_open

    count: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part = file.get_slice(name)
                count[part.get_dtype()] += math.prod(part.get_shape())
    most, _ = count.most_common(1)[0]
    return count.total(), DTYPES.get(most, most.lower())
