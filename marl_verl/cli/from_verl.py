"""`marl-verl from-verl SCRIPT.sh [--agents 2] --write DIR`: a recipe and a script of a team, from a script of verl."""

import argparse
import os
import shlex
import shutil
from pathlib import Path

import yaml

from marl_verl.cli.recipes import bundled
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.shell_script import trainer_arguments
from marl_verl.config.translation import Translation
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
    recipe, command, team = folder / f"{name}.yaml", folder / f"{name}.sh", folder / TEAM_FILE
    for file in (recipe, command, *([team] if options.agents == 2 else [])):
        if os.path.lexists(file):
            raise MarlError(f"'{file}' exists: choose another folder with --write")
    words = {word.lstrip("+") for word in arguments}
    fates = [
        *(("kept" if line in words else "added", line) for line in script.kept),
        *(("translated", f"{old} -> {new}") for old, new in script.translated),
        *(("converted", f"{old} -> {new or 'nothing: FSDP and vLLM have no such setting'}") for old, new in changes),
        *(("dropped", line) for line in script.dropped),
        *(("refused", f"{line}: {reason}") for reason, line in script.refused),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _write(script, recipe, command, options.script.name, fates)
    if options.agents == 2:
        shutil.copy(bundled() / "verl" / TEAM_FILE, team)
    for fate, line in fates:
        show(harmless(f"{fate:<10}  {line}"))
    show("")
    if len(calls) > 1:
        show(f"the script calls the trainer {len(calls)} times: this is its first call")
    if changes:
        show("converted: the script's training engine or server is another one than FSDP and vLLM; check the memory")
    if script.refused:
        show(f"refused: the recipe trains without {len(script.refused)} settings that would change the training")
    show(f"next: {shlex.quote(harmless(str(command)))} --dry-run --assume gpus=8,flash-attn   # as if it had them")
    return 0


def _write(script: Translation, recipe: Path, command: Path, source: str, fates: list[tuple[str, str]]) -> None:
    content = {key: value for key, value in script.recipe.items() if value not in ({}, None)}
    text = yaml.safe_dump({"defaults": ["marl_trainer", "_self_"], **content}, sort_keys=False, width=120)
    notes = "".join(f"# {fate}: {' '.join(line.split())}\n" for fate, line in fates if fate not in ("kept", "added"))
    made = f"Made from {source} by `marl-verl from-verl`"
    head = f"# {made}; {command.name} trains it. What became of its settings:\n"
    recipe.write_text(f"{head}{notes}{text}", encoding="utf-8")
    more = "".join(f" \\\n    {shlex.quote(word)}" for word in script.overrides)
    command.write_text(
        f"#!/usr/bin/env bash\n# {made}. Paths are relative to the working directory, as in verl.\nset -euo pipefail\n"
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n\n'
        f'exec marl-verl train "$here/{recipe.name}"{more} \\\n    "$@"\n',
        encoding="utf-8",
    )
    command.chmod(0o755)
