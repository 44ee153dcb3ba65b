"""`marl-verl export RUN --policy NAME --output DIR`: a trained policy as a folder that transformers and vLLM load."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.cli.output import harmless, show
from marl_verl.errors import MarlError, missing, nearest
from marl_verl.team import Policy, Team, read_team
from marl_verl.trainer import checkpoint, checkpoint_files
from marl_verl.trainer.export import Exported, Source, check_output, export

CONFIG = "config.yaml"

EXAMPLES = """
The folder has weights (safetensors), config, tokenizer with chat template and generation config. A policy that trained
an adapter (LoRA) becomes an adapter in peft's format, which names its base model; --merge makes a whole model of it.
Weights keep the precision of training. Nothing is started, and DIR is written whole or not at all.

  marl-verl export runs/inventory-1 --policy asker --output asker             the newest complete checkpoint
  marl-verl export runs/inventory-1 --policy asker --output asker --step 20   that of step 20
  marl-verl export runs/inventory-1 --policy asker --output asker --merge     of an adapter: with its base, one model
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write a trained policy as a Hugging Face folder, or as an adapter."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--policy", metavar="NAME", help="which one; may be left out where only one was trained")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument("--step", type=int, metavar="N", help="which checkpoint; left out: the newest complete one")
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base: one whole model")
    parser.add_argument("--json", action="store_true", help="tell what was written as JSON")


def run(options: argparse.Namespace) -> int:
    """Exit code 0; MarlError (2 for the command line) for whatever cannot be exported."""
    check_output(options.output)
    # torch warns that no process group is there, which reading shards does not need
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    source = chosen(options.folder, options.policy, options.step)
    done = export(source, options.output, options.merge)
    show(json.dumps(dataclasses.asdict(done)) if options.json else harmless(_text(done)))
    return 0


def chosen(run: Path, name: str | None, step: int | None) -> Source:
    """The policy and the checkpoint that the user named.

    Raises:
        MarlError: no run there, a policy that it lacks (nearest offered) or did not train (where its model is), a step
            without a complete checkpoint (those that there are), one that is damaged.
    """
    config, team = _read(run)
    policy = _policy(run, config, team, name)
    folder = _checkpoint(run, step)
    part = f"policies/{policy.name}"
    why = checkpoint_files.damage(folder, f"{part}/")
    if why is not None:
        others = [checkpoint.step_of(path) for path in checkpoint.complete(folder.parent) if _intact(path, part)]
        advice = (
            f"intact are the ones of step {_listed(others)}: choose with --step" if others else "no other is intact"
        )
        raise MarlError(f"checkpoint '{folder}' is damaged: {why}; {advice}")
    settings: Any = OmegaConf.to_container(config.policies[policy.name].actor_rollout_ref.model)
    return Source(policy.name, checkpoint.step_of(folder), folder / part, settings)


def _read(run: Path) -> tuple[Any, Team]:
    path = run / CONFIG
    if not path.is_file():
        raise missing("run in", run, [other.parent for other in run.parent.glob(f"*/{CONFIG}")])
    try:
        config: Any = OmegaConf.load(path)
        marl: Any = OmegaConf.to_container(config.marl)
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, AttributeError) as error:
        raise MarlError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error
    return config, read_team(marl, allow_frozen=True)


def _policy(run: Path, config: Any, team: Team, name: str | None) -> Policy:
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
    found = {checkpoint.step_of(path): path for path in checkpoint.complete(run / "checkpoints")}
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


def _intact(folder: Path, part: str) -> bool:
    try:
        return checkpoint_files.damage(folder, f"{part}/") is None
    except MarlError:
        return False


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


def _text(done: Exported) -> str:
    how = {
        "model": "a whole model",
        "adapter": f"an adapter of '{done.base}'",
        "merged": "a whole model with the adapter merged",
    }[done.kind]
    return (
        f"wrote '{done.output}': policy {done.policy} of step {done.step} as {how}, {done.parameters:,} parameters "
        f"({done.dtype}), {done.size / 1e6:.2f} MB"
    )
