"""The model of each policy: a folder or a name on the hub, a tiny model to make, or an external endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.endpoint import check_endpoint
from marl_verl.errors import MarlError, missing
from marl_verl.models.count import shapes
from marl_verl.models.tiny import TinyModel, folder_of
from marl_verl.options import build
from marl_verl.team import PolicyConfig, TeamConfig

DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's example, which no user has chosen
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def tiny_models(config: DictConfig, team: TeamConfig, marl: dict[str, Any]) -> dict[str, TinyModel]:
    """The tiny models to make; every other policy must have a model that exists."""
    tiny = {}
    for name, policy in team.policies.items():
        where = f"marl.policies.{name}"
        if policy.endpoint is not None:
            check_endpoint(name, policy.endpoint)
        elif policy.tiny is None:
            _check_model(name, model_of(policy, config))
        else:
            path = model_of(policy, None).get("path")
            tiny[name] = tiny_model(where, policy.tiny, path, team, team.agents_of(name), marl["run"]["seed"])
    return tiny


def tiny_model(
    where: str, options: Mapping[str, Any], path: Any, team: TeamConfig, agents: list[str], seed: int
) -> TinyModel:
    """The tiny model that the section `where` asks for.

    Args:
        options: its `tiny` key.
        path: its `model.path`, which must not be set as well.
        agents: whose demonstrations it learns.

    Raises:
        MarlError: a wrong option, a path, or a task set that has no demonstrations.
    """
    if path:
        raise MarlError(f"two models, {where}.tiny and {where}.model.path, are set: set one of them to null")
    given = {"task": team.task.name, "agents": agents, "task_options": team.task.options, "seed": seed}
    made = build(TinyModel, {**given, **options}, f"{where}.tiny")
    folder_of(made)  # asks the task set for a few demonstrations: it may have none
    return made


def model_of(policy: PolicyConfig, config: DictConfig | None) -> dict[str, Any]:
    """The `model` part of a policy: its own keys, over those of `actor_rollout_ref` where a config is given."""
    base = {} if config is None else OmegaConf.to_container(config.actor_rollout_ref.model)
    own = policy.override.get("model") or {}
    if not isinstance(own, dict) or not isinstance(base, dict):
        raise MarlError(f"'marl.policies.{policy.name}.model' must be a mapping such as {{path: ...}}, got {own!r}")
    return {**{str(key): value for key, value in base.items()}, **own}


def _check_model(policy: str, model: dict[str, Any]) -> None:
    """A local folder must have what training and serving read; a name such as Qwen/Qwen3-0.6B is left to the hub."""
    path = model.get("path")
    if not path or path == DEFAULT_MODEL:
        raise MarlError(
            f"policy '{policy}' has no model: set marl.policies.{policy}.model.path or marl.policies.{policy}.tiny"
        )
    folder = local_model(f"policy '{policy}'", path)
    if folder is None:
        return
    words = Path(str(model.get("tokenizer_path") or folder)).expanduser()
    check_files(folder, f"model of policy '{policy}'", words)
    try:
        shapes(folder)
    except MarlError as error:
        raise MarlError(f"model of policy '{policy}': {error}") from error
    described = words / "tokenizer_config.json"
    inside = described.is_file() and "chat_template" in json.loads(described.read_text(encoding="utf-8"))
    if not inside and not any(words.glob("chat_template*")):
        raise MarlError(
            f"model of policy '{policy}': the tokenizer in '{words}' has no chat template: take a chat model"
        )


def check_files(folder: Path, what: str, words: Path | None = None) -> None:
    """MarlError unless a model's folder has what servers read, and `words` a tokenizer."""
    needed = [(folder, "config.json", ("config.json",)), (folder, "weights (*.safetensors)", WEIGHTS)]
    for place, kind, names in [*needed, (words, "tokenizer", TOKENIZERS)]:
        if place is not None and not any(found for name in names for found in place.glob(name)):
            raise MarlError(f"{what}: there is no {kind} in '{place}'")


def local_model(whose: str, path: Any) -> Path | None:
    """The folder of a model on disk; None for one that the hub or a remote store has.

    Raises:
        MarlError: there is no such folder.
    """
    folder = Path(str(path)).expanduser()
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not folder.exists() and not folder.parent.is_dir()
    if on_hub or "://" in str(path):
        return None
    if not folder.is_dir():
        raise missing(f"model folder of {whose}:", folder, folder.parent.glob("*/"))
    return folder
