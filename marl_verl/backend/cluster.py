"""Connect to a running Ray cluster (`ray_kwargs.ray_init.address`), which may require Ray's token.

`ray start --head` requires a token if its machine has one. A driver sends one if `RAY_AUTH_MODE` is "token", which Ray
sets itself for the address "auto" only. A cluster without a token accepts a driver that sends one.
Uses an internal of Ray: `canonicalize_bootstrap_address`, which finds the address that "auto" stands for.
"""

import os
import socket
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError

QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of TransferQueue's controller, of which a Ray session has one."""

PATIENCE = 10.0  # seconds to wait for the cluster's head node; Ray itself waits for minutes


def send_token() -> None:
    """Send the token of this machine, unless the user has chosen a mode. Call this before Ray is imported."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def connect(address: str, **options: Any) -> None:
    """`ray.init` for a running cluster.

    Raises:
        MarlError: no cluster answers at the address, or another run uses it.
    """
    import ray
    from ray._private.services import canonicalize_bootstrap_address

    key = f"ray_kwargs.ray_init.address={address}"
    try:
        head = str(canonicalize_bootstrap_address(address))
        host, _, port = head.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError) as error:
        remedy = "Start one with `ray start --head`, or leave the key out to run on this machine only"
        raise MarlError(f"no Ray cluster answers ({key}): {str(error).split('. ')[0]}. {remedy}") from error
    ray.init(address=head, **options)
    try:
        ray.get_actor(*QUEUE)
    except ValueError:
        return  # the cluster is free
    used = f"another run uses the Ray cluster at '{head}' ({key}), and TransferQueue would mix their rows"
    raise MarlError(f"{used}. Wait until that run has ended, or start a cluster for each run")
