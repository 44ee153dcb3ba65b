"""`marl-verl distil RUN --into MODEL`: let a single agent learn what the team of a run does."""

import argparse
import asyncio
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from marl_verl_evaluation.api import evaluate
from marl_verl_evaluation.launch import launch, plan
from marl_verl_evaluation.request import Options
from marl_verl_inspect.export import choose, export
from marl_verl_inspect.files import stored_file
from marl_verl_inspect.text import table
from omegaconf import OmegaConf

from marl_verl import Episode, MarlError
from marl_verl.api import alone, planned, train, trained
from marl_verl.cli.arguments import add_plugin_argument, at_least
from marl_verl.config.checks import check_engine
from marl_verl.config.compose import defaults_of
from marl_verl.config.policy_models import chat_of, pretrained_models
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import COMPOSED, check_run, read_config
from marl_verl.config.verl_keys import PASS, settings_of, verdict
from marl_verl.extensions import names
from marl_verl.files import write_json
from marl_verl.plugins.one_file import COPIES, REWARDS
from marl_verl.run.prepare import DATA, check_team, make_run_directory
from marl_verl.run.progress import Display
from marl_verl.run.reading import Run
from marl_verl.run.run_dir import locked
from marl_verl.tasks.base import read_tasks
from marl_verl_distil.conversations import STUDENT, conversations, demonstrated
from marl_verl_distil.imitation import KEY

EXAMPLES = """
  marl-verl distil runs/inventory-1 --into MODEL --then-reward 20
  marl-verl distil runs/inventory-1 --into "{tiny: {agents: [asker]}}"   a policy's section in place of a path
  marl-verl distil runs/math_cpu-1 --into smollm2-135m --exchange "---"  also what the agents said to each other
"""
OF_TEAM = re.compile(
    r"(marl|critic|algorithm)\.|trainer\.(total_|save_freq|test_freq|resume_mode)"
    r"|actor_rollout_ref\.actor\.(policy_loss|loss_|use_kl|kl_|entropy_coeff|clip_ratio|ppo_epochs)"
)
"""Settings of a run that are not those of its student."""
FASTER = 5  # times the run's learning rate is that of imitation
LENGTHS = {"max_prompt_length": "prompt_ids", "max_response_length": "response_ids"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Let a single agent learn what a team does, by imitation, then by reward; and compare them."
    parser.add_argument("run", type=Path, metavar="RUN", help="the run of the team")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="config of the student's runs")
    parser.add_argument("--into", required=True, metavar="MODEL", help="the student before it learns")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="of the results (default: runs/distil-RUN)")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint step of the team (default: latest)")
    parser.add_argument("--tasks", type=at_least(1), default=2000, metavar="N", help="training tasks (default: 2000)")
    parser.add_argument("--stored", action="store_true", help="imitate stored episodes of training (of step N)")
    parser.add_argument("--threshold", type=float, metavar="SCORE", help="imitate these scores (default: success)")
    parser.add_argument("--exchange", metavar="TEXT", help="imitate all actions, then the answer, with TEXT between")
    parser.add_argument("--epochs", type=at_least(1), default=3, metavar="N", help="of imitation (default: 3)")
    parser.add_argument("--then-reward", type=at_least(1), metavar="STEPS", help="then train the student with GRPO")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    check_run(options.run, COMPOSED, "config.yaml")
    folder = (options.dir or Path("runs", f"distil-{options.run.resolve().name}")).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise MarlError(f"'{folder}' exists: choose another --dir")
    display, recipe, imitation = Display(), recipe_of(options, folder), folder / "imitation"
    try:
        said = imitate(options, recipe, display)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    pyarrow.parquet.write_table(pyarrow.table({"messages": said}), folder / "conversations.parquet")
    export(choose(imitation, STUDENT, None), folder / "model", merge=True)
    for key in names("model"):
        recipe.marl.policies[STUDENT].pop(key, None)
    OmegaConf.update(recipe, f"marl.policies.{STUDENT}.model.path", str(folder / "model"), force_add=True)
    OmegaConf.save(recipe, folder / "reward.yaml")
    stages: dict[str, tuple[Path, int | None]] = {"team, untrained": (options.run, 0)}
    stages |= {"team": (options.run, options.step), "student, untrained": (imitation, 0)}
    stages |= {"after imitation": (imitation, None)}
    if options.then_reward:
        lines = [*options.overrides, "marl.run.name=reward", f"trainer.total_training_steps={options.then_reward}"]
        train(folder / "reward.yaml", lines, plugins=options.plugin, progress=display)
        stages["after reward"] = folder / "reward", None
    compare(stages, options, folder, display)
    model = Run(imitation).config.policies[STUDENT].actor_rollout_ref.model.path
    files = f"data.train_files={folder}/conversations.parquet model.path={model}"
    display.print(f"imitation by verl's SFT trainer: torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer {files}")
    display.print(f"training with reward: marl-verl train {shlex.join([f'{folder}/reward.yaml', *options.overrides])}")
    return 0


