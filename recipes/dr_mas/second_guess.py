"""Second-guess: the solver knows two boxes, one of which has the prize; the verifier sees the content of the named box.

The solver sees the numbers of four boxes. The prize is in the second or in the third of them, and it names one. The
verifier sees what is in that box, and approves or rejects. After a rejection the solver has a second guess. Without a
verifier it is right half of the time at best; a trained team of two can always be right.

It is a task for Dr. MAS because of its rewards: both agents get the team's success, and only the verifier also gets a
role reward for its verdict (`second-guess-verdict`), whose scale the recipe's weights set.

A third agent, the reviser, may make the second guess. If the prize is nearly always in the second box, the reviser acts
rarely, and the mean of its rewards differs from that of the others.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from marl_verl import Task, Workflow, hookimpl
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks, quick

if TYPE_CHECKING:
    from marl_verl import Episode, Turn
    from marl_verl.episode import Team

SOLVER, VERIFIER, REVISER = "solver", "verifier", "reviser"
DIGITS = tuple("0123456789")
APPROVE, REJECT, UNSURE = "approve", "reject", "unsure"
PRIZES = ("gold", "silver", "pearl", "ruby")
JUNK = ("sand", "stone", "straw", "rust")
NOTHING = "none"  # the verifier's observation if no box has that number
BOXES = 4
PLACES = (1, 2)  # where the prize may be


class SecondGuessTasks(DrawnTasks):
    """Four boxes in a row, and what is in them: a prize in one of the two in the middle.

    Options:
        likely: probability that the prize is in the second box, 0.5 to 1.
    """

    quick = True
    name = "second-guess"
    agents = (SOLVER, VERIFIER, REVISER)
    likely: Annotated[float, Interval(ge=0.5, le=1)] = 0.5

    def score(self, task: Task, answer: Any) -> float:
        """1 when the answer is the box with the prize, else 0."""
        return float(inside(task, answer.strip()) in PRIZES)

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when the answer is one of the two boxes, else 0."""
        return float(answer.strip() in candidates(task))

    def vocabulary(self) -> list[str]:
        return [*DIGITS, *PRIZES, *JUNK, NOTHING, "boxes", "not", "found", APPROVE, REJECT, UNSURE]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """Right: the second box, after a rejection the third, the right verdict.

        The careless solver and reviser name the first box, whatever was rejected; the careless verifier approves, or is
        unsure, which is no verdict. The reviser sees rejections only.
        """
        right, (first, second, third, _) = rng.random() < good, task.data["boxes"]
        if agent == VERIFIER:
            box = rng.choice([*candidates(task), *task.data["boxes"], NOTHING])
            careless = APPROVE if rng.random() < 0.7 else UNSURE
            return verifier_sees(task, box), right_verdict(task, box) if right else careless
        if agent == SOLVER and rng.random() < 0.5:
            return solver_sees(task, []), second if right else first
        return solver_sees(task, [rng.choice((first, second))]), third if right else first

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        boxes, things = rng.sample(DIGITS, BOXES), rng.sample(JUNK, BOXES)
        place, prize = rng.choice(PLACES), rng.choice(PRIZES)
        # with 0.5 nothing is drawn, so that a seed keeps its tasks
        if self.likely > 0.5 and rng.random() < 2 * self.likely - 1:
            place = PLACES[0]
        things[place] = prize
        prompt = f"boxes {' '.join(boxes)}"
        name = f"second-guess {prompt} {prize} in {boxes[place]}"
        return prompt, Task(name, prompt, {"boxes": boxes, "things": things})


def candidates(task: Task) -> list[str]:
    """The two boxes one of which has the prize."""
    return [str(task.data["boxes"][place]) for place in PLACES]


def inside(task: Task, box: str) -> str:
    """What is in a box; "none" where there is no such box."""
    boxes = task.data["boxes"]
    return str(task.data["things"][boxes.index(box)]) if box in boxes else NOTHING


def right_verdict(task: Task, box: str) -> str:
    """The right verdict on a box."""
    return APPROVE if inside(task, box) in PRIZES else REJECT


def solver_sees(task: Task, rejected: Sequence[str]) -> str:
    """The four boxes, and which were rejected so far."""
    return " ".join([task.prompt, *(["not", *rejected] if rejected else [])])


def verifier_sees(task: Task, box: str) -> str:
    """What is in the box."""
    return f"found {inside(task, box)}"


class SecondGuess(Workflow):
    """The solver guesses, the verifier approves or rejects the guess; the last guess is not verified.

    Options:
        rounds: maximum number of guesses (1: without the verifier).
        after_rejection: the agent that guesses after a rejection.
        unparseable: the verdict if the verifier's cannot be parsed. Its action is marked invalid in both cases.
    """

    rounds: Positive = 2
    after_rejection: Literal["solver", "reviser"] = "solver"
    unparseable: Literal["approve", "reject"] = "approve"

    async def run(self, task: Task, team: "Team") -> str:
        rejected: list[str] = []
        while True:
            guesser = self.after_rejection if rejected else SOLVER
            action = await team[guesser].act(solver_sees(task, rejected))
            answer = action.text.strip()
            if answer not in task.data["boxes"]:
                team.invalid(action, "no box")
                answer = NOTHING
            team.propose(answer)
            if len(rejected) == self.rounds - 1:
                return answer
            verdict = await team[VERIFIER].act(verifier_sees(task, answer))
            decision = verdict.text.strip()
            if decision not in (APPROVE, REJECT):
                team.invalid(verdict, "no verdict")
                decision = self.unparseable
            if decision == APPROVE:
                return answer
            rejected.append(answer)


@quick
def second_guess_verdict(task: Task, turn: "Turn", episode: "Episode") -> float:
    """r = 1 if the verdict is right, else -1, also if it cannot be parsed."""
    right = APPROVE if turn.observation[-1]["content"].split()[-1] in PRIZES else REJECT
    return 1.0 if turn.action.text.strip() == right else -1.0


@hookimpl
def marl_register(registry):
    registry.task("second-guess", SecondGuessTasks)
    registry.workflow("second-guess", SecondGuess)
    registry.reward("second-guess-verdict", second_guess_verdict)
