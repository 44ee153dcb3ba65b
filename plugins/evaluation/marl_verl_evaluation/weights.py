"""Who acts in an evaluation with which weights (docs/evaluation.md). Swaps are applied before `untrained`."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl_inspect.export import WEIGHTS, Source

from marl_verl.config.policy_models import check_files
from marl_verl.config.stored import read_config
from marl_verl.errors import MarlError, check_known
from marl_verl.extensions import extension
from marl_verl.run.checkpoint import folders
from marl_verl.team import TeamConfig
from marl_verl_evaluation.request import Assignment, Swap


def assign(
    team: TeamConfig,
    step: int,
    swaps: Sequence[Swap] = (),
    untrained: Sequence[str] = (),
    newest: Mapping[str, int] | None = None,
) -> dict[str, Assignment]:
    """Agent -> its policy, at a step (0: before training). `newest`: policy -> step of its newest snapshot in the
    checkpoint, with which agents act in past versions. MarlError for an unknown agent."""
    policies = {agent.name: agent.policy for agent in team.agents.values()}
    for name in (*itertools.chain(*swaps), *untrained):
        check_known("agent", name, policies)
    for first, second in swaps:
        policies[first], policies[second] = policies[second], policies[first]
    snapshots = newest or {}
    return {name: _assignment(team, policy, step, name in untrained, snapshots) for name, policy in policies.items()}


def _assignment(team: TeamConfig, source: str, step: int, untrained: bool, newest: Mapping[str, int]) -> Assignment:
    policy = team.policies[source]
    if (past := policy.past) is not None:
        if newest.get(past.of) and not untrained:
            return Assignment(past.of, "past", source, newest[past.of], past.kind)
        return _assignment(team, past.of, step, True, newest)
    if policy.frozen:
        return Assignment(source, "external" if policy.external else "frozen", source)
    if step == 0 or not untrained:
        return Assignment(source, "trained" if step else "untrained", source, step)
    name = f"{source}-untrained"
    while name in team.policies:
        name += "-1"
    return Assignment(source, "untrained", name)


def chosen_step(run: Path, step: int | None) -> int:
    """The step to evaluate, by default that of the newest complete checkpoint. MarlError if it does not exist."""
    return 0 if step == 0 else folders.step_of(folders.choose(run, step))


def newest_snapshots(run: Path, team: TeamConfig, step: int) -> dict[str, int]:
    """Policy with which agents act in past versions -> its newest snapshot in a checkpoint; 0 before training."""
    if not step or not team.past:
        return {}
    folder, versions = folders.choose(run, step), team.past.values()
    return {past.of: max(map(int, extension("policy", past.kind).read(folder, past.of))) for past in versions}


def find_models(run: Path, policies: Mapping[str, Assignment]) -> dict[str, str | Source]:
    """Policy in use, except external endpoints -> the folder or hub name of its model; a `Source` if that has to be
    exported first, because servers cannot load its format. MarlError if it is damaged or missing."""
    config, models = read_config(run / "config.yaml"), dict[str, str | Source]()
    for name, assignment in policies.items():
        if assignment.weights == "trained":
            source = Source.of(run, assignment.step, assignment.source, config)
            ready = source.folder / "huggingface"
            whole = source.lora is None and any(any(ready.glob(pattern)) for pattern in WEIGHTS)
            models[name] = str(ready.resolve()) if whole else source
        elif assignment.weights == "past":
            kind, at = extension("policy", assignment.kind), assignment.step
            snapshots = kind.Snapshots.of(run.resolve(), config, assignment.source)
            snapshots.check([at])
            models[name] = snapshots.model(at) or snapshots.source(at)  # the latter of an adapter
        elif assignment.weights != "external":
            models[name] = _initial_model(config, assignment)
    return models


def _initial_model(config: Any, assignment: Assignment) -> str:
    """The model of a frozen policy, or of a policy before training: a folder or a hub name."""
    model, label = config.policies[assignment.source].actor_rollout_ref.model, f"model of policy '{assignment.source}'"
    if model.get("lora_adapter_path"):
        raise MarlError(f"the {label} has an initial adapter, which cannot be served. Merge them, and train from that.")
    if Path(model.path).is_absolute() or Path(model.path).exists():
        check_files(Path(model.path), label)
    return str(model.path)
