"""The policy and the checkpoint of a run that an export is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl_verl.checkpoint import files
from marl_verl.checkpoint.export import Source
from marl_verl.config.stored import check_run, read_config, team_of
from marl_verl.errors import MarlError, nearest
from marl_verl.team import PolicyConfig, TeamConfig


def choose(run: Path, name: str | None, step: int | None) -> Source:
    """The policy and the checkpoint that the user named.

    Raises:
        MarlError: no run there, a policy that it lacks (nearest offered) or did not train (where its model is), a step
            without a complete checkpoint (those that there are), one that is damaged.
    """
    check_run(run, "config.yaml")
    config = read_config(run / "config.yaml")
    policy = _policy(run, config, team_of(config), name)
    folder = _checkpoint(run, step)
    part = f"policies/{policy.name}"
    why = files.damage(folder, f"{part}/")
    if why is not None:
        others = [
            files.step_of(path) for path in files.complete(folder.parent) if files.damage(path, f"{part}/") is None
        ]
        advice = (
            f"intact are the ones of step {_listed(others)}: choose with --step" if others else "no other is intact"
        )
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}; {advice}")
    return Source.of(folder, policy.name, config)


def _policy(run: Path, config: Any, team: TeamConfig, name: str | None) -> PolicyConfig:
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
    return policy


def _checkpoint(run: Path, step: int | None) -> Path:
    found = {files.step_of(path): path for path in files.complete(run / "checkpoints")}
    if not found:
        raise MarlError(f"run '{run}' has no complete checkpoint to export from")
    if step is None:
        step = max(found)
    if step not in found:
        near = min(found, key=lambda other: abs(other - step))
        raise MarlError(
            f"run '{run}' has no complete checkpoint of step {step}: it has {_listed(list(found))}, the nearest is "
            f"{near}"
        )
    return found[step]


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
