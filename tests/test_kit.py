"""The testing kit for plugin authors: checks that must not pass vacuously, and error messages."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_sharp.counterfactual import Counterfactual

from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.rewards import Mix
from marl_verl.algo.sampling import Independent, Sample, Sampler, SamplingContext, ask, attempt, drive
from marl_verl.algo.sampling.context import BaseSamplingContext
from marl_verl.episode import Action, Episode, Journal, Limits, ReplayMismatch, Run, Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task
from marl_verl.testing import ScriptedContext, ScriptedPolicy, check_credit, check_sampler, check_workflow
from marl_verl.testing.workflows import TASK, Hashed, Programmed, Solo, own_words, talkers

TWO = talkers(0, ("solver", "verifier"))


class Relay(Workflow):
    """The solver, then the verifier, which sees the solver's text."""

    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["solver"].act(task.prompt)
        team.propose(draft.text)
        verdict = await team["verifier"].act(f"{task.prompt} {draft.text}")
        return f"{draft.text} {verdict.text}"


class Alone(Workflow):
    """The verifier never acts."""

    async def run(self, task: Task, team: Team) -> Any:
        return (await team["solver"].act(task.prompt)).text


class Never(Workflow):
    """No agent acts."""

    async def run(self, task: Task, team: Team) -> Any:
        return "an answer"


class Raw(Workflow):
    """An action where a text is wanted."""

    where: str = "answer"

    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["solver"].act(task.prompt)
        if self.where == "proposal":
            team.propose(draft)
            return draft.text
        return {"answer": draft, "list": [draft], "dict": {"drafts": (draft,)}}[
            "answer" if self.where == "answer" else self.where
        ]


class Unsteady(Workflow):
    """A workflow in which `what` changes from run to run."""

    what: str = ""
    steady_runs: int = 1

    async def run(self, task: Task, team: Team) -> Any:
        number = max(next(self.__dict__.setdefault("runs", itertools.count())) + 1 - self.steady_runs, 0)
        draft = await team["solver"].act(f"{task.prompt} {number if self.what == 'observation' else ''}")
        if self.what == "proposal":
            team.propose(f"{draft.text} {number}")
        if self.what == "invalid" and number:
            team.invalid(draft, "late")
        if self.what == "more" and number:
            await team["solver"].act("more")
        if self.what != "fewer" or not number:
            await team["verifier"].act(draft.text)
        return f"{draft.text} {number}" if self.what == "answer" else draft.text


# check_workflow


def test_a_good_workflow_passes() -> None:
    run = check_workflow(Relay(), TASK, TWO)
    assert len(run.turns) == 2
    assert check_workflow(Alone(), TASK, TWO, may_not_act=("verifier",)).finished


