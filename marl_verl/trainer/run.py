"""The trainer's process: starts Ray, TransferQueue, team trainer and rollout manager, and shuts them down.

Started by the command line as `python -m marl_verl.trainer.run RUN_DIRECTORY`; its output is written to train.log.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.backend.verl.cluster import connect, send_token
from marl_verl.backend.verl.rollout.endpoint import reach
from marl_verl.backend.verl.watch import Watch, one_line, queue_actors
from marl_verl.config.hardware import cpu_run
from marl_verl.config.placement import Pool, check_cpus, check_room, pools_of, ray_cpus
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.events import SCRATCH_VARIABLE, emit
from marl_verl.run.installed import safe_job
from marl_verl.run.parent import Parent, how_to_continue
from marl_verl.run.trackers import tracked
from marl_verl.team import Endpoint

FORWARDED = (
    *("MARL_VERL_", "VLLM_", "VERL_", "HF_", "RAY_EXPERIMENTAL_NOSET", "OMP_", "TOKENIZERS_", "TRANSFER_QUEUE_"),
    *("NCCL_", "GLOO_", "TORCH"),
)
"""Prefixes of the environment variables that workers on a running Ray cluster get besides verl's own."""
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then listens on 127.0.0.1, as it does on those systems
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""Environment of a run on one machine, unless the user has set it: nothing listens on the network."""
RAY = {
    "RAY_worker_niceness": "0",  # Ray's default is 15: workers would wait for every other process of the machine
    "RAY_task_events_report_interval_ms": "0",  # no record of past calls, with which gcs_server grew by 3.8 KB a call
}
"""Settings of a Ray session that the run starts itself, unless the user has set them."""
NOTED_BY_RAY = "ray.experimental.state.api"
"""Imported before `ray.init`: importing it (verl does) changes a table of Ray's over which `ray.init` iterates."""


def main(folder: Path, work: Callable[[Path], None] | None = None) -> int:
    """Run `work` (default: `train`) on a run directory; end when the parent process ends.

    Returns the exit code: 0; 2 for a user error (MarlError), 1 for any other error, 130 after Ctrl-C.
    """
    parent = Parent()
    parent.follow()
    try:
        (work or train)(folder)
    except KeyboardInterrupt:
        emit("interrupted")
        return 130
    except Exception as error:  # noqa: BLE001 - the process ends: traceback to the log, message to the user
        return _reported(error)
    finally:
        if parent.gone():
            parent.leave(1)
    return 0


def _reported(error: Exception) -> int:
    """Send an error to the command line and write its traceback to the log. Returns the exit code."""
    expected = isinstance(error, MarlError)
    emit("error", message=str(error) if expected else one_line(error), expected=expected)
    traceback.print_exc()
    return 2 if expected else 1


def train(folder: Path) -> None:
    """Start all parts of the run and train."""
    with session(folder) as (trainer, manager), tracked(trainer):
        from marl_verl.trainer.report import write_summary

        emit("phase", name="first validation")
        trainer.fit(manager)
        emit("finished", summary=write_summary(trainer))


