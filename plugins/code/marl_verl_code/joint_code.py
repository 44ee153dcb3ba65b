"""Joint code writing: one agent writes a helper function, the other the main function, simultaneously, for one reward.

The helper's task is not specified: the agents learn a convention from the reward, and over turns, in which each sees
both codes and the feedback on them. Source: MAGRPO, arXiv 2508.04652.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from marl_verl_datasets import Fields, PublicTasks
from marl_verl_sandbox import Limits, Megabytes, Outcome, Seconds

from marl_verl import MarlError, Task, Team, Workflow
from marl_verl.options import Positive
from marl_verl_code.code_levels import code_in, function, imports, levels, parsed, returns
from marl_verl_code.code_tests import run_all, share
from marl_verl_code.sets import SETS

HELPER, MAIN = "helper", "main"
EXPERT = "expert"  # reads both codes between turns; normally an external endpoint
CODER = "coder"  # a team of one: it writes both functions in one answer
AUX = "aux"  # the name of the helper function
LIMITS = Limits(10.0, 512)  # of a test, unless the task set has others; also of feedback

Feedback = Literal["plain", "passed", "levels", "expert"]
Shows = Literal["own", "other", "both"]


class JointCode(PublicTasks):
    """Functions to write, from HumanEval, CoopHumanEval or a file: `id`, the function's head with its docstring as
    `prompt`, and `data` with

        entry    name of the main function
        tests    a list of statements; those that call the function, by its name or as `candidate`, are tests
        setup    statements before them, which have `math` (default: as `before`)
        before   code before the answer (default: the import lines of the prompt)

    An answer is {"helper": code, "main": code}.

    Options:
        shift: added to the score in training, so that the reward is at most 0 by default: turns that are left after a
            solution would otherwise add to the return of a later one.
        seconds, megabytes: limits of each test. After three that take too long, the others fail.
    """

    quick = True

    sets: ClassVar = {name: SETS[name] for name in ("humaneval", "coophumaneval")}
    shift: float = -4.0
    seconds: Seconds = LIMITS.seconds
    megabytes: Megabytes = LIMITS.megabytes

    def check(self, task: Task) -> None:
        row = Fields(task.data, f"the data of task '{task.id}'")
        entry, _ = row.text("entry"), row.items("tests")
        if not entry.isidentifier() or entry == AUX:
            raise row.wrong(f"must be the name of a function other than '{AUX}'", entry, "entry")
        if not _tests_of(task):
            raise MarlError(f"task '{task.id}' has no test that calls '{entry}' or 'candidate'")

    def score(self, task: Task, answer: Any) -> float:
        return sum(self._judged(task, answer)[0].values())

    def success(self, task: Task, answer: Any) -> bool:
        return share(self._judged(task, answer)[1]) == 1.0

    def measures(self, task: Task, answer: Any) -> dict[str, float]:
        """`pass_rate`: the share of the tests that both functions together pass."""
        return {"pass_rate": share(self._judged(task, answer)[1])}

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if both functions are there, with a return, and parse together, else 0: computed without the tests."""
        helper, main = _functions(task, answer[HELPER], answer[MAIN])
        return float(returns(helper) and returns(main) and _program(task, helper, main) is not None)

    def _judged(self, task: Task, answer: Mapping[str, str]) -> tuple[dict[str, float], tuple[Outcome, ...]]:
        return judged(task, answer[HELPER], answer[MAIN], Limits(self.seconds, self.megabytes))


