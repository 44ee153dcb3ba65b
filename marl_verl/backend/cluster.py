"""Connect to a running Ray cluster (`ray_kwargs.ray_init.address`), which may require Ray's token.

`ray start --head` requires a token if its machine has one. A driver sends one if `RAY_AUTH_MODE` is "token", which Ray
sets itself for the address "auto" only. A cluster without a token accepts a driver that sends one.
Uses an internal of Ray: `canonicalize_bootstrap_address`, which finds the address that "auto" stands for.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_verl.config.hardware import HARDWARE_VARIABLE, ray_address
from marl_verl.errors import MarlError

QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of TransferQueue's controller, of which a Ray session has one."""

PATIENCE = 10.0
"""Seconds to wait for the cluster's head node; Ray itself waits for minutes."""
ASKING = 60.0
"""Seconds to wait for the list of a cluster's nodes."""


def send_token() -> None:
    """Send the token of this machine, unless the user has chosen a mode. Call this before Ray is imported."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def connect(address: str, **options: Any) -> None:
    """`ray.init` for a running cluster.

    Raises:
        MarlError: no cluster answers at the address, it requires another token, or another run uses it.
    """
    import ray
    from ray._private.services import canonicalize_bootstrap_address
    from ray.exceptions import AuthenticationError

    key = f"ray_kwargs.ray_init.address={address}"
    try:
        head = str(canonicalize_bootstrap_address(address))
        host, _, port = head.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError) as error:
        remedy = "Start one with `ray start --head`, or leave the key out to run on this machine only"
        raise MarlError(f"no Ray cluster answers ({key}): {str(error).split('. ')[0]}. {remedy}") from error
    try:
        ray.init(address=head, **options)
    except (ConnectionError, AuthenticationError) as error:
        have = "another token than" if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" else "no token for"
        remedy = "Copy ~/.ray/auth_token from its head node to this machine, or set RAY_AUTH_TOKEN_PATH to a copy"
        refused = f"the Ray cluster at '{head}' ({key}) does not accept this machine, which has {have} it"
        raise MarlError(f"{refused}. {remedy}") from error
    try:
        ray.get_actor(*QUEUE)
    except ValueError:
        return  # the cluster is free
    used = f"another run uses the Ray cluster at '{head}' ({key}), and TransferQueue would mix their rows"
    raise MarlError(f"{used}. Wait until that run has ended, or start a cluster for each run")


def hardware(config: Any, overrides: Sequence[str]) -> str | None:
    """ "gpu" if a node of the run's cluster has an accelerator, "cpu" if none has, asked in a separate process: Ray
    changes signal handlers and leaves threads.

    None if the run starts Ray itself, if a user has set it, or if the cluster cannot be reached, which fails later.
    """
    address = ray_address(config)
    if address is None or HARDWARE_VARIABLE in os.environ or any(map(_sets_hardware, overrides)):
        return None
    command = [sys.executable, "-m", __name__, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKING, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.split()[-1] if done.returncode == 0 else None


def _sets_hardware(override: str) -> bool:
    return override.startswith("hardware=")


def _print_hardware(address: str) -> None:
    send_token()
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    # Ray adds `accelerator_type:NAME` to the resources of nodes with a real accelerator; `GPU` may be a logical one
    resources = [name for node in ray.nodes() if node["Alive"] for name in node["Resources"]]
    print("gpu" if any(name.startswith("accelerator_type:") for name in resources) else "cpu")


if __name__ == "__main__":
    _print_hardware(sys.argv[1])
