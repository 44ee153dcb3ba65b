"""The trainer's process: Ray, TransferQueue, team trainer, rollout manager, and an end that leaves nothing behind.

Started by the command line as `python -m marl_verl.trainer.run RUN_DIRECTORY`, with its output going to train.log.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.trainer.run_dir import emit

FORWARDED = ("MARL_VERL_", "VLLM_", "VERL_", "HF_", "RAY_EXPERIMENTAL_NOSET", "OMP_", "TOKENIZERS_", "TRANSFER_QUEUE_")


def main(folder: Path) -> int:
    """Train as `folder/config.yaml` says. Exit code 0; 2 for a user's mistake, 1 for any other, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        train(folder)
    except MarlError as error:
        emit("error", message=str(error), expected=True)
        traceback.print_exc()
        return 2
    except KeyboardInterrupt:
        emit("interrupted")
        return 130
    except Exception as error:  # noqa: BLE001 - the process ends here: the log has the traceback, the user the sentence
        emit("error", message=_sentence(error), expected=False)
        traceback.print_exc()
        return 1
    return 0


def _sentence(error: BaseException) -> str:
    """The last line of an error, which for Ray's is the line that says what happened in the other process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def train(folder: Path) -> None:
    """Bring everything up and train."""
    with session(folder) as (trainer, manager):
        from marl_verl.trainer.report import write_summary

        emit("phase", name="first validation")
        trainer.fit(manager)
        emit("finished", summary=write_summary(trainer))


@contextmanager
def session(folder: Path) -> Iterator[tuple[Any, Any]]:
    """The trainer and the rollout manager of a run directory, ready to fit; Ray ends with the context."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.load(folder / "config.yaml")
    config.transfer_queue.enable = True
    emit("phase", name="starting Ray and loading verl")
    import ray

    with ThreadPoolExecutor(max_workers=1) as threads:
        verl = threads.submit(importlib.import_module, "verl.trainer.ppo.v1")
        try:
            start_ray(config)
            verl.result()
            yield _bring_up(config)
            importlib.import_module("transfer_queue").close()
        finally:
            ray.shutdown()


def _bring_up(config: Any) -> tuple[Any, Any]:
    """Start the slow parts side by side: TransferQueue, policies, and where possible the rollout workers."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls

    from marl_verl.platforms import verl_plugin
    from marl_verl.trainer import team_trainer  # noqa: F401 - registers "team"

    if not verl_plugin.LOADED:
        raise MarlError("verl did not load marl-verl's plugin: is marl-verl installed (pip install -e .)?")
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    emit("phase", name="starting policies")
    with ThreadPoolExecutor(max_workers=2) as threads:
        queue = threads.submit(tq.init, config.transfer_queue)
        starting = threads.submit(trainer.start_policies)
        queue.result()
        if trainer.early_clients:
            manager = _rollout_manager(config, trainer)
            starting.result()
        else:
            starting.result()
            manager = _rollout_manager(config, trainer)
    emit("started", seconds={name: runtime.seconds for name, runtime in trainer.policies.items()})
    trainer.init()
    return trainer, manager


def _rollout_manager(config: Any, trainer: Any) -> Any:
    from marl_verl.rollout.manager import TeamRolloutManager

    return TeamRolloutManager.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def start_ray(config: Any) -> None:
    """A Ray session of our own, unless `ray_kwargs.ray_init.address` names a cluster."""
    import ray
    from omegaconf import OmegaConf

    from marl_verl.platforms.active import cpu_run

    options: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)  # type: ignore[assignment]
    given = {name: value for name, value in (options.pop("runtime_env", None) or {}).items() if value is not None}
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    if "address" in options:
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        runtime_env = get_ppo_ray_runtime_env(config)
        variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        variables.pop("MARL_VERL_EVENTS", None)  # a file descriptor of this process
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **variables, **given.pop("env_vars", {})}
        ray.init(runtime_env={**runtime_env, **given}, **options)
        check_slots(config, ray.cluster_resources())
        return
    if cpu_run():
        # verl's own variables, without the seconds that importing them takes; the rest of them are for GPUs
        os.environ.update(VLLM_LOGGING_LEVEL="WARN", VLLM_ALLOW_RUNTIME_LORA_UPDATING="true")
        options.setdefault("num_gpus", int(config.trainer.n_gpus_per_node) * len(config.policies))
    else:
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        os.environ.update(get_ppo_ray_runtime_env(config).get("env_vars", {}))
    # never somebody else's session: one that is running already stays untouched. Workers inherit our environment.
    folder = os.environ.get("MARL_VERL_SCRATCH")
    ray.init(address="local", include_dashboard=False, _temp_dir=folder, runtime_env=given or None, **options)
    check_slots(config, ray.cluster_resources())


def check_slots(config: Any, resources: Mapping[str, float]) -> None:
    """Raise MarlError where Ray would wait for ever for GPUs (logical ones on a CPU) that it does not have."""
    each = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    needed, there = each * len(config.policies), resources.get("GPU", 0)
    if there < needed:
        raise MarlError(
            f"{len(config.policies)} policies of {each} GPUs each need {needed}, Ray has {there:g}: let agents share a "
            "policy, or lower trainer.n_gpus_per_node"
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