class TwoCoders(Workflow):
    """Both agents write simultaneously; in the next turn each sees code and feedback, and writes again.

    A team of one, the agent "coder", writes both functions in one answer. Baselines that are only prompted:

        parallel      turns 1
        pipeline      turns 1, order "sequential"
        discussion    turns 2, feedback "plain", shows "other"

    Options:
        turns: number of joint moves.
        order: "parallel", or "sequential": the main agent acts after the helper and sees its code of the same turn.
        feedback: what agents see besides code: "plain" nothing; "passed" whether all tests pass; "levels" each
            level of the reward in words, with the first test that fails; "expert" the function of each agent as the
            agent "expert" rewrites it, a larger model, which sees both codes and the levels.
        shows: the code that an agent sees from the second turn on: its "own", the "other" agent's, or "both".
        feedback_tests: number of tests, the first ones, for the levels in words; null: all.
    """

    turns: Positive = 2
    feedback: Feedback = "levels"
    order: Literal["parallel", "sequential"] = "parallel"
    shows: Shows = "own"
    feedback_tests: Positive | None = 1

    async def run(self, task: Task, team: Team) -> dict[str, str]:
        if (EXPERT in team.agents) != (self.feedback == "expert"):
            raise MarlError(f"two-coders needs the agent '{EXPERT}' with feedback expert, and only then")
        agents = (CODER,) if CODER in team.agents else (HELPER, MAIN)
        codes: dict[str, str] = {}
        feedback = dict.fromkeys(agents, "")
        for turn in range(self.turns):
            if self.order == "parallel":
                acted = await team.act({name: sees(task, name, codes, feedback[name], self.shows) for name in agents})
            else:
                acted = {}
                for agent in agents:
                    helper = code_in(acted[HELPER].text) if HELPER in acted else ""
                    acted[agent] = await team[agent].act(sees(task, agent, codes, feedback[agent], self.shows, helper))
            written = {agent: code_in(action.text) for agent, action in acted.items()}
            codes = {part: written.get(part, written.get(CODER, "")) for part in (HELPER, MAIN)}
            for agent in agents:
                if not all(function(written[agent], name) for name in functions_of(task, agent)):
                    team.invalid(acted[agent], "not the function that was asked for")
            team.propose(codes)
            if turn + 1 < self.turns and self.feedback != "plain":
                mode = "passed" if self.feedback == "passed" else "levels"
                tests = list(_tests_of(task))[: self.feedback_tests]
                tested = task if mode == "passed" else replace(task, data={**task.data, "tests": tests})
                said = await team.call(describe_feedback, tested, codes[HELPER], codes[MAIN], mode)
                feedback = dict.fromkeys(agents, said)
                if self.feedback == "expert":
                    said = (await team[EXPERT].act(expert_sees(task, codes, said))).text
                    feedback = {agent: edits(said, functions_of(task, agent)) for agent in agents}
        return codes


def judged(task: Task, helper: str, main: str, limits: Limits) -> tuple[dict[str, float], tuple[Outcome, ...]]:
    """(levels, outcomes of the tests): they run only if the main function is there, with a return, and all parses."""
    tests = _tests_of(task)
    helper, main = _functions(task, helper, main)
    program, outcomes = _program(task, helper, main), tuple[Outcome, ...]()
    if program is not None and returns(main):
        setup = f"{task.data.get('setup', _before(task))}\nimport math"
        outcomes = run_assertions(program, entry_of(task), setup, tests, limits)
    return levels(helper, main, AUX, program is not None, share(outcomes) if tests else None), outcomes


@functools.lru_cache(maxsize=4096)
def run_assertions(program: str, entry: str, setup: str, tests: tuple[str, ...], limits: Limits) -> tuple[Outcome, ...]:
    """Run tests, statements with an assertion or more, each after `setup`, in the sandbox, apart from the program. They
    call the function `entry` by its name or as `candidate`."""
    return tuple(run_all(program, [{"entry": entry, "setup": setup, "assert": test} for test in tests], limits))


def _functions(task: Task, helper: str, main: str) -> tuple[str, str]:
    """The two functions of the answers; "" for one that is missing."""
    return function(helper, AUX), function(main, entry_of(task))


def _program(task: Task, helper: str, main: str) -> str | None:
    program = "\n\n".join(part for part in (_before(task), helper, main) if part)
    return program if parsed(program) is not None else None


def _before(task: Task) -> str:
    return str(task.data.get("before") or imports(task.prompt))


