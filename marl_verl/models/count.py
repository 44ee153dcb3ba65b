"""A model's config and the shapes of its tensors, from the headers of its files."""

import contextlib
import functools
import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from marl_verl.errors import user_error

HUB_SECONDS = 5


def on_hub(path: str) -> bool:
    """Whether a model is named as one on the hub, and no local folder."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not Path(path).exists()


def model_folder(path: str) -> Path:
    """The folder with a model's files: a local one, or the hub's cached snapshot. It need not exist."""
    if on_hub(path):
        from huggingface_hub import try_to_load_from_cache

        if isinstance(cached := try_to_load_from_cache(path, "config.json"), str):
            return Path(cached).parent
    return Path(path).expanduser()


@functools.lru_cache
def model_config(path: str) -> dict[str, Any]:
    """The config.json of a model in a local folder, in the hub's cache or on the hub; {} where there is none.

    The hub is asked once and for seconds: a dry run works without it.
    """
    file, config = model_folder(path) / "config.json", {}
    if file.is_file():
        config = json.loads(file.read_text(encoding="utf-8"))
    elif on_hub(path):
        config = _hub_config(path)
    return {**config, **config.get("text_config", {})}


def _hub_config(name: str) -> dict[str, Any]:
    import httpx
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url, headers = hf_hub_url(name, "config.json"), build_hf_headers()
    with contextlib.suppress(httpx.HTTPError, OSError):  # OSError: HF_HUB_OFFLINE is set
        answer = get_session().get(url, headers=headers, timeout=HUB_SECONDS, follow_redirects=True)
        return dict(answer.raise_for_status().json())
    return {}


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a folder's safetensors; empty without any. MarlError for a damaged file."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        cannot = user_error(f"the weights in '{path}' cannot be read", SafetensorError)
        with cannot, safe_open(path, framework="numpy") as file:
            tensors.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    return tensors


def parameters(tensors: Mapping[str, tuple[int, ...]]) -> int:
    return sum(prod(shape) for shape in tensors.values())
