"""The bundled tasks: held-out sets, scoring, and that only both agents together can solve them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from marl_verl_tiny import grid
from marl_verl_tiny.inventory import ORDINALS, Inventory
from marl_verl_tiny.split_plan_path import SplitPlanPath
from marl_verl_tiny.workflows import HolderAsker, ScoutMover

from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task, TaskSet

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
def test_the_same_seed_gives_the_same_tasks_and_another_seed_gives_others(tasks, agents):
    assert tasks.generate("train", 50, 3) == tasks.generate("train", 50, 3)
    assert tasks.generate("train", 50, 3) != tasks.generate("train", 50, 4)
    assert tasks.generate("train", 20, 3) == tasks.generate("train", 50, 3)[:20]


@pytest.mark.parametrize(("tasks", "agents"), SETS)
def test_held_out_tasks_are_never_trained_on(tasks, agents):
    train = tasks.generate("train", 3000, 1)
    test = tasks.generate("test", 300, 1)
    assert len({task.id for task in train + test}) == 3300

    def secret(task: Task) -> str:  # what makes two tasks the same for a team: the landmark and the index do not count
        return str([task.data.get(key) for key in ("start", "walls", "goal", "digits")])

    assert not {secret(task) for task in train} & {secret(task) for task in test}


def test_a_split_that_is_too_small_says_how_many_it_has():
    with pytest.raises(MarlError, match=r"found only \d+ of 500 different test tasks"):
        SplitPlanPath(size=3, walls=0).generate("test", 500, 0)
    with pytest.raises(MarlError, match=r"found only \d+ of 500 different test tasks"):
        Inventory(length=2).generate("test", 500, 0)


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
    ("answer", "score"),
    [
        ("a2 a3", 1.0),  # stops on the goal
        ("b1 b2 b3 a3", 1.0),  # a detour is fine
        ("a2", 0.0),  # stops before it
        ("a2 a3 a4", 0.0),  # walks over it
        ("a3", 0.0),  # jumps
        ("b1 c1 c2 c3 b3 a3", 0.0),  # through the wall c1
        ("a2 goal", 0.0),
        ("", 0.0),
    ],
)
def test_a_walk_scores_when_it_is_legal_and_stops_on_the_goal(answer, score):
    assert SplitPlanPath().score(board("a1", ["c1", "d1"], "a3"), answer) == score


def test_a_digit_scores_when_it_is_the_one_asked_for():
    tasks = Inventory()
    task = Task("by hand", "", {"digits": ["3", "1", "4", "1"], "index": 3})
    assert [tasks.score(task, answer) for answer in ("4", " 4 ", "3", "4 4", "")] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_walks_are_shortest_and_straight_ones_ignore_walls():
    walls = frozenset({"b1", "b2"})
    assert grid.walk(4, walls, "a1", "c1") == ["a2", "a3", "b3", "c3", "c2", "c1"]
    assert grid.distances(4, walls, "c1")["a1"] == 6
    assert grid.straight(4, "a1", "c1") == ["b1", "c1"]
    assert grid.straight(4, "a1", "b3") == ["a2", "a3"]
    assert grid.legal(4, walls, "a1", ["a2", "b2", "c2"]) == ["a2"]


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


@pytest.mark.parametrize("reply", ["", "a1 a2", "goal", "z9", "a3 !"])
def test_a_message_that_is_not_one_cell_is_shown_as_none(reply):
    team = {"scout": Puppet(lambda seen: reply), "mover": Puppet(lambda seen: "a2")}
    play(ScoutMover(), board("a1", ["b1", "b2"], "a3"), team)
    assert team["mover"].seen == ["start a1 walls b1 b2 message none"]


def test_with_more_turns_the_walk_goes_on_from_where_it_stopped():
    task, answers = board("a1", ["b1", "b2"], "a3"), iter(["a2 b2 c2", "a3"])
    team = {"scout": Puppet(lambda seen: "a3"), "mover": Puppet(lambda seen: next(answers))}
    answer = play(ScoutMover(turns=3), task, team)
    assert answer == "a2 a3"  # and the third turn is not needed
    assert [seen.split()[1] for seen in team["mover"].seen] == ["a1", "a2"]
    assert SplitPlanPath().success(task, answer)


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
