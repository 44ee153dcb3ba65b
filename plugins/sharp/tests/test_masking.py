"""Masked runs: placeholders, kept actions, acts that are sampled again, and failures."""

import asyncio
from collections.abc import Set
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_sharp.counterfactual import Masked, Mode, masked_value
from marl_verl_testing import ScriptedContext, ScriptedPolicy, shown
from marl_verl_testing.workflows import AGENTS, TASK, Hashed, Programmed, talkers, workflows

from marl_verl.algo.sampling import AttemptFailed, Independent
from marl_verl.episode import Act, Action, ActRecord, Episode, Journal, Run, Team, Workflow
from marl_verl.episode.codec import encode_journal
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

HOLE = "(hole)"

each_mode = pytest.mark.parametrize("mode", get_args(Mode))


class Watched(ScriptedContext):
    """Keeps the runs that were started, the masked one last."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.runs: list[Run] = []

    def start(self, session: int, journal: Journal | None = None) -> Run:
        self.runs.append(super().start(session, journal))
        return self.runs[-1]


def episode_of(context: ScriptedContext) -> Episode:
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    context.asked.clear()
    context.given.clear()
    return episode


def masked(context: ScriptedContext, episode: Episode, who: Set[Any], mode: Mode = "regenerate") -> tuple[float, int]:
    return completed(masked_value(context, episode, frozenset(who), mode, HOLE))


def asked(context: ScriptedContext) -> list[str]:
    return [f"{act.agent}:{act.slot}" for _, act, _ in context.asked]


def hidden(record: ActRecord, who: Masked) -> bool:
    return record.act.agent in who or record.act.key in who


@each_mode
@given(workflow=workflows(), seed=st.integers(0, 99), data=st.data())
@settings(deadline=None, max_examples=25)
def test_acts_of_a_masked_run_follow_the_mode(mode: Mode, workflow: Programmed, seed: int, data: st.DataObject) -> None:
    context = Watched(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed)
    episode = episode_of(context)
    before = encode_journal(episode.journal)
    agents_or_acts = [*AGENTS, *(turn.key for turn in episode.turns)]
    who: Masked = frozenset(data.draw(st.lists(st.sampled_from(agents_or_acts), max_size=3)))
    score, tokens = masked(context, episode, who, mode)
    run = context.runs[-1]
    assert score == Hashed().score(TASK, run.answer)
    assert tokens == sum(len(action.response_ids) for action in context.given)
    new = [id(action) for action in context.given]
    for record in run.journal.acts():
        old = episode.journal.act(*record.act.key)
        same = old is not None and old.act.observation == record.act.observation
        if hidden(record, who):
            assert record.action == Action(HOLE)
        elif mode == "regenerate":
            assert (record.action is old.action) if same and old else (id(record.action) in new)
        elif mode == "rescore":
            assert record.action is old.action if old else record.action == Action(HOLE)
        else:
            assert id(record.action) in new or (same and old and record.action is old.action)
    assert set(new) <= {id(record.action) for record in run.journal.acts()}  # no request for nothing
    assert mode != "rescore" or not new
    if not any(hidden(record, who) for record in episode.journal.acts()):
        assert (score, tokens) == (episode.score, 0)
    assert encode_journal(episode.journal) == before


# Joint moves, lanes, calls


class Mixed(Workflow):
    """A plan, a joint move, two lanes of one agent beside a third line, and a report."""

    async def run(self, task: Task, team: Team) -> str:
        plan = await team["planner"].act(task.prompt)
        moves = await team.act({"left": plan.text, "right": plan.text})

        async def lane(name: str, seen: str) -> str:
            first = await team["worker"].act(seen, slot=name)
            return (await team["worker"].act(first.text, slot=name)).text

        lanes = asyncio.gather(lane("a", moves["left"].text), lane("b", moves["right"].text))
        done, beside = await asyncio.gather(lanes, team["left"].act("by the way"))
        return (await team["planner"].act(" ".join([*done, beside.text]))).text


ECHO = ScriptedPolicy(dict.fromkeys(("planner", "left", "right", "worker"), lambda act: f"<{shown(act)}>"))


@pytest.mark.parametrize(
    ("who", "mode", "wanted"),
    [
        ({"right"}, "regenerate", ["worker:b", "worker:b#1", "planner:1"]),
        ({("left", "1")}, "regenerate", ["planner:1"]),
        ({("worker", "a")}, "regenerate", ["worker:a#1", "planner:1"]),
        ({"right"}, "full", ["worker:a", "worker:b", "left:1", "worker:a#1", "worker:b#1", "planner:1"]),
        ({"planner"}, "full", ["left:0", "right:0", "worker:a", "worker:b", "left:1", "worker:a#1", "worker:b#1"]),
        ({"planner"}, "rescore", []),
    ],
)
def test_acts_sampled_again_in_joint_moves_and_lanes(who: set[Any], mode: Mode, wanted: list[str]) -> None:
    context = ScriptedContext(Mixed(), TASK, ECHO)
    _, tokens = masked(context, episode_of(context), who, mode)
    assert sorted(asked(context)) == sorted(wanted)
    assert (tokens > 0) == bool(wanted)


performed: list[str] = []


def look_up(text: str) -> str:
    performed.append(text)
    return f"all about {text}"


class Searching(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        known = await team["worker"].call(look_up, task.prompt)
        query = await team["worker"].act(known)
        found = await team.call(look_up, query.text)
        return (await team["planner"].act(found)).text


@pytest.mark.parametrize(("who", "wanted"), [("worker", [HOLE]), ("planner", [])])
@each_mode
def test_a_call_is_made_again_only_with_other_arguments(mode: Mode, who: str, wanted: list[str]) -> None:
    context = ScriptedContext(Searching(), TASK, ScriptedPolicy({"worker": "shoes", "planner": "ships"}))
    episode = episode_of(context)
    performed.clear()
    masked(context, episode, {who}, mode)
    assert performed == wanted


def test_a_masked_agent_is_masked_too_where_it_acts_anew() -> None:
    class UntilGood(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            draft = await team["writer"].act(task.prompt)
            for _ in range(3):
                if draft.text == "good":
                    return draft.text
                note = await team["critic"].act(draft.text)
                draft = await team["writer"].act(note.text)
            return draft.text

    context = Watched(UntilGood(), TASK, ScriptedPolicy({"writer": "good", "critic": "no"}))
    episode = episode_of(context)
    assert len(episode.turns) == 1
    _, tokens = masked(context, episode, {"writer"})
    texts = [(record.act.agent, record.action.text) for record in context.runs[-1].journal.acts()]
    assert texts == [("writer", HOLE), ("critic", "no")] * 3 + [("writer", HOLE)]
    assert tokens == 3 * len("no")
    _, tokens = masked(context, episode, {"writer"}, "rescore")  # the critic did not act in the episode
    assert [record.action.text for record in context.runs[-1].journal.acts()] == [HOLE] * 7
    assert tokens == 0


# What goes wrong


class Sums(Workflow):
    """Two numbers, and their sum by an agent that sees both."""

    async def run(self, task: Task, team: Team) -> int:
        a, b = await asyncio.gather(team["a"].act("a number"), team["b"].act("a number"))
        return int((await team["adder"].act(f"{a.text} + {b.text}")).text)


def adds(act: Act) -> str:
    return str(sum(int(word) for word in shown(act).split() if word.isdigit()))


class OnlyWhole(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return {7: 1.0}[answer]


@pytest.mark.parametrize(
    ("who", "trouble", "reason", "message"),
    [
        ("a", OSError("no server"), "policy-error", "'q1', act adder:0: OSError: no server"),
        ("adder", None, "workflow-error", "'q1', .*ValueError"),
    ],
)
def test_a_failed_replay_names_mask_and_cause(who: str, trouble: Exception | None, reason: str, message: str) -> None:
    context = ScriptedContext(Sums(), TASK, ScriptedPolicy({"a": "3", "b": "4", "adder": adds}), tasks=OnlyWhole())
    context.failing = lambda request: trouble if request[2] else None  # in a replay
    episode = episode_of(context)
    with pytest.raises(AttemptFailed, match=f"replay with {who} masked: workflow 'Sums' on task {message}") as raised:
        masked(context, episode, {who})
    assert raised.value.reason == reason
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(("proposes", "worth"), [(False, 0.0), (True, 0.5)])
def test_a_replay_that_takes_too_many_tokens_is_worth_what_it_would_answer_then(proposes: bool, worth: float) -> None:
    class Forever(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            while (await team["judge"].act(task.prompt)).text != "done":
                action = await team["writer"].act(task.prompt)
                if proposes:
                    team.propose(action.text)
            return "done"

    class Halves(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return 1.0 if answer == "done" else 0.5

    policy = ScriptedPolicy({"writer": "words", "judge": ["more", "done"]})
    context = ScriptedContext(Forever(), TASK, policy, tasks=Halves(), limits=Limits(tokens=40))
    episode = episode_of(context)
    assert episode.score == 1.0
    value, tokens = masked(context, episode, {"judge"})
    assert value == worth
    assert 0 < tokens <= 40 + len("words")
