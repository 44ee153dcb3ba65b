"""The trainer's process: Ray, TransferQueue, the team trainer, the rollout manager, and an end that leaves nothing behind.

Started by the command line as `python -m marl_verl.trainer.run RUN_DIRECTORY`, with its output going to train.log.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.trainer.run_dir import emit

FORWARDED = ("MARL_VERL_", "VLLM_", "VERL_", "HF_", "RAY_EXPERIMENTAL_NOSET", "OMP_", "TOKENIZERS_")


def main(folder: Path) -> int:
    """Train as `folder/config.yaml` says. Exit code 0, 2 for a user's mistake, 1 for anything else, 130 after Ctrl-C."""
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
    emit("phase", name="loading verl")
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import get_trainer_cls

    from marl_verl.platforms import verl_plugin
    from marl_verl.rollout.manager import TeamRolloutManager
    from marl_verl.trainer import team_trainer  # noqa: F401 - registers "team"
    from marl_verl.trainer.report import write_summary

    if not verl_plugin.LOADED:
        raise MarlError("verl did not load marl-verl's plugin: is marl-verl installed (pip install -e .)?")
    config: Any = OmegaConf.load(folder / "config.yaml")
    emit("phase", name="starting Ray")
    start_ray(config)
    try:
        config.transfer_queue.enable = True
        tq.init(config.transfer_queue)
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        trainer.init()
        manager = TeamRolloutManager.create(
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        emit("phase", name="first validation")
        trainer.fit(manager)
        emit("finished", summary=write_summary(trainer))
        tq.close()
    finally:
        ray.shutdown()


def start_ray(config: Any) -> None:
    """A Ray session of our own, unless `ray_kwargs.ray_init.address` names a cluster."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    from marl_verl.platforms.active import cpu_run

    options: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)  # type: ignore[assignment]
    given = options.pop("runtime_env", None) or {}
    runtime_env = get_ppo_ray_runtime_env(config)
    variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    variables.pop("MARL_VERL_EVENTS", None)
    runtime_env["env_vars"] = {
        **runtime_env.get("env_vars", {}),
        "TRANSFER_QUEUE_ENABLE": "1",
        **variables,
        **(given.pop("env_vars", None) or {}),
    }
    runtime_env.update({name: value for name, value in given.items() if value is not None})
    if "address" not in options:
        # never somebody else's session: one that is running already stays untouched
        options.update(address="local", include_dashboard=False, _temp_dir=os.environ.get("MARL_VERL_RAY_DIR"))
        if cpu_run():
            slots = int(config.trainer.n_gpus_per_node) * len(config.policies)
            options.setdefault("num_gpus", slots)
    ray.init(runtime_env=runtime_env, log_to_driver=True, **options)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
