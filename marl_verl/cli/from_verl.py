"""`marl-verl from-verl SCRIPT.sh [--agents 2] --write DIR`: a recipe and a script of a team, from a script of verl."""

import argparse
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from marl_verl.cli.recipes import bundled
from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.shell_script import trainer_arguments
from marl_verl.config.translation import Translation, set_key
from marl_verl.config.verl_engines import to_fsdp_and_vllm
from marl_verl.config.verl_script import translate
from marl_verl.errors import MarlError
from marl_verl.run.terminal import harmless, show

EXAMPLES = """
The script is not run: bash expands its variables, with those of your shell, and the arguments of its call of
verl.trainer.main_ppo become NAME.yaml and NAME.sh in DIR. Settings of Megatron, VeOmni and SGLang become those of FSDP
and vLLM. Each argument is printed with what became of it; the recipe is without those that are refused.

  marl-verl from-verl examples/grpo_trainer/run_qwen3_8b_fsdp.sh --write my_team
  DATA=~/gsm8k marl-verl from-verl run.sh --agents 2 --write my_team
  my_team/run.sh --dry-run --assume gpus=8,flash-attn
"""
TEAM_FILE = "solver_verifier.py"
TEAM = (
    f"marl.plugins=[{TEAM_FILE}]",
    "marl.workflow.name=solver-verifier",
    "marl.agents.solver.policy=solver",
    "marl.agents.verifier.policy=verifier",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write a recipe and a script of a team from a script that trains one model with verl."
    parser.add_argument("script", type=Path, metavar="SCRIPT.sh", help="a script that calls verl.trainer.main_ppo")
    agents = "1: the script's model; 2: a solver and a verifier with separate policies (default: 1)"
    parser.add_argument("--agents", type=int, choices=(1, 2), default=1, help=agents)
    parser.add_argument("--write", type=Path, metavar="DIR", required=True, help="the folder to write to")


def run(options: argparse.Namespace) -> int:
    os.environ.setdefault(HARDWARE_VARIABLE, "gpu")  # verl's scripts are for GPUs, which this machine may lack
    calls = trainer_arguments(options.script)
    arguments, changes = to_fsdp_and_vllm(calls[0])
    script = translate([*arguments, *(TEAM if options.agents == 2 else ())])
    folder, name = options.write.expanduser(), options.script.stem
    files = [folder / f"{name}.yaml", folder / f"{name}.sh"]
    if options.agents == 2:
        files.append(folder / TEAM_FILE)
    if existing := [file for file in files if file.exists() or file.is_symlink()]:
        raise MarlError(f"'{existing[0]}' exists: choose another folder with --write")
    fates = _fates(arguments, changes, script)
    folder.mkdir(parents=True, exist_ok=True)
    _write(script, files, options.script, fates)
    width = max(len(fate) for fate, _ in fates)
    for fate, line in fates:
        show(harmless(f"{fate:<{width}}  {line}"))
    _summary(files[1], calls, changes, script)
    return 0


def _fates(arguments: list[str], changes: list[tuple[str, str]], script: Translation) -> list[tuple[str, str]]:
    """(what became of it, line) of each argument: kept, translated, converted, dropped, refused; and what is added."""
    given = {word.lstrip("+") for word in arguments}
    kept = [line.lstrip("+") for line in script.overrides]
    return [
        *(("kept", line) for line in kept if line in given),
        *(("added", line) for line in kept if line not in given),
        *(("translated", f"{old} -> {new}") for old, new in script.translated),
        *(("converted", f"{old} -> {new or 'nothing: FSDP and vLLM have no such setting'}") for old, new in changes),
        *(("dropped", line) for line in script.dropped),
        *(("refused", f"{line}: {reason}") for reason, line in script.refused),
    ]


def _write(script: Translation, files: list[Path], source: Path, fates: list[tuple[str, str]]) -> None:
    """Write the recipe, the script with what a recipe cannot have (keys that verl's config lacks), and the team."""
    recipe: dict[str, Any] = {"defaults": ["marl_trainer", "_self_"], **script.recipe}
    words = []
    for line in script.overrides:
        (change,) = parse_overrides([line])
        if line.startswith(("+", "~")):
            words.append(line)
        else:
            set_key(recipe, change.key_or_group, change.value())
    recipe = {key: value for key, value in recipe.items() if value not in ({}, None)}
    notes = "".join(f"# {fate}: {' '.join(line.split())}\n" for fate, line in fates if fate not in ("kept", "added"))
    head = (
        f"# Made from {source.name} by `marl-verl from-verl`; {files[1].name} trains it. What became of its settings:\n"
    )
    files[0].write_text(f"{head}{notes}{yaml.safe_dump(recipe, sort_keys=False, width=120)}", encoding="utf-8")
    more = "".join(f" \\\n    {shlex.quote(word)}" for word in words)
    files[1].write_text(
        f"#!/usr/bin/env bash\n# Made from {source.name} by `marl-verl from-verl`. Paths are relative to the working "
        'directory, as in verl.\nset -euo pipefail\nhere="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n\n'
        f'exec marl-verl train "$here/{files[0].name}"{more} \\\n    "$@"\n',
        encoding="utf-8",
    )
    files[1].chmod(0o755)
    for file in files[2:]:
        shutil.copy(bundled() / "verl" / TEAM_FILE, file)


def _summary(script: Path, calls: list[list[str]], changes: list[tuple[str, str]], translated: Translation) -> None:
    show("")
    if len(calls) > 1:
        show(f"the script calls the trainer {len(calls)} times: this is its first call")
    if changes:
        show("converted: the script's training engine or server is another one than FSDP and vLLM; check the memory")
    if refused := len(translated.refused):
        show(f"refused: the recipe trains without {refused} settings that would change the training")
    dry_run = f"{shlex.quote(harmless(str(script)))} --dry-run --assume gpus=8,flash-attn"
    show(f"next: {dry_run}   # as if this machine had them")
