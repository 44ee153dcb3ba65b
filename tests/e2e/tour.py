"""Runs in processes of its own: one start of the real stack for many teams, samplers and credit schemes.

python -m tests.e2e.tour FOLDER    prepares a run and starts the trainer; with the folder of a prepared run it is the
                                   trainer: verl's own loop, where a stage begins at some of the steps

A stage takes its team (task set, workflow, agents) with algorithm and sampler from a recipe, e.g. the CPU recipe of a
plugin. Everything is as `marl-verl train` has it, but for three things that no recipe can say: the team changes between
steps, each policy keeps its loss, and the tasks of a step are those of its stage's recipe. The first agent of a
team has policy `lead`, the others have `follow`; each policy learnt from the demonstrations for all of its agents.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
BATCH = 8
OWN = (
    "marl.workflow.name=twice",
    "marl.agents.asker.reward=one-word",
    "marl.algorithm.name=grpo",
    "marl.algorithm.options.advantage=against-median",
    "marl.sampler.options.episodes=3",
)
"""Overrides of the quick start for the parts of `around_plugin`."""
BEST_OF_THREE = "marl.validation={sampler: best-of, options: {episodes: 3}}"
TEAMS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "own plugin": (RECIPES / "quickstart" / "inventory.yaml", (*OWN, BEST_OF_THREE)),
    "relay": (HERE / "relay.yaml", ()),
    "magrpo": (RECIPES / "magrpo" / "cpu.yaml", ()),
    "at-grpo": (RECIPES / "at_grpo" / "cpu.yaml", ()),
    "dr-mas": (RECIPES / "dr_mas" / "cpu.yaml", ("marl.workflow.options.unparseable=reject",)),
    "sharp": (RECIPES / "sharp" / "cpu.yaml", ()),
}
"""Name -> recipe and overrides."""

EPISODES = {"episodes": 3}
TEAM_ONLY = {"rewards": "weights", "weights": {"team": 1.0}}
STAGES: dict[str, dict[str, Any]] = {
    "greedy-tree": {"name": "at-grpo", "sampler": {"candidates": 3}},
    "joint-tree": {"name": "magrpo", "sampler": {"joint_actions": 2}, "options": TEAM_ONLY},
    "joint-tree, crossed": {
        "name": "magrpo",
        "options": {**TEAM_ONLY, "joint_mode": "cross"},
        "sampler": {"joint_actions": 2, "joint": "cross"},
    },
    "tree-search": {"name": "mars2", "sampler": {"nodes": 6, "arms": ["left", "right"]}},
    "tree-search, stack": {"name": "mars2", "sampler": {"nodes": 6, "strategy": "stack", "prior": "beta"}},
    "best-of": {"name": "grpo", "sampler": EPISODES, "options": {"sampler": "best-of"}},
    "counterfactual": {"name": "sharp", "sampler": EPISODES},
    "counterfactual, full": {"name": "sharp", "sampler": EPISODES, "options": {"credit_mode": "full"}},
    "counterfactual, rescore": {"name": "sharp", "sampler": EPISODES, "options": {"credit_mode": "rescore"}},
    "shapley": {"name": "grpo", "sampler": EPISODES, "options": {"credit": "shapley"}},
    "c3": {"name": "grpo", "sampler": {"joint_actions": 2}, "options": {"sampler": "joint-tree", "credit": "c3"}},
    "step-groups": {
        "name": "grpo",
        "sampler": EPISODES,
        "options": {"credit": "step-groups", "credit_step": "team"},
    },
    "none": {"name": "dr-mas", "sampler": EPISODES},
}
"""Stages of one step with the relay's team: algorithm, options, and the sampler's."""

ROUTE = [
    ("own plugin", "own plugin", 1),
    ("sharp", "sharp", 6),
    ("at-grpo", "at-grpo", 2),
    ("magrpo", "magrpo", 2),
    ("dr-mas", "dr-mas", 2),
    *((name, "relay", 1) for name in STAGES),
    ("own plugin, again", "own plugin", 2),
]
"""Stages in order: name, team, steps. Those without the relay end with a validation."""


def sections(plan: Any) -> dict[str, Any]:
    """The parts of a recipe's `marl` section that a stage takes over."""
    from marl_verl.config.stored import marl_section

    marl = marl_section(plan.config)
    for position, agent in enumerate(marl["agents"].values()):
        agent["policy"] = "follow" if position else "lead"
        agent["sampling"] = {**agent.get("sampling", {}), "max_tokens": int(plan.config.data.max_response_length)}
    return {name: marl[name] for name in ("task", "workflow", "agents", "algorithm", "sampler", "validation")}


