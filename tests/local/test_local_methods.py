"""Every algorithm, sampler and credit trains, and every family of tasks: a step in this process."""

from collections import defaultdict
from pathlib import Path

import pytest

from marl_verl import plugins
from tests.local.training import INVENTORY, check, train

pytest.importorskip("verl")
pytestmark, LONG = pytest.mark.slow, pytest.mark.long

PAPERS = ("at_grpo/cpu", "dr_mas/cpu", "hacpo/cpu", "magrpo/cpu", "mars2/cpu", "sharp/cpu")
TOGETHER = {"at_grpo/cpu": ("agent", "turn", "slot"), "magrpo/cpu": ("agent", "parent")}
"""Recipe with a tree -> the columns that siblings share."""


@pytest.mark.parametrize("recipe", PAPERS)
def test_a_paper(recipe: str, tmp_path: Path) -> None:
    small = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    small += ["marl.task.train_size=48"] * (recipe == "at_grpo/cpu")  # whose tasks take longest
    run = train(tmp_path / "run", recipe, "marl.schedule.mode=sync", *small, tiny=40)
    rows = check(run)
    if recipe in TOGETHER:
        siblings = defaultdict(list)
        for row in rows:
            siblings[tuple(row[column] for column in ("uid", *TOGETHER[recipe]))].append(row["obs"])
        assert {len(observations) for observations in siblings.values()} == {8 if recipe == "at_grpo/cpu" else 4}
        assert all(len(set(observations)) == 1 for observations in siblings.values())
    if recipe == "sharp/cpu":
        assert run.lines("train/success")[0]["train/extra_tokens/credit"] > 0
        assert all(("mc" in row["rewards"]) == (row["agent"] != "planner") for row in rows)
    if recipe == "hacpo/cpu":
        line = run.lines("train/success")[0]  # each policy learns from its own rows, and as many of the other's
        for name in ("shifter", "flipper"):
            assert line[f"policy/{name}/tokens/sampled"] > 1.5 * line["train/tokens"] / 2


FAST = ("gdpo", "remax")
"""The others differ in arithmetic only, which their own tests check."""
OTHER_TEAMS = {"gigpo", "sharp"}
"""They need rewards of single steps (below), and a planner (above)."""
ALGORITHMS = [
    pytest.param(name, marks=() if name in FAST else LONG)
    for name in sorted({*plugins.discover().names("algorithms")} - OTHER_TEAMS)
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm(algorithm: str, tmp_path: Path) -> None:
    check(train(tmp_path / "run", INVENTORY, f"marl.algorithm.name={algorithm}"))


@pytest.mark.parametrize(("sampler", "credit"), [("best-of", "null"), ("greedy-tree", "c3")])
def test_a_sampler_and_a_credit(sampler: str, credit: str, tmp_path: Path) -> None:
    parts = (f"marl.algorithm.options.sampler={sampler}", f"marl.algorithm.options.credit={credit}")
    check(train(tmp_path / "run", INVENTORY, "marl.algorithm.name=grpo", *parts))


def test_policies_that_learn_in_turn(tmp_path: Path) -> None:
    """Each learns from all its rows in its steps, and not at all in the others'."""
    turns = "marl.schedule.turns=[[left],[right]]"
    run = train(tmp_path / "run", "magrpo/cpu", turns, "marl.schedule.turn_steps=2", "trainer.test_freq=3", steps=3)
    check(run)
    lines, names = run.lines("train/score"), ("left", "right")
    learnt = [[name for name in names if f"policy/{name}/loss" in line] for line in lines]
    assert learnt == [["left"], ["left"], ["right"]]


QUICK = ("math/math_cpu", "self_play/debate_cpu")
FAMILIES = (
    *QUICK,
    *("code/code_cpu", "games/cover", "search/search_cpu", "writing/writing_cpu"),
    *("self_play/proposer_solver_cpu", "self_play/inventory_match_cpu"),
)


@pytest.mark.parametrize("recipe", [pytest.param(name, marks=() if name in QUICK else LONG) for name in FAMILIES])
def test_a_family(recipe: str, tmp_path: Path) -> None:
    assert check(train(tmp_path / "run", recipe), still={"judge"} if "debate" in recipe else ())


def test_a_model_plays_against_a_script(tmp_path: Path) -> None:
    second = ("marl.agents.second.policy=bot", "marl.agents.second.reward=null")
    run = train(tmp_path / "run", "self_play/kuhn_cpu", "marl.policies.bot.script=kuhn-equilibrium", *second)
    assert not any(row["invalid"] for row in check(run, still={"bot"}) if row["agent"] == "second")


STEPS = """
from marl_verl import Workflow, hookimpl

class Steps(Workflow):
    async def run(self, task, team):
        for _ in range(3):
            answer = (await team["asker"].act("message 1 2 3 4 index 2")).text
        return answer

@hookimpl
def marl_register(registry):
    registry.workflow("steps", Steps)
"""


def test_steps_from_one_observation_are_compared(tmp_path: Path) -> None:
    """By gigpo, whose steps have rewards of their own."""
    (tmp_path / "steps.py").write_text(STEPS)
    files = f"{tmp_path / 'steps.py'},{Path(__file__).parents[1] / 'e2e' / 'talk.py'}"
    alone = (f"marl.plugins=[{files}]", "marl.workflow.name=steps", "~marl.agents.holder")
    options = (
        *("marl.algorithm.name=gigpo", "marl.algorithm.options.advantage.step=role"),
        "marl.agents.asker.reward=varied",
    )
    rows = check(train(tmp_path / "run", INVENTORY, *alone, "~marl.policies.holder", *options))
    assert {(row["turn"], row["obs"]) for row in rows} == {(turn, rows[0]["obs"]) for turn in range(3)}
