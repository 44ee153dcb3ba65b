"""Where the weights of an evaluation are on disk: in a checkpoint, or the models that training began with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_verl.checkpoint.export import WEIGHTS, Source
from marl_verl.checkpoint.files import complete, damage, step_of
from marl_verl.config.policy_models import check_files
from marl_verl.errors import MarlError, missing
from marl_verl.evaluation.cast import Part


def chosen_step(run: Path, wanted: int | None) -> int:
    """The step to evaluate: the one that the user names, else that of the newest complete checkpoint.

    Raises:
        MarlError: the run has no checkpoint of that step (those that it has are named), or none at all.
    """
    if wanted == 0:
        return 0
    steps = [step_of(folder) for folder in complete(run / "checkpoints")]
    if not steps:
        raise MarlError(f"run '{run}' has no complete checkpoint: --step 0 evaluates the team before training")
    if wanted is None:
        return steps[-1]
    if wanted not in steps:
        near = min(steps, key=lambda step: abs(step - wanted))
        raise MarlError(
            f"run '{run}' has no complete checkpoint of step {wanted}: it has {_listed(steps)} (nearest: {near}), "
            "and --step 0 is the team before training"
        )
    return wanted


def _listed(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"


def trained(run: Path, config: Any, policy: str, step: int) -> Source:
    """A policy in the checkpoint of a step that `chosen_step` gave.

    Args:
        config: the run's config.yaml.

    Raises:
        MarlError: files of it are missing, or not as they were written.
    """
    folder = next(path for path in complete(run / "checkpoints") if step_of(path) == step)
    why = damage(folder, f"policies/{policy}/")
    if why is not None:
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}; choose another one with --step")
    return Source.of(folder, policy, config)


def ready(source: Source) -> Path | None:
    """The folder of a checkpoint that servers can read as it is; None where one has to be made of it: of an adapter,
    or where the run saved shards only."""
    folder = source.folder / "huggingface"
    whole = any(found for pattern in WEIGHTS for found in folder.glob(pattern))
    return folder.resolve() if whole and source.lora is None else None


def began_with(config: Any, part: Part) -> str:
    """The model of a policy before training, or of one that never learnt: a folder, or a name on the hub.

    Args:
        config: the run's config.yaml.

    Raises:
        MarlError: the folder is gone or lacks something that servers read, or there was an adapter from the start.
    """
    model = config.policies[part.source].actor_rollout_ref.model
    what = f"model of policy '{part.source}'{' before training' if part.weights == 'untrained' else ''}"
    if model.get("lora_adapter_path"):
        raise MarlError(
            f"the {what} is '{model.path}' with the adapter '{model.lora_adapter_path}', which is not served: merge "
            "them, and train from that"
        )
    path = str(model.path)
    if Path(path).is_absolute() or Path(path).exists():
        if not Path(path).is_dir():
            raise missing(f"{what}:", Path(path), [])
        check_files(Path(path), what)
    return path
