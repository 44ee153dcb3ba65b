"""The team of a verl script: its task set, workflow, agents and policies, and the GPUs that they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from marl_verl.config.hardware import HARDWARE_VARIABLE, has_accelerator
from marl_verl.config.translation import Translation
from marl_verl.errors import MarlError

AGENT, POOL = "solver", "gpus"
SHARE = "rollout.gpu_memory_utilization"
ADDRESS = "ray_kwargs.ray_init.address"
CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""Where `ray start` writes the address of the cluster that runs on this machine."""


def add_team(script: Translation) -> None:
    """Set task set, workflow, agents, policies and their pool where the script does not set them.

    MarlError: several machines, and no running Ray cluster.
    """
    marl: dict[str, Any] = script.recipe["marl"]
    marl.setdefault("task", {}).setdefault("name", "verl")
    if "agents" not in marl:
        marl.setdefault("workflow", {}).setdefault("name", "single")
    agents = marl.setdefault("agents", {AGENT: {"policy": AGENT}})
    if isinstance(agents, dict) and isinstance(marl.setdefault("policies", {}), dict):
        for agent in agents.values():
            if isinstance(agent, dict) and isinstance(agent.get("policy"), str):
                marl["policies"].setdefault(agent["policy"], {})
    _use_cluster(script)
    if has_accelerator() or ADDRESS in script.values:
        _share(script, marl)


def _share(script: Translation, marl: dict[str, Any]) -> None:
    """Put the policies on one pool, the script's GPUs, unless the script has pools, or a single policy."""
    policies = marl["policies"]
    if marl.get("pools") or not isinstance(policies, dict):
        return
    inside = {
        name: policy
        for name, policy in policies.items()
        if isinstance(policy, dict) and not policy.get("endpoint") and not policy.get("script")
    }
    groups = {"shared" if policy.get("base") else f"policy {name}" for name, policy in inside.items()}
    if len(inside) < 2:
        return
    gpus, nodes = (int(script.number(f"trainer.{key}", 1)) for key in ("n_gpus_per_node", "nnodes"))
    marl["pools"] = {POOL: {"gpus": gpus, "nodes": nodes}}
    share = round(script.number(f"actor_rollout_ref.{SHARE}") / len(groups), 3)
    for policy in inside.values():
        policy["pool"] = POOL
        policy.setdefault("rollout", {}).setdefault("gpu_memory_utilization", share)
    if script.values.get("actor_rollout_ref.rollout.free_cache_engine") is False:
        script.drop("actor_rollout_ref.rollout.free_cache_engine")
    what = f"marl.pools.{POOL}={{gpus: {gpus}, nodes: {nodes}}}, {SHARE}={share:g} each"
    script.translated.append((f"the GPUs of the script, shared by {', '.join(inside)}", what))


def _use_cluster(script: Translation) -> None:
    """Take the running Ray cluster for several machines, as `ray.init` does."""
    nodes = int(script.number("trainer.nnodes", 1))
    if nodes == 1 or ADDRESS in script.values:
        return
    address = os.environ.get("RAY_ADDRESS")
    if address is None and not CLUSTER.exists() and HARDWARE_VARIABLE not in os.environ:
        remedy = "start Ray on them (ray start), and set RAY_ADDRESS or ray_kwargs.ray_init.address=auto"
        raise MarlError(
            f"'trainer.nnodes={nodes}' needs a Ray cluster of {nodes} machines, and none runs here: {remedy}"
        )
    script.add(ADDRESS, "auto" if address is None or address.startswith("http") else address)
    script.translated.append((f"trainer.nnodes={nodes}", f"{ADDRESS}={script.values[ADDRESS]}"))
