"""Training in this process, in seconds: few tasks, and models that have learnt little."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from marl_verl_testing.real import Finished
from omegaconf import OmegaConf

import marl_verl
from marl_verl import plugins
from marl_verl.plugins import one_file
from tests.weights import change

RECIPES = Path(__file__).parents[2] / "recipes"
INVENTORY = RECIPES / "quickstart" / "inventory.yaml"


def train(folder: Path, recipe: Path | str, *overrides: str, steps: int = 1, tiny: int = 30) -> Finished:
    """Train a recipe, or one of `RECIPES`, with its run directory at `folder`.

    Args:
        tiny: number of updates that made each tiny model.
    """
    path = RECIPES / f"{recipe}.yaml" if isinstance(recipe, str) else recipe
    policies: Any = OmegaConf.load(path).marl.policies
    made = [f"++marl.policies.{name}.tiny" for name, policy in policies.items() if policy.get("tiny")]
    small = [f"{key}.{name}={value}" for key in made for name, value in (("steps", tiny), ("batch_size", 16))]
    small += [f"trainer.{name}={steps}" for name in ("total_training_steps", "test_freq", "save_freq")]
    small += ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "marl.task.test_size=4"]
    small += ["actor_rollout_ref.actor.optim.lr_warmup_steps=0", "marl.run.seed=1"]
    place = [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"]
    marl_verl.train(path, [*small, *overrides, *place], backend="local", progress=False)
    return Finished(folder, 0, "")


def resume(folder: Path, *overrides: str) -> Finished:
    marl_verl.train(resume=marl_verl.load_run(folder), overrides=list(overrides), backend="local", progress=False)
    return Finished(folder, 0, "")


def check(run: Finished, still: Collection[str] = ()) -> list[dict[str, Any]]:
    """Nothing failed, all policies but `still` have changed, and a step is explained as trained. The rows."""
    lines = run.lines("train/success")
    assert [line["train/failed_episodes"] for line in lines] == [0] * len(lines)
    stored = marl_verl.load_run(run.folder)
    assert stored.summary is not None
    assert {name for name in stored.summary["policies"] if not change(run.folder, name)} == set(still)
    plugins.use_files(one_file.files_of_run(run.folder))
    assert marl_verl.explain(run.folder, step=1).difference is None
    return [row for line in lines for row in stored.rows[line["step"]]["rows"]]


def episodes(run: Finished, step: int) -> list[dict[str, Any]]:
    """The episodes in a step's journal."""
    lines = (run.folder / "journals" / f"step_{step:05d}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "journal" in line]
