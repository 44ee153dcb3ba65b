"""The bundled tasks: held-out sets, scoring, and that only both agents together can solve them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_task, check_workflow, shown
from marl_verl_tiny import grid
from marl_verl_tiny.inventory import ORDINALS, Inventory
from marl_verl_tiny.inventory_match import InventoryMatch
from marl_verl_tiny.split_plan_path import SplitPlanPath
from marl_verl_tiny.workflows import HolderAsker, InventoryMatchGame, ScoutMover

from marl_verl.algo.sampling import Independent
from marl_verl.errors import MarlError
from marl_verl.tasks.base import TaskSet
from marl_verl.tasks.task import Task

SETS: list[tuple[TaskSet, tuple[str, str]]] = [
    (SplitPlanPath(), ("scout", "mover")),
    (Inventory(), ("holder", "asker")),
]


@dataclass
class Said:
    """What an act gives back, as far as these workflows read it."""

    text: str


class Puppet:
    """An agent whose answer is a function of its observation; it records its observations."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.seen: list[str] = []

    async def act(self, observation: str, slot: str | None = None) -> Said:
        self.seen.append(observation)
        return Said(self.answer(observation))


def board(start: str, walls: list[str], goal: str, landmark: str = "d4") -> Task:
    data = {"size": 4, "start": start, "walls": walls, "goal": goal, "landmark": landmark}
    return Task(id="by hand", prompt="", data=data)


@pytest.mark.parametrize(("tasks", "agents"), SETS)
def test_held_out_tasks_are_never_trained_on(tasks, agents):
    train = tasks.generate("train", 3000, 1)
    test = tasks.generate("test", 300, 1)
    assert len({task.id for task in train + test}) == 3300

    def secret(task: Task) -> str:  # what makes two tasks the same for a team: the landmark and the index do not count
        return str([task.data.get(key) for key in ("start", "walls", "goal", "digits")])

    assert not {secret(task) for task in train} & {secret(task) for task in test}


@pytest.mark.parametrize(("tasks", "agents"), SETS)
def test_every_word_shown_or_said_is_in_the_vocabulary(tasks, agents):
    words = set(tasks.vocabulary())
    assert len(words) == len(tasks.vocabulary())
    for agent in agents:
        for pair in tasks.demonstrations(agent, 300, 0, 0.5):
            assert set(" ".join(pair).split()) <= words


@pytest.mark.parametrize(("tasks", "agents"), SETS)
def test_demonstrations_are_seeded_and_never_from_held_out_tasks(tasks, agents):
    for agent in agents:
        pairs = tasks.demonstrations(agent, 100, 5, 0.4)
        assert pairs == tasks.demonstrations(agent, 100, 5, 0.4) != tasks.demonstrations(agent, 100, 6, 0.4)
    with pytest.raises(MarlError, match="did you mean"):
        tasks.demonstrations(agents[0] + "s", 1, 0, 0.5)


@pytest.mark.parametrize(
    ("answer", "score"), [("a2 a3", 1.0), ("a2", 0.0), ("a2 a3 a4", 0.0), ("b1 c1 c2 c3 b3 a3", 0.0)]
)
def test_a_walk_scores_when_it_is_legal_and_stops_on_the_goal(answer, score):
    assert SplitPlanPath().score(board("a1", ["c1", "d1"], "a3"), answer) == score


class Puppets(dict[str, Puppet]):
    """A team, with what its workflow found to be of no use."""

    def __init__(self, team: dict[str, Puppet]) -> None:
        super().__init__(team)
        self.useless: list[tuple[str, str]] = []

    def invalid(self, action: Said, why: str) -> None:
        self.useless.append((action.text, why))


def play(workflow: ScoutMover | HolderAsker, task: Task, team: dict[str, Puppet]) -> str:
    return asyncio.run(workflow.run(task, Puppets(team)))


def useless(workflow: ScoutMover | HolderAsker, task: Task, team: dict[str, Puppet]) -> list[tuple[str, str]]:
    puppets = Puppets(team)
    asyncio.run(workflow.run(task, puppets))
    return puppets.useless


def test_actions_of_no_use_are_marked():
    lost, there = Puppet(lambda seen: "z9"), Puppet(lambda seen: seen.split()[1])
    task = board("a1", ["a2"], "c1")
    assert useless(ScoutMover(), task, {"scout": there, "mover": Puppet(lambda seen: "b1 c1")}) == []
    found = useless(ScoutMover(), task, {"scout": lost, "mover": Puppet(lambda seen: "a2")})
    assert [text for text, _ in found] == ["z9", "a2"]
    (task,) = Inventory(length=2).generate("train", 1, 0)
    held = Puppet(lambda seen: " ".join(task.data["digits"]))
    assert useless(HolderAsker(), task, {"holder": held, "asker": Puppet(lambda seen: "7")}) == []
    found = useless(HolderAsker(), task, {"holder": Puppet(lambda seen: "1"), "asker": Puppet(lambda seen: "no")})
    assert found == [("1", "must be as many digits as the holder has"), ("no", "not a digit")]


def walker(observation: str) -> str:
    """A mover that does all it can with what it sees."""
    words = observation.split()
    walls, landmark = words[3:-2], words[-1]
    if landmark == "none" or landmark in walls:
        return ""
    return " ".join(grid.walk(4, frozenset(walls), words[1], landmark))


def test_two_able_agents_solve_plan_path_and_one_cannot():
    tasks, honest = SplitPlanPath(), Puppet(lambda seen: seen.split()[1])
    careless = Puppet(lambda seen: seen.split()[3])
    straight = Puppet(lambda seen: " ".join(grid.straight(4, seen.split()[1], seen.split()[-1])))
    test = tasks.generate("test", 200, 0)

    def success(scout: Puppet, mover: Puppet) -> float:
        team = {"scout": scout, "mover": mover}
        return sum(tasks.score(task, play(ScoutMover(), task, team)) for task in test) / len(test)

    assert success(honest, Puppet(walker)) == 1.0
    assert success(careless, Puppet(walker)) == 0.0
    assert success(honest, straight) == 0.0


def test_two_able_agents_solve_inventory_and_one_cannot():
    tasks, honest = Inventory(), Puppet(lambda seen: seen[len("digits ") :])
    asker = Puppet(lambda seen: seen.split()[1 + ORDINALS.index(seen.split()[-1])])
    careless = Puppet(lambda seen: " ".join([seen.split()[1]] * 4))
    first = Puppet(lambda seen: seen.split()[1])
    test = tasks.generate("test", 300, 0)

    def success(holder: Puppet, reader: Puppet) -> float:
        team = {"holder": holder, "asker": reader}
        return sum(tasks.score(task, play(HolderAsker(), task, team)) for task in test) / len(test)

    assert success(honest, asker) == 1.0
    assert success(careless, asker) == success(honest, first) < 0.45


# Team against team: two teams answer the same question of the inventory game, and the better one wins


DIGITS = Task("i", "digits", {"digits": ["4", "7", "1", "9"], "index": 2})
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


def test_the_kit_accepts_the_task_of_two_teams() -> None:
    answer = {"text": "", "answers": {"red": "4", "blue": "7"}}
    check_task(InventoryMatch(), lambda task: [answer], count=12, scores=(-1, 1))
    same = [InventoryMatch().demonstrations(f"{side}-asker", 5, 1, 0.5) for side in ("red", "blue")]
    assert same[0] == same[1]
