"""The journal: cheap copies, lookups, and the way to JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_verl.episode import Act, Action, ActRecord, CallRecord, Journal, JournalError
from marl_verl.episode.journal import as_json, raised, rebuild
from marl_verl.testing import scripted_action


def act(agent: str, turn: int, index: int, seen: str = "x") -> Act:
    return Act(agent, str(turn), turn, index, ({"role": "user", "content": seen},))


def record(agent: str, turn: int, index: int, text: str = "said") -> ActRecord:
    return ActRecord(act(agent, turn, index), scripted_action(act(agent, turn, index), text))


JOURNAL = Journal(
    (
        record("solver", 0, 0),
        CallRecord("tools:search", as_json(["marl"]), value=as_json({"hits": 3})),
        record("judge", 0, 1),
        record("solver", 1, 2),
    ),
    seed=7,
)

words = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(st.fixed_dictionaries({"role": words, "content": words}), min_size=1, max_size=3).map(tuple)
acts = st.builds(Act, words, words, st.integers(0), st.integers(0), messages, st.none() | st.integers(0))
actions = st.builds(
    Action,
    words,
    st.lists(st.integers(0), max_size=4),
    st.lists(st.integers(0), max_size=4),
    st.lists(st.floats(allow_nan=False), max_size=4),
    st.none() | words,
    st.none() | st.integers(0),
    st.floats(0, 1e6),
    st.none() | st.integers(0),
)
calls = st.builds(CallRecord, words, st.lists(values, max_size=3).map(as_json), values.map(as_json))
failed = st.builds(lambda what: CallRecord("tools:f", "[]", raised=raised(ValueError(what))), values)
records = st.builds(ActRecord, acts, actions) | calls | failed


@given(st.lists(records, max_size=5).map(tuple), st.integers())
def test_json_round_trip(effects: tuple[ActRecord | CallRecord, ...], seed: int) -> None:
    journal = Journal(effects, seed)
    text = journal.to_json()
    assert "\n" not in text
    assert Journal.from_json(text) == journal


def test_json_names_its_schema() -> None:
    assert json.loads(JOURNAL.to_json())["schema"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOURNAL.to_json()[:-20], "not JSON, or cut off"),
        ("[]", "schema None"),
        (json.dumps({"schema": 99, "seed": 0, "records": []}), "schema 99; this version of marl-verl reads 1"),
        (json.dumps({"schema": 1, "records": []}), "malformed after record 0: KeyError: 'seed'"),
        (json.dumps({"schema": 1, "seed": 0, "records": [{"effect": "act"}]}), "malformed after record 0"),
        (json.dumps({"schema": 1, "seed": 0, "records": [{"effect": "dance"}]}), "unknown effect 'dance'"),
    ],
)
def test_a_bad_journal_is_told(text: str, said: str) -> None:
    with pytest.raises(JournalError, match=said):
        Journal.from_json(text)


def test_prefix_before_an_act() -> None:
    before = JOURNAL.before("judge", "0")
    assert before.records == JOURNAL.records[:2]
    assert before.seed == 7
    with pytest.raises(JournalError, match="no act judge:4; it has solver:0, judge:0, solver:1"):
        JOURNAL.before("judge", "4")


def test_a_copy_with_one_action_replaced_shares_the_rest() -> None:
    masked = JOURNAL.with_action("judge", "0", Action("masked"))
    found = masked.act("judge", "0")
    assert found is not None
    assert found.action.text == "masked"
    assert [a is b for a, b in zip(masked, JOURNAL, strict=True)] == [True, True, False, True]
    assert JOURNAL.act("judge", "0") == JOURNAL.records[2]  # the original is unchanged


def test_extending_by_one_act() -> None:
    longer = JOURNAL.extended(act("judge", 1, 3), Action("yes"))
    assert [str(each.act) for each in longer.acts()] == ["act solver:0", "act judge:0", "act solver:1", "act judge:1"]
    with pytest.raises(JournalError, match="has act judge:0 already"):
        JOURNAL.extended(act("judge", 0, 3), Action("yes"))


def test_calls_are_found_by_function_arguments_and_number() -> None:
    found = JOURNAL.call("tools:search", '["marl"]', 0)
    assert found is not None
    assert found.outcome() == {"hits": 3}
    assert found.outcome() is not found.outcome()
    assert JOURNAL.call("tools:search", '["marl"]', 1) is None
    assert JOURNAL.call("tools:search", '["ppo"]', 0) is None


class Strange(OSError):
    """Its constructor wants other arguments than `args`."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}", {1, 2})


def test_exceptions_come_back_by_class_and_arguments() -> None:
    again = rebuild(raised(Strange(code=4)))
    assert isinstance(again, Strange)
    assert again.args == ("code 4", "{1, 2}")  # what JSON cannot hold is kept as its repr


def test_a_class_that_cannot_be_found_by_name_comes_back_as_its_base() -> None:
    class Local(LookupError):
        pass

    assert type(rebuild(raised(Local("gone")))) is LookupError


@pytest.mark.parametrize("kind", ["os:system", "not_imported_here:Error", "builtins:KeyboardInterrupt"])
def test_a_journal_can_name_no_class_but_an_imported_exception(kind: str) -> None:
    text = json.dumps(
        {
            "schema": 1,
            "seed": 0,
            "records": [
                {"effect": "call", "function": "f", "arguments": [], "raised": {"kind": kind, "arguments": []}}
            ],
        }
    )
    found = Journal.from_json(text).call("f", "[]", 0)
    assert found is not None
    with pytest.raises(JournalError, match="not an exception that is imported here"):
        found.outcome()
