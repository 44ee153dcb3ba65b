"""The journal: cheap copies, lookups, and the JSON round trip."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_testing import ScriptedPolicy

from marl_verl.episode import Act, Action, ActRecord, CallError, Journal, Run, Team, Workflow
from marl_verl.episode.codec import decode_journal, encode_journal
from marl_verl.episode.journal import CallRecord, Raised, as_json
from marl_verl.tasks import Task
from tests.plain_workflows import drive

words = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(st.fixed_dictionaries({"role": words, "content": words}), min_size=1, max_size=3).map(tuple)
acts = st.builds(Act, words, words, st.integers(0), st.integers(0), messages, st.none() | st.integers(0))
ids, floats = st.lists(st.integers(0), max_size=4), st.lists(st.floats(allow_nan=False), max_size=4)
number = st.none() | st.integers(0)
# st.just: wall-clock time is not stored
actions = st.builds(Action, words, ids, ids, floats, st.none() | words, number, st.just(0.0), number)
calls = st.builds(CallRecord, words, st.lists(values, max_size=3).map(as_json), values.map(as_json))
failed = st.builds(lambda what: CallRecord("tools:f", "[]", raised=Raised.of(ValueError(what))), values)
records = st.builds(ActRecord, acts, actions) | calls | failed


@given(st.lists(records, max_size=5).map(tuple), st.integers())
def test_json_round_trip(effects: tuple[ActRecord | CallRecord, ...], seed: int) -> None:
    journal = Journal(effects, seed)
    data = encode_journal(journal)
    assert decode_journal(json.loads(json.dumps(data))) == journal
    assert decode_journal(data) == journal


def played(workflow: Workflow, journal: Journal | None = None) -> Run:
    return drive(Run(workflow, Task("t", "q"), ["solver"], journal), policy=ScriptedPolicy({"solver": "said"}))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("bad"), "ValueError", "bad"),
        (KeyError("missing"), "KeyError", "'missing'"),
        (json.JSONDecodeError("Expecting value", "{", 1), "json.decoder:JSONDecodeError", "Expecting value: line 1"),
    ],
)
def test_a_failed_call_raises_the_same_live_and_on_replay(error: Exception, kind: str, message: str) -> None:
    def fails() -> None:
        raise error

    class Calls(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            try:
                await team.call(fails)
            except CallError as failed:
                return f"{(await team['solver'].act('x')).text} {failed.kind} {failed}"
            return ""

    live = played(Calls())
    assert live.answer.startswith(f"said {kind} {message}")
    assert played(Calls(), decode_journal(json.loads(json.dumps(encode_journal(live.journal))))).answer == live.answer


WORDS = st.sampled_from(["", "a", "b" * 700, "c" * 1500, "\ud800", "b" * 700 + "é"])
MESSAGES = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), WORDS), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from("ab"), MESSAGES, st.integers(0, 3)), max_size=8))
def test_observations_are_stored_as_what_they_add(moves: list[tuple[str, list[tuple[str, str]], int]]) -> None:
    seen: list[dict[str, str]] = []
    records: list[ActRecord] = []
    for number, (agent, new, keep) in enumerate(moves):
        seen = [*seen[:keep], *({"role": role, "content": text} for role, text in new)]
        records.append(ActRecord(Act(agent, str(number), number, number, tuple(seen)), Action("said")))
    journal = Journal(tuple(records))
    assert decode_journal(json.loads(json.dumps(encode_journal(journal)))) == journal


@pytest.mark.parametrize("as_text", [True, False])
def test_a_stored_conversation_is_linear_in_its_text(as_text: bool) -> None:
    """Two agents with a history each, and a document in front of one's."""
    histories: dict[str, list[str]] = {"a": ["the document " * 400], "b": []}
    records: list[ActRecord] = []
    for turn in range(200):
        for agent, history in histories.items():
            history.append(f"{agent} says {turn}. " * 5)
            texts = ["".join(history)] if as_text else history
            made = Act(agent, str(turn), turn, len(records), tuple({"role": "user", "content": text} for text in texts))
            records.append(ActRecord(made, Action("said")))
    journal, new = Journal(tuple(records)), sum(len(text) for history in histories.values() for text in history)
    whole = sum(len(message["content"]) for record in records for message in record.act.observation)
    stored = json.dumps(encode_journal(journal))
    assert len(stored) < 350 * len(records) + 2 * new < whole / 10
    assert decode_journal(json.loads(stored)) == journal


def test_the_messages_of_a_conversation_are_in_memory_once() -> None:
    class Talk(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            history = [{"role": "user", "content": "begin"}]
            for turn in range(5):
                await team["solver"].act(history)
                history.append({"role": "user", "content": str(turn)})
            return "done"

    observations = [record.act.observation for record in played(Talk()).journal.acts()]
    assert [len(each) for each in observations] == [1, 2, 3, 4, 5]
    assert len({id(message) for each in observations for message in each}) == 5
