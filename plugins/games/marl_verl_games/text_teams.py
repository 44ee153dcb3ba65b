"""Teams for any task with a text as prompt and as answer. They need no training: baselines with frozen policies too.

The answer of an agent is its whole text; a vote compares what is between <answer> and </answer>, where that is given.
After every act the answer so far is proposed, so that samplers which branch can score it.
"""

import re
from collections import Counter
from collections.abc import Mapping

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.options import Positive

SOLVER, VERIFIER = "solver", "verifier"
ACCEPTED = re.compile(r"\baccept(ed)?\b", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class TextSolverVerifier(Workflow):
    """A solver answers; a verifier says "accept", or what is wrong, and the solver answers again.

    Options:
        rounds: maximum number of verdicts.
    """

    rounds: Positive = 2

    async def run(self, task: Task, team: Team) -> str:
        draft = await team[SOLVER].act(task.prompt)
        team.propose(draft.text)
        for number in range(self.rounds):
            shown = (
                f"{task.prompt}\n\nProposed answer:\n{draft.text}\n\nIs it right? Reply 'accept', or say what is wrong."
            )
            verdict = await team[VERIFIER].act(shown)
            team.propose(draft.text)
            if ACCEPTED.search(verdict.text) or number == self.rounds - 1:
                break
            again = f"Your answer was:\n{draft.text}\n\nA verifier says:\n{verdict.text}\n\nAnswer again."
            draft = await team[SOLVER].act(f"{task.prompt}\n\n{again}")
            team.propose(draft.text)
        return draft.text


class TextDiscussion(Workflow):
    """All agents answer, see each other's answers, and answer again; the most frequent last answer is the team's.

    Options:
        rounds: number of times that all agents answer.
    """

    rounds: Positive = 2

    async def run(self, task: Task, team: Team) -> str:
        said: dict[str, str] = {}
        for _ in range(self.rounds):
            actions = await team.act({agent: _others(task, agent, said) for agent in team.agents})
            said = {agent: actions[agent].text for agent in team.agents}
            team.propose(vote(said))
        return vote(said)


def vote(said: Mapping[str, str]) -> str:
    """The text with the most frequent answer; of equally frequent ones, that of the first agent."""
    answers = {agent: answer_in(text) for agent, text in said.items()}
    (most, _), *_ = Counter(answers.values()).most_common(1)
    return next(said[agent] for agent, answer in answers.items() if answer == most)


def answer_in(text: str) -> str:
    """What the last <answer> tag of a text contains; without one, the whole text."""
    answers = _TAGGED.findall(text)
    return str(answers[-1] if answers else text).strip()


def _others(task: Task, agent: str, said: Mapping[str, str]) -> str:
    if not said:
        return task.prompt
    others = "\n\n".join(f"Another agent's answer:\n{text}" for who, text in said.items() if who != agent)
    return f"{task.prompt}\n\nYour answer was:\n{said[agent]}\n\n{others}\n\nAnswer again."
