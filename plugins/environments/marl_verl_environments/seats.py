"""Games with a seat per player: outcomes as the team's answer, the team reward, and role rewards of the players."""

import importlib
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np

from marl_verl import Episode, MarlError, Task, TaskSet, Team, Turn, Workflow
from marl_verl.options import NonNegative, Positive
from marl_verl.tasks import Split, held_out, quick

TEST = 4  # one seed in four is a seed of test tasks
SEEDS = 1 << 31
LONGEST = 100  # moves of a demonstrated game


def required(module: str) -> Any:
    """Import a module of an optional package. MarlError with the pip command if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        which = "marl-verl-environments[verifiers]" if module.startswith("verifiers") else "marl-verl[environments]"
        raise MarlError(f'{module} cannot be imported ({error}): pip install "{which}"') from error


class Game(Protocol):
    """A game in progress. It depends only on its arguments, the seed and the moves."""

    def to_move(self) -> Mapping[int, str]:
        """Seat -> observation of the players that move now, at the same time; empty when the game is over."""

    def play(self, moves: Mapping[int, str]) -> Mapping[int, str]:
        """Make the moves of these seats. Returns seat -> reason for the moves that are illegal."""

    def choices(self, seat: int) -> tuple[Sequence[str], Sequence[str]]:
        """(legal moves, all moves) of a player that moves now."""

    def outcomes(self) -> list[float]:
        """One number per seat: of the finished game, or so far."""


class SeatedTasks(TaskSet):
    """Tasks of a game that differ in their seed. The answer is what `Seated` returns.

    Options:
        env: name of the environment.
        arguments: keyword arguments of its constructor.
        side: seat whose outcome is the team reward; null: the mean of all seats.
        sides: the side of each seat, for agents that compete: the score of a side is the mean outcome of its seats.
    """

    quick = True

    game: ClassVar[Any]  # the `Game` to demonstrate, of (env, arguments, seed)
    env: str
    arguments: Mapping[str, Any] | None = None
    side: NonNegative | None = None
    sides: tuple[str, ...] = ()  # repeated where a side has several seats

    def __post_init__(self) -> None:
        if self.sides and self.side is not None:
            raise MarlError("`side` and `sides` exclude each other: the score is the team's, or one for each side")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks with different seeds of the game. A seed is in one split only."""
        rng = random.Random(f"{self.env} {split} {seed}")
        data = {"env": self.env, "arguments": dict(self.arguments or {})}
        tasks: dict[str, Task] = {}
        while len(tasks) < count:
            drawn = rng.randrange(SEEDS)
            name = f"{self.env} {drawn}"
            if held_out(name, TEST) == (split == "test"):
                tasks[name] = Task(name, name, {**data, "seed": drawn})
        return list(tasks.values())

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, move) pairs of random games of all players, for tiny models. A share `good` of the moves is
        among the legal ones of `Game.choices`, the others are any of them."""
        rng, pairs = random.Random(f"{self.env} demonstrations {agent} {seed}"), list[tuple[str, str]]()
        while len(pairs) < count:
            game: Game = self.game(self.env, self.arguments or {}, rng.randrange(SEEDS))
            for _ in range(LONGEST):
                moves: dict[int, str] = {}
                for seat, text in game.to_move().items():
                    legal, others = game.choices(seat)
                    moves[seat] = rng.choice(legal)
                    pairs.append((text, moves[seat] if rng.random() < good else rng.choice(others)))
                if not moves:
                    break
                game.play(moves)
        return pairs[:count]

    def vocabulary(self) -> list[str]:
        return sorted({word for pair in self.demonstrations("", 2000, 0, 1.0) for word in " ".join(pair).split()})

    def score(self, task: Task, answer: Any) -> float | dict[str, float]:
        """The outcome of seat `side`, or the mean of all seats; with `sides`, that of the seats of each. ValueError for
        another number of seats than sides."""
        outcomes: list[float] = answer["outcomes"]
        if self.sides:
            pairs = list(zip(self.sides, outcomes, strict=True))
            return {side: statistics.fmean(outcome for name, outcome in pairs if name == side) for side in self.sides}
        return sum(outcomes) / len(outcomes) if self.side is None else outcomes[self.side]


class Seated(Workflow):
    """The team's agents take the seats of a game; each sees its own observations and makes its own moves.

    An answer has `outcomes` (one number per seat), `seats` (the agent of each seat) and `finished`. The answer so far
    is proposed after every move.

    Options:
        seats: the agent of each seat; an agent may have several. Default: all agents in the order of the team.
        moves: maximum number of moves of all players; after it the game ends with the outcomes so far.
    """

    game: ClassVar[Any]  # the `Game` of (env, arguments, seed, number of seats)
    seats: Sequence[str] = ()
    moves: Positive = 200

    async def run(self, task: Task, team: Team) -> dict[str, Any]:
        seats, data = list(self.seats or team.agents), task.data
        game: Game = self.game(data["env"], data["arguments"], data["seed"], len(seats))
        made = 0
        answer: dict[str, Any] = {"outcomes": game.outcomes(), "seats": seats, "finished": False}
        while made < self.moves and (seen := game.to_move()):
            if len(seen) == 1:
                actions = {seat: await team[seats[seat]].act(text) for seat, text in seen.items()}
            else:
                if len({seats[seat] for seat in seen}) < len(seen):
                    raise MarlError(f"{data['env']}: players that move at the same time must be different agents")
                joint = await team.act({seats[seat]: text for seat, text in seen.items()})
                actions = {seat: joint[seats[seat]] for seat in seen}
            made += len(actions)
            for seat, why in game.play({seat: action.text for seat, action in actions.items()}).items():
                team.invalid(actions[seat], why)
            answer = {**answer, "outcomes": game.outcomes(), "finished": not game.to_move()}
            team.propose(answer)
        return answer


@quick
def player_outcome(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward: the outcome of the agent's seat (of several seats, the mean), on each of its turns."""
    pairs = zip(episode.answer["outcomes"], episode.answer["seats"], strict=True)
    return statistics.fmean(outcome for outcome, agent in pairs if agent == turn.agent)


@quick
def player_outcome_legal(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward: `player_outcome`, and 1 less for an illegal move."""
    return player_outcome(task, turn, episode) - (turn.invalid is not None)


class OwnRandom:
    """The global random numbers of `random` and NumPy, as one game sees them: seeded, and apart from all others."""

    def __init__(self, seed: int) -> None:
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % (1 << 32)).get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Continue the game's own random numbers in this block, then restore those of the process."""
        before = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])
