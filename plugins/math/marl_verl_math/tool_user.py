r"""Mathematics with a final answer: a tool user, whose program computes, and a reasoner, which decides.

Source: AT-GRPO, arXiv 2510.11062, and its public code: tool user first, then reasoner, up to 4 turns, until the two
agree; each is rewarded for its own answer. The wording of the prompts is our own.
"""

from marl_verl_sandbox import run_program

from marl_verl import Episode, Task, Team, Turn, Workflow
from marl_verl.options import Positive
from marl_verl_math.answers import stated
from marl_verl_math.matcher import same
from marl_verl_math.tasks import Answers, right

TOOL_USER, REASONER = "tool-user", "reasoner"
PROGRAM = "Write a Python program in a ```python block that computes the answer and prints it last."
BOXED = "Reason step by step, and end with the final answer as \\boxed{...}."


async def own_answer(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `math-own-answer`, -0.1 to 1: 1 if the answer of this act is right, else 0; -0.1 without one."""
    own = [answer for agent, answer in episode.answer if agent == turn.agent][turn.turn]
    return -0.1 if own is None else await right(task, own)


class ToolUserReasoner(Workflow):
    """In each turn the tool user writes a program, and the reasoner, which sees its output, answers.

    Options:
        turns: maximum number of turns; the episode ends earlier if program and reasoner agree.
    """

    turns: Positive = 4

    async def run(self, task: Task, team: Team) -> Answers:
        answers: Answers = []
        before = ""
        for _ in range(self.turns):
            action = await team[TOOL_USER].act(f"{task.prompt}\n\n{before}{PROGRAM}")
            output, printed = await run_program(team[TOOL_USER], action.text)
            computed = stated(output)
            if computed is None:
                team.invalid(action, "no program that prints an answer")
            answers.append([TOOL_USER, computed])
            team.propose(list(answers))
            shown = f"{task.prompt}\n\n{before}A program printed:\n{printed}\nIt may be wrong. {BOXED}"
            answer = await _reasoned(team, shown)
            answers.append([REASONER, answer])
            team.propose(list(answers))
            if answer is not None and computed is not None and await team.call(same, answer, computed):
                break
            before = f"Before, a program answered {computed}, and the reasoner {answer}: they do not agree.\n\n"
        return answers


class OneReasoner(Workflow):
    """One agent answers in one act, without a tool: the single-agent baseline."""

    async def run(self, task: Task, team: Team) -> Answers:
        return [[REASONER, await _reasoned(team, f"{task.prompt}\n\n{BOXED}")]]


async def _reasoned(team: Team, seen: str) -> str | None:
    """The reasoner's answer; None, and its action marked invalid, without one."""
    action = await team[REASONER].act(seen)
    answer = stated(action.text)
    if answer is None:
        team.invalid(action, "no answer")
    return answer
