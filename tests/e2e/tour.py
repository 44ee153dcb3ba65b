"""One start of the real stack for the methods of four papers: the team changes between steps.

python -m tests.e2e.tour FOLDER    prepares a run and starts the trainer; with the folder of a prepared run it is the
                                   trainer, each of whose steps has another team
It is also the plugin of that run.

A step takes its team (task set, workflow, agents) with algorithm and sampler from the CPU recipe of a method.
Everything is as `marl-verl train` has it, but for three things that no recipe can say: the team changes between steps,
each policy keeps its loss, and the tasks of a step are those of its recipe. The first agent of a team has policy
`lead`, the others have `follow`; each policy learnt from the demonstrations for all of its agents.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_verl import Task, TaskSet, hookimpl, plugins

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
BATCH, SPARE = 8, 50
METHODS = ("sharp", "at_grpo", "magrpo", "dr_mas")
"""In the order of the steps; `SPARE` more steps of the last one follow, during which the run is stopped."""
OPTIONS = {"dr_mas": ("marl.workflow.options.unparseable=reject",)}


class AllTeams(TaskSet):
    """The vocabulary and the demonstrations of several task sets; an agent is named `TASK/AGENT`.

    Options:
        sets: registered names of the task sets.
    """

    sets: Sequence[str] = ()

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        raise NotImplementedError

    def vocabulary(self) -> list[str]:
        return list(dict.fromkeys(word for name in self.sets for word in _task_set(name).vocabulary()))

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        name, _, agent = agent.partition("/")
        return _task_set(name).demonstrations(agent, count, seed, good)


def _task_set(name: str) -> Any:
    return plugins.load().get("tasks", name)()


@hookimpl
def marl_register(registry: Any) -> None:
    registry.task("all-teams", AllTeams)


def sections(plan: Any) -> dict[str, Any]:
    """The parts of a recipe's `marl` section that a step takes over."""
    from marl_verl.config.stored import marl_section

    marl = marl_section(plan.config)
    for position, agent in enumerate(marl["agents"].values()):
        agent["policy"] = "follow" if position else "lead"
        agent["sampling"] = {**agent.get("sampling", {}), "max_tokens": int(plan.config.data.max_response_length)}
    return {name: marl[name] for name in ("task", "workflow", "agents", "algorithm", "sampler", "validation")}


def change(config: Any, new: dict[str, Any]) -> dict[str, Any]:
    """Put a team into a config's `marl` section; returns the section."""
    from omegaconf import OmegaConf

    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    marl.update(new)
    config.marl = OmegaConf.create(marl)
    return marl


def change_worker(actor: Any, new: dict[str, Any]) -> None:
    """In the rollout worker: load what the step names, as at its start."""
    from marl_verl.backend.rollout.worker import load_samplers, load_worker_context
    from marl_verl.team import read_team

    worker = actor.worker
    marl = change(worker.config, new)
    clients = {name: client.client for name, client in worker.parts.clients.items()}
    worker.parts = load_worker_context(worker.config, clients)
    worker.samplers = load_samplers(marl, read_team(marl))


def train(folder: Path) -> None:
    import ray

    from marl_verl.config.parts import algorithm_of
    from marl_verl.run.records import Records
    from marl_verl.team import read_team
    from marl_verl.trainer.run import session

    teams = json.loads((folder / "teams.json").read_text())
    with session(folder) as trainer:
        sample = trainer.sampling.sample

        def with_team() -> Any:
            if trainer.step <= len(METHODS):
                new = teams[METHODS[trainer.step - 1]]
                ray.get([worker.__ray_call__.remote(change_worker, new) for worker in trainer.rollouts.workers])
                trainer.team = read_team(change(trainer.config, new))
                trainer.algorithm = algorithm_of(trainer.team)
                trainer.records = Records(trainer.config, trainer.team, trainer.algorithm, trainer.run_dir)
            return sample()

        trainer.sampling.sample = with_team
        trainer.fit()


def main(folder: Path) -> int:
    from omegaconf import OmegaConf

    from marl_verl.cli.main import reported
    from marl_verl.config.hardware import on_gpu
    from marl_verl.run.prepare import make_run_directory, plan_run
    from marl_verl.run.progress import Display
    from marl_verl.run.supervisor import TrainerProcess

    sizes = (f"marl.task.train_size={BATCH * (1 + SPARE)}", "marl.task.test_size=8", "marl.run.seed=1")
    plans = {name: plan_run(RECIPES / name / "cpu.yaml", [*OPTIONS.get(name, ()), *sizes]) for name in METHODS}
    teams = {name: sections(plan) for name, plan in plans.items()}
    recipe: Any = OmegaConf.load(HERE / "tour.yaml")
    recipe.marl.update(teams[METHODS[0]])
    for policy, settings in recipe.marl.policies.items():
        settings.tiny.update(task="all-teams", task_options={"sets": [team["task"]["name"] for team in teams.values()]})
        settings.tiny.agents = [
            f"{team['task']['name']}/{name}"
            for team in teams.values()
            for name, agent in team["agents"].items()
            if agent["policy"] == policy
        ]
    recipe.trainer.total_training_steps = len(METHODS) + SPARE
    path = folder.parent / "tour.yaml"
    OmegaConf.save(recipe, path)
    plan = plan_run(path, [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"])
    batches = [plan.tasks["train"][:BATCH] for plan in plans.values()]
    spare = plans[METHODS[-1]].tasks["train"][BATCH:]
    plan.tasks["train"] = [task for batch in (*batches, spare) for task in batch]

    display = Display()
    made = make_run_directory(plan, display)
    (made / "teams.json").write_text(json.dumps(teams, indent=1))
    process = TrainerProcess(made, list(plan.team.policies), module="tests.e2e.tour", gpu=on_gpu(plan.resolved))
    return reported(lambda: process.run(display, begun=0.0) or 0)


if __name__ == "__main__":
    argument = Path(sys.argv[1])
    if not argument.exists():
        sys.exit(main(argument))
    from marl_verl.trainer.run import main as run_trainer

    sys.exit(run_trainer(argument, train))
