"""Runs in processes of its own: one start of the real stack, and a training step with every sampler and credit scheme.

python -m tests.e2e.tour RECIPE FOLDER     prepares a run and starts the trainer
python -m tests.e2e.tour FOLDER            is the trainer: verl's own loop, where each step has another algorithm

Everything is as `marl-verl train` has it, but for two things: the algorithm changes between steps, which no recipe can
say, and the loss is the first one's throughout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TEAM_ONLY = {"rewards": "weights", "weights": {"team": 1.0}}
EPISODES = {"episodes": 3}
STAGES: dict[str, dict[str, Any]] = {
    "greedy-tree": {"name": "at-grpo", "sampler": {"candidates": 3}},
    "joint-tree": {"name": "magrpo", "sampler": {"joint_actions": 2}, "options": TEAM_ONLY},
    "joint-tree, crossed": {
        "name": "magrpo",
        "sampler": {"joint_actions": 2, "joint": "cross"},
        "options": {**TEAM_ONLY, "joint_mode": "cross"},
    },
    "tree-search": {"name": "mars2", "sampler": {"nodes": 6, "arms": ["left", "right"]}},
    "tree-search, stack": {"name": "mars2", "sampler": {"nodes": 6, "strategy": "stack", "prior": "beta"}},
    "best-of": {"name": "grpo", "sampler": EPISODES, "options": {"sampler": "best-of"}},
    "counterfactual": {"name": "sharp", "sampler": EPISODES},
    "counterfactual, full": {"name": "sharp", "sampler": EPISODES, "options": {"credit_mode": "full"}},
    "counterfactual, rescore": {"name": "sharp", "sampler": EPISODES, "options": {"credit_mode": "rescore"}},
    "shapley": {"name": "grpo", "sampler": EPISODES, "options": {"credit": "shapley"}},
    "c3": {"name": "grpo", "sampler": {"joint_actions": 2}, "options": {"sampler": "joint-tree", "credit": "c3"}},
    "step-groups": {"name": "grpo", "sampler": EPISODES, "options": {"credit": "step-groups", "credit_step": "team"}},
    "none": {"name": "dr-mas", "sampler": EPISODES},
}


def change(config: Any, stage: dict[str, Any]) -> dict[str, Any]:
    """Put a stage into a config's `marl` section; returns the section."""
    from omegaconf import OmegaConf

    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    marl["algorithm"] = {"name": stage["name"], "options": stage.get("options", {})}
    marl["sampler"] = {"options": stage["sampler"]}
    config.marl = OmegaConf.create(marl)
    return marl


def change_worker(worker: Any, stage: dict[str, Any]) -> None:
    """In the rollout worker: load what the stage names, as at its start."""
    from marl_verl.rollout.worker import load_samplers, load_worker_context
    from marl_verl.team import read_team

    marl = change(worker.config, stage)
    worker.parts = load_worker_context(
        worker.config, {name: each.client for name, each in worker.parts.clients.items()}
    )
    worker.samplers = load_samplers(marl, read_team(marl))


def train(folder: Path) -> None:
    import ray

    from marl_verl.config.parts import algorithm_of
    from marl_verl.team import read_team
    from marl_verl.trainer.records import Records
    from marl_verl.trainer.report import write_summary
    from marl_verl.trainer.run import session

    stages = list(STAGES.values())
    with session(folder) as (trainer, manager):

        def begin() -> None:
            stage = stages[trainer.global_steps - 1]
            ray.get([worker.__ray_call__.remote(change_worker, stage) for worker in manager.agent_loop_workers])
            trainer.team = read_team(change(trainer.config, stage))
            trainer.algorithm = algorithm_of(trainer.team)
            trainer.records = Records(trainer.config, trainer.team, trainer.algorithm, trainer.run_dir)

        trainer.on_step_begin = begin
        trainer.fit(manager)
        write_summary(trainer)


def main(recipe: Path, folder: Path) -> int:
    from marl_verl.cli.main import reported
    from marl_verl.process.progress import Display
    from marl_verl.process.supervisor import TrainerProcess
    from marl_verl.trainer.prepare import make_run_directory, plan_run

    display = Display()
    overrides = [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"]
    plan = plan_run(recipe, [*overrides, f"trainer.total_training_steps={len(STAGES)}"])
    made = make_run_directory(plan, display)
    process = TrainerProcess(made, list(plan.team.policies), module="tests.e2e.tour")
    return reported(lambda: process.run(display, begun=0.0) or 0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(Path(sys.argv[1]))
    else:
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
