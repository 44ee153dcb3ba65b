"""The bundled tasks: held-out sets, scoring, and that only both agents together can solve them."""

import asyncio
from collections.abc import Callable

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown
from marl_verl_tiny import grid
from marl_verl_tiny.inventory import ORDINALS, HolderAsker, Inventory, InventoryMatch, InventoryMatchGame
from marl_verl_tiny.split_plan_path import ScoutMover, SplitPlanPath

from marl_verl import Workflow
from marl_verl.algo.sampling import Independent
from marl_verl.tasks import Task, TaskSet

DIGITS = Task("i", "digits", {"digits": ["4", "7", "1", "9"], "index": 2})


def board(start: str, walls: list[str], goal: str, landmark: str = "d4") -> Task:
    data = {"size": 4, "start": start, "walls": walls, "goal": goal, "landmark": landmark}
    return Task(id="by hand", prompt="", data=data)


@pytest.mark.parametrize(
    ("answer", "score"), [("a2 a3", 1.0), ("a2", 0.0), ("a2 a3 a4", 0.0), ("b1 c1 c2 c3 b3 a3", 0.0)]
)
def test_a_walk_scores_when_it_is_legal_and_stops_on_the_goal(answer, score):
    assert SplitPlanPath().score(board("a1", ["c1", "d1"], "a3"), answer) == score


def test_actions_of_no_use_are_marked():
    task = board("a1", ["a2"], "c1")
    assert not check_workflow(ScoutMover(), task, ScriptedPolicy({"scout": "c1", "mover": "b1 c1"})).invalid
    lost = check_workflow(ScoutMover(), task, ScriptedPolicy({"scout": "z9", "mover": "a2"}))
    assert [agent for agent, _ in lost.invalid] == ["scout", "mover"]
    run = check_workflow(HolderAsker(), DIGITS, ScriptedPolicy({"holder": "1", "asker": "no"}))
    assert list(run.invalid.values()) == ["must be as many digits as the holder has", "not a digit"]


def success(tasks: TaskSet, workflow: Workflow, **agents: Callable[[list[str]], str]) -> float:
    """The mean score of a team whose answers are functions of the words of observations."""
    policy = ScriptedPolicy({name: lambda act: agents[act.agent](shown(act).split()) for name in agents})
    test = tasks.generate("test", 60, 0)
    return sum(tasks.score(task, check_workflow(workflow, task, policy).answer) for task in test) / len(test)


def walker(words: list[str]) -> str:
    """A mover that does all it can with what it sees."""
    walls, landmark = words[3:-2], words[-1]
    return "" if landmark in walls else " ".join(grid.walk(4, frozenset(walls), words[1], landmark))


def test_two_able_agents_solve_plan_path_and_one_cannot():
    def goes(scout: int, mover: Callable[[list[str]], str]) -> float:
        return success(SplitPlanPath(), ScoutMover(), scout=lambda words: words[scout], mover=mover)

    assert goes(1, walker) == 1.0
    assert goes(3, walker) == 0.0  # the landmark instead of the goal
    assert goes(1, lambda words: " ".join(grid.straight(4, words[1], words[-1]))) == 0.0


def test_two_able_agents_solve_inventory_and_one_cannot():
    def asker(words: list[str]) -> str:
        return words[1 + ORDINALS.index(words[-1])]

    def goes(holder: Callable[[list[str]], str], asker: Callable[[list[str]], str]) -> float:
        return success(Inventory(), HolderAsker(), holder=holder, asker=asker)

    assert goes(lambda words: " ".join(words[1:]), asker) == 1.0
    careless = goes(lambda words: " ".join([words[1]] * 4), asker)
    assert careless == goes(lambda words: " ".join(words[1:]), lambda words: words[1]) < 0.45


# Team against team: two teams answer the same question of the inventory game, and the better one wins


SIDES = {f"{side}-{role}": side for side in ("red", "blue") for role in ("holder", "asker")}


def match(red: str, blue: str) -> ScriptedPolicy:
    return ScriptedPolicy({"red-holder": "4 7 1 9", "red-asker": red, "blue-holder": "4 4", "blue-asker": blue})


@pytest.mark.parametrize(
    ("red", "blue", "won", "both"), [("7", "7", 0, True), ("7", "1", 1, False), ("4", "7", -1, False)]
)
def test_a_team_wins_if_it_alone_is_right(red: str, blue: str, won: int, both: bool) -> None:
    run = check_workflow(InventoryMatchGame(), DIGITS, match(red, blue))
    assert run.answer["answers"] == {"red": red, "blue": blue}
    assert ("blue-holder", "0") in run.invalid
    assert {act.agent: shown(act) for act, _ in run.turns}["blue-asker"] == "message none index second"
    context = ScriptedContext(InventoryMatchGame(), DIGITS, match(red, blue), InventoryMatch(), sides=SIDES)
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert (episode.outcomes, episode.success) == ({"red": won, "blue": -won}, both)
    assert {turn.agent: turn.team_reward for turn in episode.turns}["blue-holder"] == -won