def describe_feedback(task: Task, helper: str, main: str, feedback: Feedback) -> str:
    """Feedback on a joint move, in mode "passed" or "levels"."""
    rewards, outcomes = judged(task, helper, main, LIMITS)
    entry, passed = entry_of(task), sum(outcome.passed for outcome in outcomes)
    if feedback == "passed":
        return "All tests pass." if outcomes and passed == len(outcomes) else "Not all tests pass."
    lines = [
        f"{name} is defined and returns something." if rewards[part] else f"{name} is missing, or returns nothing."
        for part, name in ((HELPER, AUX), (MAIN, entry))
    ]
    if rewards["main"]:
        lines.append("Together they parse." if rewards["syntax"] else "Together they do not parse.")
    if outcomes:
        lines.append(f"{passed} of {len(outcomes)} tests pass.")
        lines += [f"The first that fails: {outcome.error}" for outcome in outcomes if not outcome.passed][:1]
    if "calls" in rewards:
        lines.append(f"{entry} calls {AUX}." if rewards["calls"] else f"{entry} does not call {AUX}.")
    if rewards.get("calls") and not rewards["substance"]:
        lines.append(f"{entry} is only a wrapper around {AUX}.")
    if rewards.get("ignored"):
        lines.append(f"{entry} ignores what {AUX} returns.")
    return "\n".join(lines)


def functions_of(task: Task, agent: str) -> tuple[str, ...]:
    return {HELPER: (AUX,), MAIN: (entry_of(task),)}.get(agent, (AUX, entry_of(task)))


def edits(said: str, names: Sequence[str]) -> str:
    """An expert's edits of an agent's functions: their definitions in what it said."""
    lines = ["An expert suggests:"]
    for name in names:
        text = function(said, name)
        lines.append(f"```python\n{text}```" if text else f"no change of `{name}`.")
    return "\n".join(lines)


def sees(
    task: Task, agent: str, codes: Mapping[str, str], feedback: str, shows: Shows = "own", helper: str = ""
) -> str:
    """An agent's observation: the problem, its part, and from turn two on code of the turn before, and the feedback.
    `helper`: the helper's code of the same turn, if it has acted before."""
    entry = entry_of(task)
    other = f"Another programmer writes a function `{AUX}` that does one step of the solution"
    if helper:
        other = f"Another programmer has written the function `{AUX}`:\n```python\n{helper}\n```\nIt is there"
    asked = {
        HELPER: (
            f"Another programmer writes the function `{entry}`. Write a function `{AUX}` that is of use in it: one "
            f"step of the solution, not the whole. It returns a value. Write the code of `{AUX}` and nothing else."
        ),
        MAIN: (
            f"Write the function `{entry}`. {other}: call it, and use what it returns. Do not define `{AUX}`. Write "
            f"the code of `{entry}` and nothing else."
        ),
        CODER: (
            f"Write two functions: `{AUX}`, which does one step of the solution and returns a value, and `{entry}`, "
            "which calls it and uses what it returns. Write the code of both and nothing else."
        ),
    }[agent]
    lines = ["Solve the following problem in Python.", "", task.prompt.strip(), "", asked]
    if codes:
        heading = {"own": "What you wrote before:", "other": "What the other programmer wrote before:"}
        parts = {"own": [agent], "other": [part for part in codes if part != agent]}
        mode = shows if agent in codes else "both"  # a team of one has one code for both
        shown = dict.fromkeys(codes[part] for part in parts.get(mode, codes))
        lines += ["", heading.get(mode, "What was written before:"), *(f"```python\n{code}\n```" for code in shown)]
        lines += [feedback] if feedback else []
        lines += ["", "Write your code anew, and better."]
    return "\n".join(lines)


def expert_sees(task: Task, codes: Mapping[str, str], feedback: str) -> str:
    """The expert's observation: the problem, both codes, and the levels in words."""
    shown = "\n".join(f"```python\n{code}\n```" for code in dict.fromkeys(codes.values()))
    return (
        f"Two programmers solve this problem together.\n\n{task.prompt.strip()}\n\nOne writes `{AUX}`, the other "
        f"`{entry_of(task)}`, which should call it. Their code:\n{shown}\n{feedback}\n\nRewrite both functions so that "
        "all is right, each in a block of Python code of its own. Leave out a function that needs no change."
    )


def entry_of(task: Task) -> str:
    return str(task.data["entry"])


def _tests_of(task: Task) -> tuple[str, ...]:
    pattern = re.compile(rf"\b(candidate|{entry_of(task)})\b")
    return tuple(dict.fromkeys(filter(pattern.search, task.data["tests"])))
