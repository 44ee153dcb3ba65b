"""Rendezvous: two agents act simultaneously, each knows half of the place where they should meet, in two turns.

Agent "left" knows the letters of the place, agent "right" its digits. In every turn both write a move: "stay", or words
that name (a part of) a place. From the second turn on each sees both moves of the previous turn. Every turn has one
joint reward,

    r(x, y) = 1    both are the place, letters and digits
              0.4  one of them is
              0.1  both are "stay"
              0    otherwise

so that a first turn which communicates one's half gets 0, less than staying: only the return over later turns rewards
it. Neither agent can know the place before the other has communicated its half.
"""

import random
from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks, Split, held_out

LEFT, RIGHT = "left", "right"
ALONE = "alone"  # a team of one: it knows both halves, and its move counts for both
LETTERS, DIGITS = tuple("abcdefghij"), tuple("0123456789")
STAY = "stay"
NOTHING = "nothing"  # shown for a move that is neither "stay" nor letters and digits in this order
HELD_OUT = 10  # one place in ten
BOTH, ONE, STAYED = 1.0, 0.4, 0.1
STAYING = 0.9  # of the careless demonstrations


class Rendezvous(DrawnTasks):
    """Tasks on random places. An answer is the last joint move, agent -> text.

    Options:
        length: letters of a place, and digits (1 to 4); 10 to the power of 2 `length` places.
        shift: added to r in training; -1 for a tree with `stop_above` and three or more turns.
    """

    quick = True
    name = "rendezvous"
    agents = (LEFT, RIGHT, ALONE)
    length: Annotated[int, Interval(ge=1, le=4)] = 2
    shift: float = 0.0

    def score(self, task: Task, answer: Any) -> float:
        """r of a joint move."""
        return joint_reward(task, answer)

    def public_score(self, task: Task, answer: Any) -> float:
        """The share of agents that wrote the same whole place as the first, right or not: computed without the
        place."""
        moves = [text.split() for text in answer.values()]
        whole = len(moves[0]) == 2 * self.length and seen_as(task, " ".join(moves[0])) != NOTHING
        return sum(move == moves[0] for move in moves) / len(moves) if whole else 0.0

    def vocabulary(self) -> list[str]:
        return [*LETTERS, *DIGITS, "know", "said", "heard", STAY, NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """Right: send the known half, and go to the place once the other half is known.

        Of the others, 90 % stay, and 10 % go to a place with a random other half: with more of them, a tiny model does
        not learn to copy the half that it has heard, so that no team of such models ever meets.
        """
        place = " ".join(place_of(task))
        seen, right = self._situation(task, agent, rng)
        careless = STAY if rng.random() < STAYING else self._guess(task, agent, rng)
        return seen, (place if right is None else right) if rng.random() < good else careless

    def _situation(self, task: Task, agent: str, rng: random.Random) -> tuple[str, str | None]:
        """(a possible observation, the right move; None: the place)."""
        if agent == ALONE:
            moves = None if rng.random() < 0.5 else {ALONE: rng.choice((STAY, self._guess(task, ALONE, rng)))}
            return sees(task, ALONE, moves), None
        mine, other = known_part(task, agent), known_part(task, RIGHT if agent == LEFT else LEFT)
        place = " ".join(place_of(task))
        if rng.random() < 0.4:
            return sees(task, agent, None), mine
        heard = other if rng.random() < 0.7 else rng.choice((STAY, NOTHING, place))
        own = rng.choice((mine, mine, STAY, place))
        moves = {agent: own, (RIGHT if agent == LEFT else LEFT): heard}
        return sees(task, agent, moves), None if heard in (other, place) else mine

    def _guess(self, task: Task, agent: str, rng: random.Random) -> str:
        """A place with the agent's own half (alone: the letters) right, the other random."""
        letters, digits = task.data["letters"], task.data["digits"]
        invented = rng.choices(LETTERS if agent == RIGHT else DIGITS, k=self.length)
        return " ".join([*invented, *digits] if agent == RIGHT else [*letters, *invented])

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        letters, digits = rng.choices(LETTERS, k=self.length), rng.choices(DIGITS, k=self.length)
        words = " ".join([*letters, *digits])
        if held_out(words, HELD_OUT) != (split == "test"):
            return None
        return Task(f"rendezvous {words}", f"meet at {words}", {"letters": letters, "digits": digits})


def joint_reward(task: Task, moves: Mapping[str, str]) -> float:
    """r of a joint move, see the module docstring. With a team of one, its move counts as that of both."""
    moved = [text.split() for text in moves.values()]
    arrived = sum(words == place_of(task) for words in moved)
    if arrived:
        return BOTH if arrived == len(moved) else ONE
    return STAYED if all(words == [STAY] for words in moved) else 0.0


def place_of(task: Task) -> list[str]:
    """The words of the place: letters, then digits."""
    return [*task.data["letters"], *task.data["digits"]]


def known_part(task: Task, agent: str) -> str:
    """What an agent knows of the place."""
    known = {LEFT: task.data["letters"], RIGHT: task.data["digits"], ALONE: place_of(task)}
    return " ".join(known[agent])


def sees(task: Task, agent: str, moves: Mapping[str, str] | None) -> str:
    """An agent's observation: what it knows, and from turn two on both moves of the previous turn."""
    words = f"know {known_part(task, agent)}"
    if moves is None:
        return words
    others = [f"heard {seen_as(task, text)}" for other, text in moves.items() if other != agent]
    return " ".join([words, f"said {seen_as(task, moves[agent])}", *others])


def seen_as(task: Task, text: str) -> str:
    """A move as shown to agents: "stay", at most as many letters and then digits as a place has, or else "nothing"."""
    words = text.split()
    letters = [word for word in words if word in LETTERS]
    digits = [word for word in words if word in DIGITS]
    longest = len(task.data["letters"])
    proper = words == [STAY] or (words == [*letters, *digits] and len(letters) <= longest and len(digits) <= longest)
    return " ".join(words) if words and proper else NOTHING


class Meet(Workflow):
    """All agents move simultaneously, for some turns; each joint move is proposed, and shown to all in the next turn.

    A team of one, the agent "alone", sees both halves and moves for both.

    Options:
        turns: number of joint moves.
    """

    turns: Positive = 2

    async def run(self, task: Task, team: Team) -> dict[str, str]:
        agents = (ALONE,) if team.agents == (ALONE,) else (LEFT, RIGHT)
        moves: dict[str, str] | None = None
        for _ in range(self.turns):
            acted = await team.act({agent: sees(task, agent, moves) for agent in agents})
            moves = {agent: action.text for agent, action in acted.items()}
            for action in acted.values():
                if seen_as(task, action.text) == NOTHING:
                    team.invalid(action, "neither 'stay' nor words of a place")
            team.propose(moves)
        assert moves is not None
        return moves
