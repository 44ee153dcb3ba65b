"""Task sets of the distributions that draw their tasks: the kit accepts them, and their demonstrations are seeded, in
the words of their vocabulary, and of known agents only."""

from pathlib import Path
from typing import Any

import pytest
from marl_verl_code.small_programs import SmallPrograms
from marl_verl_games.cover import AGENTS, Cover
from marl_verl_games.crew import Crew
from marl_verl_games.plan_path import PlanPath
from marl_verl_games.tiny_plan_path import TinyPlanPath
from marl_verl_magrpo.rendezvous import Rendezvous
from marl_verl_mars2.symbols import SymbolTests
from marl_verl_self_play.kuhn_poker import KuhnPoker
from marl_verl_self_play.proposer_solver import ProposedArithmetic
from marl_verl_sharp.ledgers import ThreeLedgers
from marl_verl_testing import check_task
from marl_verl_tiny.inventory import Inventory, InventoryMatch
from marl_verl_tiny.split_plan_path import SplitPlanPath
from marl_verl_writing.two_writers import WordWriting

from marl_verl import MarlError
from marl_verl.plugins.one_file import load_file, read_file

FILES = {file.stem: file for file in Path(__file__).parents[3].glob("recipes/*/*.py")}
guess, sums = (load_file(read_file(f"{name}.py", FILES[name])) for name in ("second_guess", "boxed_sums"))
SETS: list[tuple[Any, list[Any]]] = [
    *((tasks, ["3", "none", ""]) for tasks in (Inventory(), guess.SecondGuessTasks())),
    (InventoryMatch(), [{"answers": {"red": "4", "blue": "7"}}]),
    (KuhnPoker(), [{"text": "", "rewards": {"first": 1.0, "second": -1.0}, "illegal": 0}]),
    (ProposedArithmetic(terms=3), [{"text": "", "problem": "3 + 4", "correct": [True, False]}]),
    *((Crew(), ["1 2", "none", ""]), *((Cover(items), ["a b", "none", ""]) for items in (2, 4))),
    *((tasks, ["executor moves U R", "planner plans ?", ""]) for tasks in (PlanPath(size=5), TinyPlanPath())),
    *((SplitPlanPath(), ["a1 a2", "b2", ""]), (ThreeLedgers(), ["3", "a", ""]), (SymbolTests(), ["1 2 3", "1", ""])),
    *((Rendezvous(), [{"left": "c f 4 2", "right": "stay"}]), (sums.BoxedSums(), ["\\boxed{3}", "7", ""])),
    (SmallPrograms(seconds=20), ["print(1)", "1 / 0", ""]),
    (WordWriting(), [{"one": "dogs farms", "two": "however dogs farms deep"}, {"one": "", "two": "dogs"}]),
]
names = [type(tasks).__name__ for tasks, _ in SETS]


@pytest.mark.parametrize(("tasks", "answers"), SETS, ids=names)
def test_the_kit_accepts_the_tasks(tasks: Any, answers: list[Any]) -> None:
    check_task(tasks, lambda _: answers, count=3 if isinstance(tasks, SmallPrograms) else 8, scores=(-1, 3))


AGENTS_OF = {
    "Cover": AGENTS[:2],
    "TinyPlanPath": ("planner", "executor", "solo"),
    "InventoryMatch": ("red-holder", "blue-asker"),
    "KuhnPoker": ("first", "second"),
    "ProposedArithmetic": ("proposer", "solver"),
}


@pytest.mark.parametrize("tasks", [tasks for tasks, _ in SETS if type(tasks) is not PlanPath], ids=str)
def test_demonstrations_are_of_the_vocabulary(tasks: Any) -> None:
    vocabulary, agents = tasks.vocabulary(), AGENTS_OF.get(type(tasks).__name__) or tasks.agents
    assert len(set(vocabulary)) == len(vocabulary)
    for agent in agents:
        pairs = tasks.demonstrations(agent, 200, 0, 0.5)
        assert pairs == tasks.demonstrations(agent, 200, 0, 0.5) != tasks.demonstrations(agent, 200, 1, 0.5)
        shown = {word for pair in pairs for word in " ".join(pair).split()}
        assert isinstance(tasks, SmallPrograms) or shown <= set(vocabulary)  # whose vocabulary is learnt byte pairs
    with pytest.raises(MarlError, match="did you mean"):
        tasks.demonstrations(f"{agents[0]}s", 1, 0, 1.0)
