"""Where the weights of an evaluation are on disk: in a checkpoint, or the models that training began with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_verl.checkpoint.export import WEIGHTS, Source
from marl_verl.checkpoint.files import complete, damage, step_of
from marl_verl.config.policy_models import check_files
from marl_verl.config.stored import read_config
from marl_verl.errors import MarlError, missing
from marl_verl.evaluation.request import MODELS, Part, acting


@dataclass
class Models:
    """What the servers of each policy of an evaluation read: folders, or names on the hub.

    Attributes:
        exports: policies whose folder has to be made first, and from what.
    """

    paths: dict[str, str] = field(default_factory=dict)
    tokenizers: dict[str, str] = field(default_factory=dict)
    exports: dict[str, Source] = field(default_factory=dict)


def chosen_step(run: Path, wanted: int | None) -> int:
    """The step to evaluate: the given one, by default that of the newest complete checkpoint; MarlError without it."""
    if wanted == 0:
        return 0
    steps = [step_of(folder) for folder in complete(run / "checkpoints")]
    if not steps:
        raise MarlError(f"run '{run}' has no complete checkpoint: --step 0 evaluates the team before training")
    if wanted is not None and wanted not in steps:
        listed = f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
        raise MarlError(
            f"run '{run}' has no complete checkpoint of step {wanted}: it has {listed} "
            f"(nearest: {min(steps, key=lambda step: abs(step - wanted))}), and --step 0 is the team before training"
        )
    return steps[-1] if wanted is None else wanted


def find_models(run: Path, folder: Path, parts: dict[str, Part], step: int) -> Models:
    """The weights of every policy that acts, except external endpoints.

    Args:
        folder: of the evaluation; what servers cannot read as it is will be exported below it.

    Raises:
        MarlError: files of a checkpoint or of a model are missing or changed, or a model cannot be served.
    """
    config, found = read_config(run / "config.yaml"), Models()
    for name, part in acting(parts).items():
        if part.weights == "trained":
            source = _trained(run, config, part.source, step)
            ready = source.folder / "huggingface"
            found.paths[name] = found.tokenizers[name] = str(ready.resolve())
            if source.lora is not None or not any(any(ready.glob(pattern)) for pattern in WEIGHTS):
                found.exports[name], found.paths[name] = source, str(folder / MODELS / name)
        elif part.weights != "outside":
            found.paths[name] = found.tokenizers[name] = _initial_model(config, part)
    return found


def _trained(run: Path, config: Any, policy: str, step: int) -> Source:
    folder = next(path for path in complete(run / "checkpoints") if step_of(path) == step)
    if why := damage(folder, f"policies/{policy}/"):
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}; choose another one with --step")
    return Source.of(folder, policy, config)


def _initial_model(config: Any, part: Part) -> str:
    """The model of a policy before training, or of a frozen one: a folder, or a name on the hub."""
    model = config.policies[part.source].actor_rollout_ref.model
    what = f"model of policy '{part.source}'{' before training' if part.weights == 'untrained' else ''}"
    if model.get("lora_adapter_path"):
        raise MarlError(
            f"the {what} is '{model.path}' with the adapter '{model.lora_adapter_path}', which is not served: merge "
            "them, and train from that"
        )
    path = Path(model.path)
    if path.is_absolute() or path.exists():
        if not path.is_dir():
            raise missing(f"{what}:", path, [])
        check_files(path, what)
    return str(model.path)
