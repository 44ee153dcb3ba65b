"""The hardware of a running Ray cluster (`ray_kwargs.ray_init.address`), asked before a run starts."""

import json
import subprocess
import sys
from typing import Any

from omegaconf import OmegaConf

ASK = """
import json, logging, sys
from marl_verl.run.cluster import send_token
send_token()
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""
SECONDS = 60.0


def cluster_hardware(config: Any) -> str | None:
    """Return "gpu" if a node of the run's cluster has an accelerator, "cpu" if none has.

    None if the run starts Ray itself, or the cluster cannot be reached: starting the run then raises Ray's error.
    """
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    if address in (None, "local"):
        return None
    nodes = _nodes(str(address))
    # Ray adds `accelerator_type:NAME` to the resources of nodes with a real accelerator; `GPU` may be a logical one
    kinds = [name for node in nodes or () for name in node if name.startswith("accelerator_type:")]
    return None if nodes is None else "gpu" if kinds else "cpu"


def _nodes(address: str) -> list[dict[str, float]] | None:
    """The resources of each node. In a separate process: Ray changes signal handlers and leaves threads."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, address], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
