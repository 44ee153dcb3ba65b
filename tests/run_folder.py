"""A run directory as the trainer writes it, made without training."""

import json
from pathlib import Path
from typing import Any

from marl_verl_testing.algorithm import row_of as row
from omegaconf import OmegaConf

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.algo.sampling import Failure, Sample
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Act, Action, ActRecord, Episode, Journal, Turn
from marl_verl.episode.codec import as_line
from marl_verl.episode.journal import CallRecord
from marl_verl.run.checkpoint.team import describe
from marl_verl.run.prepare import make_run_directory, plan_run
from marl_verl.run.progress import Display
from marl_verl.run.records import header
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, Named, PolicyConfig, TeamConfig

PLANTED = "<script>document.title = 'planted'</script><img src=x onerror=\"document.title = 'planted'\">"


def run_folder(folder: Path, steps: int = 3, tasks: int = 2, agents: tuple[str, str] = ("scout", "mover")) -> Path:
    """A run of `steps` steps with two episodes of four turns per task; the last task is a tree."""
    folder.mkdir(parents=True)
    team, run = team_of(agents), RunDir(folder)
    marl = {
        **{"run": {"seed": 3, "recipe": "my team.yaml"}, "agents": {name: {"policy": name} for name in agents}},
        **{"policies": {name: {"frozen": False} for name in agents}, "task": {"name": "inventory", "test_size": 40}},
        **{"workflow": {"name": "inventory"}, "algorithm": {"name": "grpo"}},
    }
    OmegaConf.save(OmegaConf.create({"marl": marl, "trainer": {"total_training_steps": steps}}), folder / "config.yaml")
    plugin = {"plugin": "builtin", "distribution": "marl-verl", "version": "9.8.7"}
    (folder / "plugins.json").write_text(json.dumps([plugin]))
    start = {"arguments": ["my team.yaml", "a.b=1"], "machine": {"gpus": [], "cpus": 2, "memory_gib": 8.0}}
    start["machine"] |= {"system": "Linux", "python": "3.11"}
    (folder / "starts.json").write_text(json.dumps([{**start, "packages": {"verl": "0.9.1"}}]))
    for step in range(steps + 1):
        run.metrics(step, {"validation/success": 0.25 + 0.5 * step / steps, "validation/success_sampled": 0.3})
        if step:
            rewards = {f"agent/{name}/reward": step / steps for name in agents}
            run.metrics(step, {"train/success": step / steps, "train/tokens": 100.0, **rewards, "seconds/step": 2.0})
            write_step(run, team, step, tasks)
    return folder


def write_step(run: RunDir, team: TeamConfig, step: int, tasks: int) -> None:
    """Episodes and rows of a training step, and sample episodes of a validation."""
    algorithm = algorithm_named("grpo", {}, "options")
    samples = [_sample(team, f"s{step}t{at:05d}", at, tree=at == tasks - 1) for at in range(tasks)]
    lines = [line for sample in samples for line in sample_lines(sample, sample.episodes[0].uid, "task 0", False)]
    first = header(team, algorithm, step, "train", 3, Named("independent", {"episodes": 2}))
    run.lines("journals", step, [as_line(first), *lines])
    held_out = sample_lines(_sample(team, f"g{step}t00000", 0, tree=False), f"g{step}t00000", "task 0", False)
    run.lines("episodes", step, [as_line({**first, "split": "test"}), *held_out])
    turns = {(turn.uid, turn.session, turn.index): turn for sample in samples for turn in sample.turns}
    table = RowTable.from_rows([row(turn) for turn in turns.values()])
    run.rows(step, step_document("grpo", algorithm, table, algorithm.compute(table), step))


def team_of(agents: tuple[str, str]) -> TeamConfig:
    return TeamConfig(
        {name: AgentConfig(name, name) for name in agents},
        {name: PolicyConfig(name) for name in agents},
        Named("inventory"),
        Named("inventory"),
        Named("grpo"),
    )


def _sample(team: TeamConfig, uid: str, number: int, tree: bool) -> Sample:
    task = Task(f"task {number} {PLANTED}", f"prompt {PLANTED}", {"gold": PLANTED})
    sample = Sample([_episode(team, uid, session, task, tree) for session in range(1 if tree else 2)])
    sample.failures = [Failure(7, "timeout", f"too long {PLANTED}")]
    return sample


def _episode(team: TeamConfig, uid: str, session: int, task: Task, tree: bool) -> Episode:
    """Four acts, one call, one invalid action; in a tree, a second candidate of each act."""
    records: list[Any] = []
    turns, beside = [], []
    for index in range(4):
        agent, slot = list(team.agents)[index % 2], str(index // 2)
        act = Act(agent, slot, index // 2, index, ({"role": "user", "content": f"observation {index} {PLANTED}"},))
        action = Action(f"action {index} of {session} {PLANTED}", response_ids=[1] * (index + 1))
        node, parent = (f"{index}-0", f"{index - 1}-0" if index else None) if tree else (None, None)
        place = 2 * index if tree else index
        turn = Turn(act, action, uid, session, agent, index=place, node=node, parent=parent)
        turn.rewards = {"role": 0.5 * index} | ({"team": 1.0} if tree else {})
        turn.team_reward = None if tree else float(session)
        turn.invalid = f"no number {PLANTED}" if index == 1 else None
        records.append(ActRecord(act, action))
        turns.append(turn)
        if tree:
            other = Turn(act, Action("beside"), uid, session, agent, index=place + 1, node=f"{index}-1", parent=parent)
            other.rewards = {"role": 0.0, "team": 0.0}
            beside.append(other)
        if index == 0:
            value = json.dumps({"hits": PLANTED})
            records.append(CallRecord("tools:look_up", json.dumps([PLANTED]), value, agent=agent))
    success = tree or session == 1
    return Episode(
        uid, session, task, turns, f"answer {PLANTED}", success, Journal(tuple(records), 5), score=float(success),
        off_path_turns=beside,
    )  # fmt: skip


def made_run(recipe: Path, step: int, *overrides: str) -> Path:
    """The run directory that `train` makes, with a checkpoint at a step that has nothing but its description."""
    folder = make_run_directory(plan_run(recipe, list(overrides)), Display())
    saved = folder / "checkpoints" / f"step_{step}"
    saved.mkdir(parents=True)
    config: Any = OmegaConf.load(folder / "config.yaml")
    (saved / "team.json").write_text(json.dumps({**describe(config, step), "files": {}}))
    return folder
