"""An external endpoint in a config: its address, its model and its key, checked before work starts."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from marl_verl.errors import MarlError
from marl_verl.team import Endpoint

NO_KEY = "none"
"""The `openai` package wants a key, also for a server that wants none."""


def check_endpoint(name: str, endpoint: Endpoint) -> None:
    """What can be wrong with an endpoint before anybody asks it.

    Args:
        name: the policy.

    Raises:
        MarlError: no http address, one that is not the base, no model, or a key that is named and not there.
    """
    where = f"marl.policies.{name}.endpoint"
    try:
        parts = urlsplit(endpoint.url)
        parts.port  # noqa: B018 - reading it raises where it is no number
    except ValueError as error:
        raise MarlError(f"'{where}.url' is no address, got '{endpoint.url}': {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MarlError(f"'{where}.url' must be a http address such as http://localhost:8000/v1, got '{endpoint.url}'")
    base = endpoint.url.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    if base != endpoint.url.rstrip("/"):
        raise MarlError(f"'{where}.url' must be the server's base, '{base}', got '{endpoint.url}'")
    if not endpoint.model.strip():
        raise MarlError(f"'{where}.model' is empty: it is the model's name at '{endpoint.url}'")
    endpoint_key(name, endpoint)


def endpoint_key(name: str, endpoint: Endpoint) -> str:
    variable = endpoint.key_variable
    if variable is None:
        return NO_KEY
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MarlError(
            f"policy '{name}' asks {endpoint.url} with the key in the environment variable {variable}, which is not "
            "set: export it, or leave out key_variable"
        )
    return key
