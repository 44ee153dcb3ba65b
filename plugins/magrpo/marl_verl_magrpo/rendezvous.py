"""Rendezvous: two agents act simultaneously, each knows half of the place where they should meet, in two turns.

Agent "left" knows the letters of the place, agent "right" its digits. In every turn both write a move: "stay", or words
that name (a part of) a place. From the second turn on each sees both moves of the previous turn. Every turn has one
joint reward,

    r(x, y) = 1    both are the place, letters and digits
              0.4  one of them is
              0.1  both are "stay"
              0    otherwise

so that a first turn that tells one's half gets 0, less than staying: only the return over later turns rewards it.
"""

import random
from collections.abc import Mapping
from typing import Any

from marl_verl import Task, Team, Workflow
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks

LEFT, RIGHT = "left", "right"
ALONE = "alone"  # a team of one: it knows both halves, and its move counts for both
LETTERS, DIGITS = tuple("abcdefghij"), tuple("0123456789")
LENGTH = 2  # letters of a place, and digits
STAY = "stay"
NOTHING = "nothing"  # shown for a move that is neither "stay" nor letters and digits in this order
BOTH, ONE, STAYED = 1.0, 0.4, 0.1
STAYING = 0.9  # of the careless demonstrations


class Rendezvous(DrawnTasks):
    """Tasks on random places of two letters and two digits. An answer is the last joint move, agent -> text.

    Options:
        shift: added to r in training; -1 for a tree with `stop_above` and three or more turns.
    """

    quick = True
    name = "rendezvous"
    agents = (LEFT, RIGHT, ALONE)
    shift: float = 0.0

    def score(self, task: Task, answer: Any) -> float:
        place = [*task.data["letters"], *task.data["digits"]]
        moves = [text.split() for text in answer.values()]
        if arrived := moves.count(place):
            return BOTH if arrived == len(moves) else ONE
        return STAYED if all(words == [STAY] for words in moves) else 0.0

    def vocabulary(self) -> list[str]:
        return [*LETTERS, *DIGITS, "know", "said", "heard", STAY, NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """Right: send the known half, and go to the place once the other half is known.

        Of the others, 90 % stay, and 10 % go to a place with a random other half: with more of them, a tiny model does
        not learn to copy the half that it has heard, so that no team of such models ever meets.
        """
        seen, right = self._situation(task, agent, rng)
        careless = STAY if rng.random() < STAYING else _guess(task, agent, rng)
        return seen, right if rng.random() < good else careless

    def _situation(self, task: Task, agent: str, rng: random.Random) -> tuple[str, str]:
        """(a possible observation, the right move)."""
        place = known_part(task, ALONE)
        if agent == ALONE:
            moves = {} if rng.random() < 0.5 else {ALONE: rng.choice((STAY, _guess(task, ALONE, rng)))}
            return sees(task, ALONE, moves), place
        partner = RIGHT if agent == LEFT else LEFT
        mine, other = known_part(task, agent), known_part(task, partner)
        if rng.random() < 0.4:
            return sees(task, agent, {}), mine
        heard = other if rng.random() < 0.7 else rng.choice((STAY, NOTHING, place))
        moves = {agent: rng.choice((mine, mine, STAY, place)), partner: heard}
        return sees(task, agent, moves), place if heard in (other, place) else mine

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        letters, digits = rng.choices(LETTERS, k=LENGTH), rng.choices(DIGITS, k=LENGTH)
        words = " ".join([*letters, *digits])
        return words, Task(f"rendezvous {words}", f"meet at {words}", {"letters": letters, "digits": digits})


def _guess(task: Task, agent: str, rng: random.Random) -> str:
    """A place with the agent's own half (alone: the letters) right, the other random."""
    invented = rng.choices(LETTERS if agent == RIGHT else DIGITS, k=LENGTH)
    return " ".join([*invented, *task.data["digits"]] if agent == RIGHT else [*task.data["letters"], *invented])


def known_part(task: Task, agent: str) -> str:
    parts = {LEFT: ("letters",), RIGHT: ("digits",), ALONE: ("letters", "digits")}[agent]
    return " ".join(word for part in parts for word in task.data[part])


def sees(task: Task, agent: str, moves: Mapping[str, str]) -> str:
    """An agent's observation: what it knows, and from turn two on both moves of the previous turn."""
    words = f"know {known_part(task, agent)}"
    if not moves:
        return words
    others = [f"heard {seen_as(text)}" for other, text in moves.items() if other != agent]
    return " ".join([words, f"said {seen_as(moves[agent])}", *others])


def seen_as(text: str) -> str:
    """A move as shown to agents: "stay", at most as many letters and then digits as a place has, or else "nothing"."""
    words = text.split()
    letters, digits = [word for word in words if word in LETTERS], [word for word in words if word in DIGITS]
    proper = words == [*letters, *digits] and len(letters) <= LENGTH and len(digits) <= LENGTH
    return " ".join(words) if words and (proper or words == [STAY]) else NOTHING


class Meet(Workflow):
    """All agents move simultaneously, for some turns; each joint move is proposed, and shown to all in the next turn.

    A team of one, the agent "alone", sees both halves and moves for both.

    Options:
        turns: number of joint moves.
    """

    turns: Positive = 2

    async def run(self, task: Task, team: Team) -> dict[str, str]:
        agents = (ALONE,) if team.agents == (ALONE,) else (LEFT, RIGHT)
        moves: dict[str, str] = {}
        for _ in range(self.turns):
            acted = await team.act({agent: sees(task, agent, moves) for agent in agents})
            moves = {agent: action.text for agent, action in acted.items()}
            for action in acted.values():
                if seen_as(action.text) == NOTHING:
                    team.invalid(action, "neither 'stay' nor words of a place")
            team.propose(moves)
        return moves