@contextmanager
def session(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Trainer and rollout manager of a run directory, ready to fit; Ray is shut down at the end of the context."""
    config: Any = OmegaConf.load(folder / "config.yaml")
    plugins.use_files(plugins.files_of_run(folder))
    for name, endpoint in _endpoints(config).items():
        reach(name, endpoint)
    emit("phase", name="starting Ray and loading verl")
    if _address(config):
        send_token()
    else:
        for name, value in (LOOPBACK | RAY).items():
            os.environ.setdefault(name, value)
    import ray

    if not _address(config):  # a plugin may have imported Ray before its variable was set
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = False
    importlib.import_module(NOTED_BY_RAY)
    advice = partial(how_to_continue, folder)
    with ThreadPoolExecutor(max_workers=1) as threads:
        verl = threads.submit(importlib.import_module, "verl.trainer.ppo.v1")
        try:
            start_ray(config)
            verl.result()
            with Watch({}, lambda: "while starting", advice, Parent().leave)():  # Ray's own processes
                trainer, manager = _bring_up(config)
            actors = {**trainer.policies.actors(), **manager.actors(), **queue_actors()}
            with Watch(actors, trainer.phase.describe, advice, Parent().leave)():
                with trainer.phase("starting"):
                    trainer.init()
                yield trainer, manager
            importlib.import_module("transfer_queue").close()
        finally:
            ray.shutdown()


def _bring_up(config: Any) -> tuple[Any, Any]:
    """Start the slow parts concurrently: TransferQueue, policies, and where possible the rollout workers."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls

    from marl_verl.backend.verl.rollout import verl_plugin
    from marl_verl.backend.verl.rollout.manager import TeamRolloutManager
    from marl_verl.trainer import team_trainer  # noqa: F401 - registers "team"

    if not verl_plugin.LOADED:
        raise MarlError("verl did not load marl-verl's plugin. Install marl-verl: pip install -e .")
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    emit("phase", name="starting policies")
    with ThreadPoolExecutor(max_workers=2) as threads:
        queue = threads.submit(tq.init, config.transfer_queue)
        starting = threads.submit(trainer.policies.start)
        queue.result()
        if not trainer.policies.early_clients:
            starting.result()
        try:
            manager = TeamRolloutManager.create(config=config, llm_client=trainer.policies.clients())
        except Exception as error:  # noqa: BLE001 - raising it here would wait until the policies have started
            Parent().leave(_reported(error))
        starting.result()
    emit("started", seconds={name: runtime.seconds for name, runtime in trainer.policies.runtimes.items()})
    return trainer, manager


def start_ray(config: Any) -> None:
    """Start a separate Ray session, or connect to the cluster in `ray_kwargs.ray_init.address`."""
    import ray

    options: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)  # type: ignore[assignment]
    wanted = {name: value for name, value in (options.pop("runtime_env", None) or {}).items() if value is not None}
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    options.pop("address", None)
    options |= safe_job()
    if address := _address(config):
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        runtime_env = get_ppo_ray_runtime_env(config)
        variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        variables.pop("MARL_VERL_EVENTS", None)  # a file descriptor of this process
        for endpoint in _endpoints(config).values():  # workers get keys by other means: Ray shows these variables
            variables.pop(endpoint.key_variable or "", None)
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **variables, **wanted.pop("env_vars", {})}
        connect(address, runtime_env={**runtime_env, **wanted}, **options)
    else:
        pools = _pools(config)
        cpus = max(os.cpu_count() or 1, ray_cpus(config, pools))
        options["num_cpus"] = options.get("num_cpus") or cpus  # logical: more than there are do no harm
        if cpu_run():
            # set here because importing verl's function takes seconds; its other variables are for GPUs
            os.environ["VLLM_LOGGING_LEVEL"] = "WARN"
            options.setdefault("num_gpus", sum(pool.size for pool in pools))
        else:
            from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

            os.environ.update(get_ppo_ray_runtime_env(config).get("env_vars", {}))
        # "local": never connect to a Ray session that is already running. Workers inherit this environment.
        scratch = os.environ.get(SCRATCH_VARIABLE)
        folder = scratch and f"{scratch}/ray"  # Ray makes its folder writable for all users; the scratch folder is not
        options.setdefault("include_dashboard", False)
        ray.init(address="local", _temp_dir=folder, runtime_env=wanted or None, **options)
    check_slots(config)


def check_slots(config: Any) -> None:
    """Raise MarlError if Ray lacks GPUs (logical slots on a CPU) or CPUs: it would wait for them for ever."""
    import ray

    pools, nodes = _pools(config), [node["Resources"] for node in ray.nodes() if node["Alive"]]
    check_room(pools, [node.get("GPU", 0) for node in nodes], "Ray has")
    check_cpus(config, pools, [node.get("CPU", 0) for node in nodes])


def _address(config: Any) -> str | None:
    """The address of the running cluster to connect to; None to start a separate Ray session."""
    address = config.ray_kwargs.ray_init.get("address")
    return None if address in (None, "local") else str(address)


def _pools(config: Any) -> list[Pool]:
    return pools_of(config, team_of(config))


def _endpoints(config: Any) -> dict[str, Endpoint]:
    """Policy -> its external endpoint."""
    return {name: policy.endpoint for name, policy in team_of(config).policies.items() if policy.endpoint is not None}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
