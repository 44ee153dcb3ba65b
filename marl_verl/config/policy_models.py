"""The model of each policy: a folder or a name on the hub, a tiny model to make, or an external endpoint."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from marl_verl.errors import MarlError, missing
from marl_verl.models.count import shapes
from marl_verl.models.tiny import TinyModel, folder_of
from marl_verl.options import build
from marl_verl.team import Endpoint, PolicyConfig, TeamConfig

DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's example, which no user has chosen
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
NO_KEY = "none"  # the `openai` package wants a key, also for a server that wants none


def tiny_models(config: DictConfig, team: TeamConfig, marl: dict[str, Any]) -> dict[str, TinyModel]:
    """The tiny models to make; every other policy must have a model that exists, or an endpoint that can be right."""
    tiny = {}
    for name, policy in team.policies.items():
        if policy.endpoint is not None:
            check_endpoint(name, policy.endpoint)
        elif policy.tiny is None:
            _check_model(name, model_of(policy, config))
        else:
            path, agents = model_of(policy, None).get("path"), team.agents_of(name)
            tiny[name] = tiny_model(f"marl.policies.{name}", policy.tiny, path, team, agents, marl["run"]["seed"])
    return tiny


def tiny_model(
    where: str, options: Mapping[str, Any], path: Any, team: TeamConfig, agents: list[str], seed: int
) -> TinyModel:
    """The tiny model that section `where` asks for. MarlError: an option, a `path` as well, or no demonstrations."""
    if path:
        raise MarlError(f"two models, {where}.tiny and {where}.model.path, are set: set one of them to null")
    given = {"task": team.task.name, "agents": agents, "task_options": team.task.options, "seed": seed}
    made = build(TinyModel, {**given, **options}, f"{where}.tiny")
    folder_of(made)  # asks the task set for a few demonstrations: it may have none
    return made


def model_of(policy: PolicyConfig, config: DictConfig | None) -> dict[str, Any]:
    """The `model` part of a policy: its own keys, over those of `actor_rollout_ref` where a config is given."""
    base: Any = {} if config is None else OmegaConf.to_container(config.actor_rollout_ref.model)
    own = policy.override.get("model") or {}
    if not isinstance(own, dict):
        raise MarlError(f"'marl.policies.{policy.name}.model' must be a mapping such as {{path: ...}}, got {own!r}")
    return {**base, **own}


def _check_model(policy: str, model: dict[str, Any]) -> None:
    """A local folder must have what training and serving read; a name such as Qwen/Qwen3-0.6B is left to the hub."""
    path, whose = model.get("path"), f"model of policy '{policy}'"
    if not path or path == DEFAULT_MODEL:
        remedy = f"set marl.policies.{policy}.model.path or marl.policies.{policy}.tiny"
        raise MarlError(f"policy '{policy}' has no model: {remedy}")
    folder = local_model(f"policy '{policy}'", path)
    if folder is None:
        return
    words = Path(str(model.get("tokenizer_path") or folder)).expanduser()
    check_files(folder, whose, words)
    try:
        shapes(folder)
    except MarlError as error:
        raise MarlError(f"{whose}: {error}") from error
    described = words / "tokenizer_config.json"
    inside = described.is_file() and "chat_template" in json.loads(described.read_text(encoding="utf-8"))
    if not inside and not any(words.glob("chat_template*")):
        raise MarlError(f"{whose}: the tokenizer in '{words}' has no chat template: take a chat model")


def check_files(folder: Path, what: str, words: Path | None = None) -> None:
    """MarlError unless a model's folder has what servers read, and `words` a tokenizer."""
    needed = [(folder, "config.json", ("config.json",)), (folder, "weights (*.safetensors)", WEIGHTS)]
    for place, kind, names in [*needed, (words, "tokenizer", TOKENIZERS)]:
        if place is not None and not any(found for name in names for found in place.glob(name)):
            raise MarlError(f"{what}: there is no {kind} in '{place}'")


def local_model(whose: str, path: Any) -> Path | None:
    """The folder of a model on disk, which must be there; None for one that the hub or a remote store has."""
    folder = Path(str(path)).expanduser()
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not folder.exists() and not folder.parent.is_dir()
    if on_hub or "://" in str(path):
        return None
    if not folder.is_dir():
        raise missing(f"model folder of {whose}:", folder, folder.parent.glob("*/"))
    return folder


def check_endpoint(name: str, endpoint: Endpoint) -> None:
    """MarlError where the endpoint of policy `name` cannot be right: its address, model or key. It is not asked."""
    where, url = f"marl.policies.{name}.endpoint", endpoint.url
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it raises where it is no number
    except ValueError as error:
        raise MarlError(f"'{where}.url' is no address, got '{url}': {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MarlError(f"'{where}.url' must be a http address such as http://localhost:8000/v1, got '{url}'")
    base = url.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    if base != url.rstrip("/"):
        raise MarlError(f"'{where}.url' must be the server's base, '{base}', got '{url}'")
    if not endpoint.model.strip():
        raise MarlError(f"'{where}.model' is empty: it is the model's name at '{url}'")
    endpoint_key(name, endpoint)


def endpoint_key(name: str, endpoint: Endpoint) -> str:
    """The key with which policy `name` asks its endpoint. MarlError where its environment variable is not set."""
    variable = endpoint.key_variable
    if variable is None:
        return NO_KEY
    key = os.environ.get(variable, "").strip()
    if not key:
        what = f"policy '{name}' asks {endpoint.url} with the key in the environment variable {variable}"
        raise MarlError(f"{what}, which is not set: export it, or leave out key_variable")
    return key