def test_every_agent_must_act() -> None:
    with pytest.raises(AssertionError, match=r"'Alone' on task 'q1' never lets verifier act: .* may_not_act="):
        check_workflow(Alone(), TASK, TWO)
    with pytest.raises(MarlError, match="unknown scripted agent 'verifer': did you mean 'verifier'"):
        check_workflow(Alone(), TASK, TWO, may_not_act=("verifer",))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("answer", r"answers with an Action.*: return action\.text"),
        ("list", r"answers with an Action"),
        ("dict", r"answers with an Action"),
        ("proposal", r"proposes an Action.*: team\.propose\(action\.text\)"),
    ],
)
def test_an_action_is_no_answer(where: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_workflow(Raw(where=where), TASK, ScriptedPolicy({"solver": "4"}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("observation", "another observation"),
        ("proposal", r"different proposals: first \[.* 0'\], now \[.* 1'\]"),
        ("invalid", r"different invalid marks: first \{\}, now \{\('solver', '0'\): 'late'\}"),
        ("answer", "different answer: first"),
        ("fewer", "does not reach act verifier:0, which the first run reached"),
        ("more", "act solver:1"),
    ],
)
def test_what_a_replay_does_otherwise_is_named(what: str, message: str) -> None:
    check_workflow(Unsteady(what=what, steady_runs=1000), TASK, TWO)
    with pytest.raises(ReplayMismatch, match=message):
        check_workflow(Unsteady(what=what), TASK, TWO)


def test_an_act_that_only_comes_later_is_named() -> None:
    class Grows(Unsteady):
        async def run(self, task: Task, team: Team) -> Any:
            answer = await super().run(task, team)
            if next(self.__dict__.setdefault("ends", itertools.count())) >= 2:
                await team["solver"].act("once more")
            return answer

    with pytest.raises(ReplayMismatch, match="it reaches act solver:1, which the first run did not reach"):
        check_workflow(Grows(), TASK, TWO)


def test_proposals_of_lanes_may_come_in_any_order() -> None:
    class Lanes(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            async def lane(agent: str) -> str:
                action = await team[agent].act(task.prompt)
                team.propose(action.text)
                return action.text

            return " ".join(await asyncio.gather(lane("solver"), lane("verifier")))

    assert len(check_workflow(Lanes(), TASK, TWO, orders=8).proposals) == 2


# mistakes, in a sentence


MINE: dict[str, Any] = {"workflow": Relay(), "task": TASK, "policy": TWO}
CHECKS: list[tuple[str, Callable[..., Any]]] = [
    ("check_workflow", lambda **task_context: check_workflow(**task_context)),
    ("check_sampler", lambda **task_context: check_sampler(Independent(), **task_context)),
    ("check_credit", lambda **task_context: check_credit(Counterfactual(), **task_context)),
    ("ScriptedContext", lambda **task_context: ScriptedContext(**task_context)),
]


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workflow": Relay}, r"expected an instance of Workflow, got the class: write Relay\(\) instead of Relay"),
        ({"workflow": None}, r"expected a Workflow, got NoneType None: write MyWorkflow\(\)"),
        ({"task": {"id": "q"}}, r"expected a Task, got dict \{'id': 'q'\}: write Task\("),
        ({"policy": {"solver": "4"}}, r"expected a ScriptedPolicy, got dict .*: write ScriptedPolicy\(\{"),
    ],
)
def test_arguments_of_another_kind(check: Callable[..., Any], wrong: dict[str, Any], message: str) -> None:
    check(**MINE)
    with pytest.raises(MarlError, match=message):
        check(**{**MINE, **wrong})


def test_other_classes_for_instances() -> None:
    with pytest.raises(MarlError, match=r"got the class: write Independent\(\)"):
        check_sampler(Independent, Relay(), TASK, TWO)  # type: ignore[arg-type]
    with pytest.raises(MarlError, match=r"got the class: write Hashed\(\)"):
        check_sampler(Independent(), Relay(), TASK, TWO, tasks=Hashed)  # type: ignore[arg-type]
    with pytest.raises(MarlError, match=r"got the class: write Counterfactual\(\)"):
        check_credit(Counterfactual, Relay(), TASK, TWO)  # type: ignore[arg-type]


def test_a_script_that_gives_no_text() -> None:
    policy = ScriptedPolicy({"solver": lambda act: None, "verifier": "yes"})  # type: ignore[arg-type, return-value]
    with pytest.raises(MarlError, match="the script of agent 'solver' must return a text, got None for act solver:0"):
        check_workflow(Relay(), TASK, policy)


# check_sampler: what was sampled