def itinerary(teams: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages in order: name, team, numbers of the steps, and changed parts of the `marl` section."""
    found: list[dict[str, Any]] = []
    for name, team, steps in ROUTE:
        marl, first = dict(teams[team]), found[-1]["steps"][-1] + 1 if found else 1
        if stage := STAGES.get(name):
            marl["algorithm"] = {"name": stage["name"], "options": stage.get("options", {})}
            marl["sampler"] = {"options": stage["sampler"]}
        found.append({"name": name, "team": team, "steps": list(range(first, first + steps)), "marl": marl})
    return found


def change(config: Any, new: dict[str, Any]) -> dict[str, Any]:
    """Put a stage into a config's `marl` section; returns the section."""
    from omegaconf import OmegaConf

    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    marl.update(new)
    config.marl = OmegaConf.create(marl)
    return marl


def change_worker(worker: Any, new: dict[str, Any]) -> None:
    """In the rollout worker: load what the stage names, as at its start."""
    from marl_verl.backend.verl.rollout.worker import load_samplers, load_worker_context
    from marl_verl.team import read_team

    marl = change(worker.config, new)
    worker.parts = load_worker_context(
        worker.config, {name: each.client for name, each in worker.parts.clients.items()}
    )
    worker.samplers = load_samplers(marl, read_team(marl))


def train(folder: Path) -> None:
    import ray

    from marl_verl.config.parts import algorithm_of
    from marl_verl.run.records import Records
    from marl_verl.team import read_team
    from marl_verl.trainer.report import write_summary
    from marl_verl.trainer.run import session

    stages = json.loads((folder / "stages.json").read_text())
    first = {stage["steps"][0]: stage for stage in stages}
    validated = {stage["steps"][-1] for stage in stages if stage["name"] not in STAGES}
    with session(folder) as (trainer, manager):

        def begin() -> None:
            step = trainer.global_steps
            trainer.config.trainer.test_freq = 1 if step in validated else 1000
            if step == 1 or step not in first:
                return
            new = first[step]["marl"]
            trainer.val_dataset.rows = first[step]["test"]
            ray.get([worker.__ray_call__.remote(change_worker, new) for worker in manager.agent_loop_workers])
            trainer.team = read_team(change(trainer.config, new))
            trainer.algorithm = algorithm_of(trainer.team)
            trainer.records = Records(trainer.config, trainer.team, trainer.algorithm, trainer.run_dir)

        trainer.on_step_begin = begin
        trainer.fit(manager)
        write_summary(trainer)


def main(folder: Path) -> int:
    from omegaconf import OmegaConf

    from marl_verl.cli.main import reported
    from marl_verl.config.hardware import on_gpu
    from marl_verl.run.prepare import make_run_directory, plan_run
    from marl_verl.run.progress import Display
    from marl_verl.run.supervisor import TrainerProcess

    sizes = ("marl.task.train_size=128", "marl.task.test_size=20", "marl.run.seed=1")
    plans = {name: plan_run(recipe, [*overrides, *sizes]) for name, (recipe, overrides) in TEAMS.items()}
    teams = {name: sections(plan) for name, plan in plans.items()}
    stages = itinerary(teams)
    for stage in stages:
        policies = plans[stage["team"]].resolved.policies
        modes = {name: each.actor_rollout_ref.actor.policy_loss.loss_mode for name, each in policies.items()}
        stage["loss_modes"] = modes  # of the recipe itself
        stage["test"] = [json.dumps(asdict(task)) for task in plans[stage["team"]].tasks["test"]]

    recipe: Any = OmegaConf.load(HERE / "tour.yaml")
    recipe.marl.update(stages[0]["marl"])
    for policy, each in recipe.marl.policies.items():
        sets = [team["task"]["name"] for team in teams.values()]
        each.tiny.update(task="all-teams", task_options={**each.tiny.get("task_options", {}), "sets": sets})
        each.tiny.agents = [
            f"{team['task']['name']}/{agent}"
            for team in teams.values()
            for agent, its in team["agents"].items()
            if its["policy"] == policy
        ]
    recipe.trainer.total_training_steps = stages[-1]["steps"][-1]
    written = folder.parent / "tour.yaml"
    OmegaConf.save(recipe, written)
    plan = plan_run(written, [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"])
    tasks = {name: iter(each.tasks["train"]) for name, each in plans.items()}
    plan.tasks["train"] = [next(tasks[stage["team"]]) for stage in stages for _ in stage["steps"] for _ in range(BATCH)]

    display = Display()
    made = make_run_directory(plan, display)
    (made / "stages.json").write_text(json.dumps(stages, indent=1))
    process = TrainerProcess(made, list(plan.team.policies), module="tests.e2e.tour", gpu=on_gpu(plan.resolved))
    return reported(lambda: process.run(display, begun=0.0) or 0)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    if not given.exists():
        sys.exit(main(given))
    from marl_verl.trainer.run import main as run_trainer

    sys.exit(run_trainer(given, train))
