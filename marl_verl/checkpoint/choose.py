"""The policy and the checkpoint of a run that an export is made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marl_verl.checkpoint import files
from marl_verl.checkpoint.export import Source
from marl_verl.config.stored import check_run, read_config, team_of
from marl_verl.errors import MarlError, nearest


def choose(run: Path, name: str | None, step: int | None) -> Source:
    """The policy and the checkpoint that the user named.

    Raises:
        MarlError: no such run or policy, a policy that was not trained, or no intact checkpoint of the step.
    """
    check_run(run, "config.yaml")
    config = read_config(run / "config.yaml")
    policy = _trained_policy(run, config, name)
    folder, part = _checkpoint(run, step), f"policies/{policy}/"
    if why := files.damage(folder, part):
        intact = [files.step_of(path) for path in files.complete(folder.parent) if files.damage(path, part) is None]
        advice = f"intact are the ones of step {_listed(intact)}: choose with --step"
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}; {advice if intact else 'no other is intact'}")
    return Source.of(folder, policy, config)


def _trained_policy(run: Path, config: Any, name: str | None) -> str:
    team = team_of(config)
    trained = [policy.name for policy in team.policies.values() if policy.trained]
    if name is None:
        if len(trained) != 1:
            raise MarlError(
                f"which policy? run '{run}' has trained {', '.join(trained) or 'none'}: name one with --policy"
            )
        name = trained[0]
    if name not in team.policies:
        raise MarlError(f"run '{run}' has no policy '{name}': {nearest(name, team.policies)}")
    policy = team.policies[name]
    if policy.endpoint is not None:
        raise MarlError(
            f"policy '{name}' is an endpoint: its model '{policy.endpoint.model}' is outside, at "
            f"{policy.endpoint.url}, and was not trained"
        )
    if policy.frozen:
        model = config.policies[name].actor_rollout_ref.model.path
        raise MarlError(f"policy '{name}' is frozen and was not trained: its model is '{model}', as it was")
    return name


def _checkpoint(run: Path, step: int | None) -> Path:
    found = {files.step_of(path): path for path in files.complete(run / "checkpoints")}
    if not found:
        raise MarlError(f"run '{run}' has no complete checkpoint to export from")
    wanted = max(found) if step is None else step
    if wanted not in found:
        has = f"it has {_listed(found)}, the nearest is {min(found, key=lambda other: abs(other - wanted))}"
        raise MarlError(f"run '{run}' has no complete checkpoint of step {wanted}: {has}")
    return found[wanted]


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