class Mistaken(Sampler):
    """Two independent episodes with one mistake, by name."""

    wrong: str = ""

    async def sample(self, context: SamplingContext) -> Sample:
        if self.wrong == "nothing":
            return Sample()
        found = await Independent(2).sample(context)
        if self.wrong == "no episodes":
            return Sample()
        if self.wrong == "none":
            return None  # type: ignore[return-value]
        if self.wrong == "list":
            return found.episodes  # type: ignore[return-value]
        if self.wrong == "no Episode":
            found.episodes.append(found.episodes[0].turns)  # type: ignore[arg-type]
        if self.wrong == "no Failure":
            found.failures.append("it failed")  # type: ignore[arg-type]
        if self.wrong == "dropped":
            found.episodes.pop(1)
        return found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nothing", "the sampler requested no action"),
        ("no episodes", "the sampler requested 4 actions, but its sample has no episode"),
        ("none", "`sample` must return a Sample, it returned None"),
        ("list", r"`sample` must return a Sample, it returned \[Episode\("),
        ("no Episode", r"`episodes` must be Episodes, one is \[Turn\("),
        ("no Failure", "`failures` must be Failures, one is 'it failed'"),
        ("dropped", r"in no row, .* \(nothing failed\): those of act solver:0 of session 1 \(candidate 0\), act ver"),
    ],
)
def test_a_sampler_that_gives_something_else(wrong: str, message: str) -> None:
    check_sampler(Mistaken(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=message):
        check_sampler(Mistaken(wrong=wrong), Relay(), TASK, TWO)


def test_a_sampler_that_is_not_async() -> None:
    class Plain(Sampler):
        def sample(self, context: SamplingContext) -> Sample:  # type: ignore[override]
            return Sample()

    with pytest.raises(AssertionError, match=r"`sample` must be an `async def`; it returned Sample\("):
        check_sampler(Plain(), Relay(), TASK, TWO)


class Fragile(Sampler):
    """Two episodes, without `ask` or without `attempt`."""

    forgets: str = ""

    async def sample(self, context: SamplingContext) -> Sample:
        async def play(g: int) -> Episode:
            async with context.start(g) as run:
                await drive(run, lambda act: (context.act if self.forgets == "ask" else asking)(act, g))
                return await context.finish(run, g)

        async def asking(act: Any, g: int) -> Action:
            return await ask(context, act, g)

        found = Sample()
        for g in range(2):
            done = await (play(g) if self.forgets == "attempt" else attempt(context, g, play(g)))
            (found.episodes if isinstance(done, Episode) else found.failures).append(done)  # type: ignore[arg-type]
        return found


@pytest.mark.parametrize("forgets", ["ask", "attempt"])
def test_a_forgotten_ask_or_attempt(forgets: str) -> None:
    check_sampler(Fragile(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=r"`sample` raised .*: use `ask` for policy requests, in an `attempt`"):
        check_sampler(Fragile(forgets=forgets), Relay(), TASK, TWO)


@pytest.mark.parametrize("sampler", [Independent(2), GreedyTree(2)], ids=str)
def test_a_workflow_that_fails_raises_unless_it_may(sampler: Sampler) -> None:
    with pytest.raises(MarlError, match=r"an attempt failed, .* the team has no agent 'verifier': solver|'verifier'"):
        check_sampler(sampler, Relay(), TASK, ScriptedPolicy({"solver": "4"}))
    message = "workflow 'Never' on task 'q1', before any act: the workflow ended without an act|requested no action"
    with pytest.raises((MarlError, AssertionError), match=message):
        check_sampler(sampler, Never(), TASK, TWO)
    assert not check_sampler(sampler, Never(), TASK, TWO, may_fail=True).episodes


# check_sampler: a workflow that is not deterministic


@pytest.mark.parametrize("what", ["observation", "answer", "proposal", "fewer"])
@pytest.mark.parametrize("sampler", [Independent(2), GreedyTree(2)], ids=str)
def test_a_workflow_that_is_not_deterministic_is_caught(sampler: Sampler, what: str) -> None:
    with pytest.raises(ReplayMismatch, match="workflow 'Unsteady' on task 'q1', "):
        check_sampler(sampler, Unsteady(what=what), TASK, TWO, tasks=Hashed())


@pytest.mark.parametrize("steady_runs", [8, 12, 20])
def test_it_is_caught_in_a_tree_where_it_only_begins(steady_runs: int) -> None:
    workflow = Unsteady(what="observation", steady_runs=steady_runs)
    with pytest.raises((AssertionError, MarlError), match=r"something else|another (observation|rewards)"):
        check_sampler(GreedyTree(2), workflow, TASK, TWO, tasks=Hashed())


@pytest.mark.parametrize("may_fail", [False, True])
def test_a_restart_that_reaches_another_act_raises(monkeypatch: pytest.MonkeyPatch, may_fail: bool) -> None:
    def strict(self: BaseSamplingContext, session: int, journal: Journal | None = None, **_: Any) -> Run:
        self._begun.setdefault(session, 0.0)
        workflow = self.task_context.workflow
        return Run(workflow, self.task, self.agents, journal, self.seed(session), strict=journal is not None)

    monkeypatch.setattr(BaseSamplingContext, "start", strict)
    check_sampler(GreedyTree(2), Relay(), TASK, TWO, tasks=Hashed())
    workflow = Unsteady(what="observation", steady_runs=7)  # six runs look at it alone, the seventh is the root's
    with pytest.raises(ReplayMismatch, match="act solver:0 is shown another observation: recorded"):
        check_sampler(GreedyTree(2), workflow, TASK, TWO, tasks=Hashed(), may_fail=may_fail)


def test_random_behaviour_ends_with_an_error() -> None:
    draws = random.Random(3)

    class Dice(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            draft = await team["solver"].act(f"{task.prompt} {draws.random()}")
            return (await team["verifier"].act(draft.text)).text

    with pytest.raises(ReplayMismatch, match="act solver:0 is shown another observation"):
        check_sampler(GreedyTree(2), Dice(), TASK, TWO, tasks=Hashed())


def test_a_workflow_that_hangs_fails() -> None:
    class Hangs(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            await team["solver"].act(task.prompt)
            await asyncio.Event().wait()

    message = r"check_sampler is not done after 0\.05 s: it hangs \(test_kit\.py, line "
    with pytest.raises(AssertionError, match=message):
        check_sampler(Independent(), Hangs(), TASK, TWO, seconds=0.05)


# check_sampler: options of the scene


def test_the_options_of_check_sampler() -> None:
    thrice = Programmed((Solo("solver"), Solo("verifier"), Solo("solver")))
    sample = check_sampler(Independent(), thrice, TASK, TWO, tasks=Hashed())
    assert [turn.team_reward for turn in sample.turns] == [each.score for each in sample.episodes for _ in range(3)]
    with pytest.raises(MarlError, match="exceeded 1 acts"):
        check_sampler(Independent(), Relay(), TASK, TWO, limits=Limits(acts=1))
    role = Mix(role=1.0)
    kept = [
        check_sampler(GreedyTree(4), Relay(), TASK, talkers(4, ("solver", "verifier")), tasks=Hashed(), **options)
        for options in ({"rewards": {"solver": own_words}}, {"rewards": {"solver": own_words}, "mix": role})
    ]
    best = [[turn.node for turn in sample.episodes[0].turns] for sample in kept]
    assert best[0] != best[1]


def test_failures_of_a_sequential_workflow_say_the_same_in_any_order() -> None:
    class Fails(Relay):
        async def run(self, task: Task, team: Team) -> Any:
            raise KeyError(await super().run(task, team))

    runs = itertools.count()

    class Vague(Sampler):
        async def sample(self, context: SamplingContext) -> Sample:
            found = await Independent(2).sample(context)
            if next(runs) == 1:
                found.failures[0] = type(found.failures[0])(0, found.failures[0].reason, "something")
            return found

    with pytest.raises(
        AssertionError, match=r"in another order, it has other failures: first .*KeyError.*, now .*something"
    ):
        check_sampler(Vague(), Fails(), TASK, TWO, may_fail=True)


# check_credit


@dataclass(frozen=True)
class Careless(ReplayCredit):
    """One mistake, by name."""

    wrong: str = ""

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        for turn in episode.turns:
            turn.rewards[self.component] = 0.0
        if self.wrong == "no return":
            return None  # type: ignore[return-value]
        if self.wrong == "float":
            return 0.0  # type: ignore[return-value]
        if self.wrong != "no ask":
            return 0
        async with context.start(episode.session) as run:
            await drive(run, lambda act: context.act(act, episode.session, "again"))
            return sum(len(action.response_ids) for _, action in run.turns)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "no return",
            "credit 'careless': `assign` must return the tokens it sampled, a whole number; it returned None",
        ),
        ("float", "a whole number; it returned 0.0"),
        ("no ask", "a request failed, and credit 'careless' raised SwitchedOff: use `ask` for policy requests"),
    ],
)
def test_a_credit_with_a_mistake(wrong: str, message: str) -> None:
    check_credit(Careless(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=message):
        check_credit(Careless(wrong=wrong), Relay(), TASK, TWO)


def test_a_credit_that_is_not_async() -> None:
    @dataclass(frozen=True)
    class Plain(ReplayCredit):
        def assign(self, context: SamplingContext, episode: Episode) -> int:  # type: ignore[override]
            return 0

    with pytest.raises(AssertionError, match="`assign` must be an `async def`; it returned 0"):
        check_credit(Plain(), Relay(), TASK, TWO)
