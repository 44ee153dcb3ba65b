"""The models of an evaluation: their weights on disk, and a check of stored observations against prompt limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marl_verl.config.policy_models import check_files
from marl_verl.config.stored import read_resolved
from marl_verl.errors import MarlError, missing
from marl_verl.evaluation.request import MODELS, Assignment, acting
from marl_verl.extensions import extension
from marl_verl.files import read_bytes
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.models.chat import Chat
from marl_verl.run.checkpoint.export import WEIGHTS, Source
from marl_verl.run.checkpoint.folders import complete, damage, step_of
from marl_verl.run.packing import unpacked
from marl_verl.run.run_dir import RunDir
from marl_verl.team import AgentConfig, TeamConfig

Messages = tuple[Mapping[str, str], ...]


@dataclass
class Models:
    """Policy -> model folder or hub name for its servers. Models in `exports` must be exported first."""

    paths: dict[str, str] = field(default_factory=dict)
    tokenizers: dict[str, str] = field(default_factory=dict)
    exports: dict[str, Source] = field(default_factory=dict)

    def add(self, other: Models) -> None:
        """Add the models of other policies."""
        for own, more in ((self.paths, other.paths), (self.tokenizers, other.tokenizers)):
            own.update(more)
        self.exports.update(other.exports)


def chosen_step(run: Path, wanted: int | None) -> int:
    """The step to evaluate, by default that of the newest complete checkpoint. MarlError if it does not exist."""
    if wanted == 0:
        return 0
    steps = [step_of(folder) for folder in complete(run / "checkpoints")]
    if not steps:
        raise MarlError(f"run '{run}' has no complete checkpoint. --step 0 evaluates the team before training.")
    if wanted is not None and wanted not in steps:
        listed = f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
        raise MarlError(
            f"run '{run}' has no complete checkpoint of step {wanted}. Available: {listed} "
            f"(nearest: {min(steps, key=lambda step: abs(step - wanted))}), and --step 0 for the team before training."
        )
    return steps[-1] if wanted is None else wanted


def newest_snapshots(run: Path, team: TeamConfig, step: int) -> dict[str, int]:
    """Policy with which agents act in past versions -> its newest snapshot in a checkpoint; 0 before training."""
    if not step:
        return {}
    folder = next(path for path in complete(run / "checkpoints") if step_of(path) == step)
    past = team.past.values()
    return {each.of: max(map(int, extension("policy", each.kind).read(folder, each.of))) for each in past}


def find_models(run: Path, folder: Path, assignments: dict[str, Assignment], step: int) -> Models:
    """Find the weights of every policy in use, except external endpoints. MarlError if they are damaged or missing.

    Weights in a format that servers cannot load are marked for export below the evaluation's `folder`.
    """
    config, found = read_resolved(run), Models()
    for name, assignment in acting(assignments).items():
        if assignment.weights == "trained":
            source = _trained(run, config, assignment.source, step)
            ready = source.folder / "huggingface"
            found.paths[name] = found.tokenizers[name] = str(ready.resolve())
            if source.lora is not None or not any(any(ready.glob(pattern)) for pattern in WEIGHTS):
                found.exports[name], found.paths[name] = source, str(folder / MODELS / name)
        elif assignment.weights == "past":
            kind = extension("policy", assignment.kind)
            snapshots = kind.Snapshots.of(run.resolve(), config, assignment.source)
            snapshots.check([assignment.snapshot])
            model = snapshots.model(assignment.snapshot)
            found.tokenizers[name] = found.paths[name] = model or str(folder / MODELS / name)
            if model is None:  # an adapter
                found.exports[name] = source = snapshots.source(assignment.snapshot)
                found.tokenizers[name] = str(source.folder / "huggingface")
        elif assignment.weights != "external":
            found.paths[name] = found.tokenizers[name] = _initial_model(config, assignment)
    return found


def _trained(run: Path, config: Any, policy: str, step: int) -> Source:
    folder = next(path for path in complete(run / "checkpoints") if step_of(path) == step)
    if why := damage(folder, f"policies/{policy}/"):
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}. Choose another one with --step.")
    return Source.of(folder, policy, config)


def _initial_model(config: Any, assignment: Assignment) -> str:
    """The model of a frozen policy, or of a policy before training: a folder or a hub name."""
    model = config.policies[assignment.source].actor_rollout_ref.model
    what = f"model of policy '{assignment.source}'{' before training' if assignment.weights == 'untrained' else ''}"
    if model.get("lora_adapter_path"):
        raise MarlError(
            f"the {what} is '{model.path}' with the adapter '{model.lora_adapter_path}', which cannot be served. "
            "Merge them and train from the result."
        )
    path = Path(model.path)
    if path.is_absolute() or path.exists():
        if not path.is_dir():
            raise missing(f"{what}:", path, [])
        check_files(path, what)
    return str(model.path)


def check_lengths(
    run: Path,
    config: DictConfig,
    agents: dict[str, AgentConfig],
    assignments: dict[str, Assignment],
    tokenizers: dict[str, str],
) -> None:
    """Raise MarlError if stored observations of an agent with another policy exceed that policy's prompt limit.

    `config` is the evaluation's resolved config; `agents` are those of the run.
    """
    stored = RunDir(run)
    files = stored.stored_episodes() or stored.stored_journals()
    moved = {name: assignment for name, assignment in assignments.items() if assignment.source != agents[name].policy}
    moved = {name: assignment for name, assignment in moved.items() if assignment.weights != "external"}
    if not moved or not files:
        return
    path = files[max(files)]
    episodes = EpisodeFile.parse(unpacked(read_bytes(path), source := f"'{path}'"), source)
    for name, assignment in moved.items():
        observations = _observations(episodes, agents[name])
        if not observations:
            continue
        part = config.policies[assignment.policy]
        own, words = part.actor_rollout_ref, tokenizers[assignment.policy]
        model = {**own.model, "tokenizer_path": own.model.get("tokenizer_path") or words}
        chat = Chat.load(model, part.data.apply_chat_template_kwargs, f"policy '{assignment.policy}'")
        lengths = [len(chat.render(messages, tokenize=True)) for messages in observations]
        limit = int(own.rollout.prompt_length)
        if long := [length for length in lengths if length > limit]:
            raise MarlError(
                f"{len(long)} of {len(lengths)} observations of agent '{name}' in '{path}' are longer than "
                f"data.max_prompt_length={limit} with the tokenizer of policy '{assignment.source}' (maximum: "
                f"{max(long)} tokens). Set data.max_prompt_length={max(long)} and raise "
                "actor_rollout_ref.rollout.max_model_len accordingly."
            )


def _observations(file: EpisodeFile, agent: AgentConfig) -> list[Messages]:
    """The distinct observations of an agent, each preceded by its instructions."""
    found: dict[str, Messages] = {}
    for name in file.episodes:
        for record in file.episode(name).journal.acts():
            if record.act.agent == agent.name:
                found[repr(record.act.observation)] = tuple(agent.conversation(record.act.observation))
    return list(found.values())