def recipe_of(options: argparse.Namespace, folder: Path) -> Any:
    """The recipe of the student, with the tasks and settings of the run."""
    composed, recipe = read_config(options.run / COMPOSED), OmegaConf.create({"defaults": ["marl_trainer", "_self_"]})
    content: Any = OmegaConf.to_container(composed)
    for key, name, value in settings_of(content, defaults_of(composed)):
        if verdict(key) == PASS and not OF_TEAM.match(name):
            OmegaConf.update(recipe, name, value, force_add=True)
    marl, copies, section = content["marl"], (options.run / COPIES).resolve(), yaml.safe_load(options.into)
    kept = marl["run"].keys() - {"name", "recipe", "folder", *names("state")}
    if (task := marl["task"])["reward"]:  # which wraps the task set of a recipe
        task |= {"name": task["options"].get("task", "???"), "options": task["options"].get("options", {})}
        task["reward"] = str(copies / REWARDS / Path(task["reward"]).name)
    single, reasoning = {"name": "single"}, {"name": "after-reasoning", "options": {"separator": options.exchange}}
    recipe.marl = {
        "run": {**{key: marl["run"][key] for key in sorted(kept)}, "dir": str(folder)},
        "plugins": [str(file) for file in sorted(copies.glob("*.py"))],
        "task": task,
        "workflow": single if options.exchange is None else reasoning,
        "rollout": marl["rollout"],
        "agents": {STUDENT: {"policy": STUDENT}},
        "policies": {STUDENT: section if isinstance(section, dict) else {"model": {"path": options.into}}},
    }
    return recipe


def imitate(options: argparse.Namespace, recipe: Any, display: Display) -> list[Any]:
    """Train the student on conversations, and let the recipe have the lengths that these need. Returns the messages."""
    lines = [*options.overrides, "marl.algorithm.name=imitation", "marl.run.name=imitation", "marl.run.keep_journals=0"]
    with alone():
        new = planned(Display.of(False), recipe, lines, options.plugin)
        for pretrained in pretrained_models(new.config, new.team).values():
            pretrained.fetch()
        chat = chat_of(STUDENT, new.resolved.policies[STUDENT], new.made)
        episodes, parts = episodes_of(options, display), check_team(new.config, new.team)
        said = asyncio.run(conversations(episodes, *parts, options.exchange, options.threshold))
        rows, actor = demonstrated(said, chat), new.config.actor_rollout_ref.actor
        for name, tokens in LENGTHS.items():
            longest = max(len(demonstration[tokens]) for row in rows for demonstration in row.data[KEY])
            new.config.data[name] = max(new.config.data[name], longest + longest // 4)
            OmegaConf.update(recipe, f"data.{name}", new.config.data[name], force_add=True)
        for config in (new.config, recipe):
            total = sum(new.config.data[name] for name in LENGTHS)
            OmegaConf.update(config, "actor_rollout_ref.rollout.max_model_len", total, force_add=True)
        batch = min(new.config.data.train_batch_size, len(rows))
        steps = options.epochs * (len(rows) // batch)
        actor.ppo_mini_batch_size = new.config.data.train_batch_size = batch
        actor.optim.lr *= FASTER
        new.config.trainer.update(total_training_steps=steps, save_freq=steps, test_freq=steps)
        check_engine(resolve(new.config, new.team), new.team)
        new.tasks["train"] = rows
        display.print(f"{len(said)} conversations of {len(rows)} tasks: {steps} steps of imitation")
        with locked(make_run_directory(new, display)) as lock:
            trained(new.folder, new.config, display, lock)
    return [messages for _, messages in said]


def episodes_of(options: argparse.Namespace, display: Display) -> list[Episode]:
    """The stored episodes of the team's training, or new greedy ones on its training tasks."""
    if options.stored:
        stored_file(options.run, "journals", options.step)  # MarlError without one
        steps = Run(options.run).episodes
        return [episode for step in steps if options.step in (None, step) for episode in steps[step]]
    tasks = read_tasks(options.run / DATA["train"])[: options.tasks]
    lines = [f"marl.rollout.keep_episodes={len(tasks)}"]
    checked = plan(options.run, lines, Options(options.step, options.tasks, greedy_only=True), options.plugin)
    with display.task(f"the team plays {len(tasks)} training tasks") as advance, locked(options.run) as lock:
        show = Display.of(lambda event: event["event"] == "playing" and advance(event["done"] / event["tasks"]))
        done = launch(replace(checked, tasks=tasks), show, lock)
    episodes = list(done.episodes())
    for suffix in (".json", ".jsonl", ".log"):  # no evaluation on held-out tasks
        done.file.with_suffix(suffix).unlink(missing_ok=True)
    return episodes


def compare(stages: dict[str, tuple[Path, int | None]], options: Any, folder: Path, display: Display) -> None:
    """Evaluate team and student on the held-out tasks, and show how much of the team's gain the student has."""
    numbers, rows = dict[str, Any](), [["", "success, greedy", "avg@8", "tokens a task"]]
    for label, (source, step) in stages.items():
        done = evaluate(source, step=step, plugins=options.plugin, progress=display).numbers
        done["tokens_per_task"] = sum(agent["tokens"] for agent in done["agents"].values()) / done["eval_tasks"]
        shares = [(done[name], *done[f"{name}_interval"]) for name in ("success", "avg@8")]
        cells = [f"{share:.1%} ({100 * low:.1f} to {100 * high:.1f})" for share, low, high in shares]
        rows.append([label, *cells, f"{done['tokens_per_task']:.1f}"])
        numbers[label] = done
    write_json(folder / "distil.json", numbers)
    display.print("\n".join(table(rows)))
    untrained, team, *_, student = (done["success"] for done in numbers.values())
    if team > untrained:
        display.print(f"the student has {(student - untrained) / (team - untrained):.0%} of the team's gain in success")
