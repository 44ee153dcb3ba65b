"""Tags of agents' texts, and the tokens that an act reads from other agents."""

import pytest
from marl_verl_search.answers import tagged

from marl_verl.episode import Act, Action, Episode, Journal, Turn
from marl_verl.episode.communication import read_lengths
from marl_verl.tasks import Task


@pytest.mark.parametrize(
    ("text", "found"), [("<ANSWER>a\nb</answer>", "a\nb"), ("<answer>one</answer> no: <answer>two</answer>", "two")]
)
def test_the_content_of_a_tag(text: str, found: str | None) -> None:
    assert tagged(text, "answer") == found


TASK = Task("t", "Add the numbers.\nreturn the sum", {})


def turn(agent: str, sees: str, says: str, tokens: int) -> Turn:
    observation = ({"role": "user", "content": sees},)
    return Turn(Act(agent, "0", 0, 0, observation), Action(says, response_ids=[0] * tokens), "u", 0, "p")


def read(*turns: Turn, task: Task = TASK) -> list[float]:
    return read_lengths(Episode("u", 0, task, list(turns), "", True, Journal()))


def test_a_message_that_is_passed_on_whole_is_read_with_its_tokens() -> None:
    b = turn("b", "a says: it is five\nor six. Right?", "yes", 1)
    assert read(turn("a", "2 3", "it is five\nor six", 9), b) == [0.0, pytest.approx(9.0)]


def test_a_part_counts_by_its_characters() -> None:
    """8 of 8 + 16 characters of 12 tokens; again in the next act, as the observation has it again."""
    a, text = turn("a", "2 3", "aaaabbbb\ncccc dddd eeee ffff", 12), "```\naaaabbbb\n```"
    assert read(a, turn("b", text, "hm", 1), turn("b", f"{text}\nhm", "hm", 1)) == [0.0, 4.0, 4.0]


def test_what_the_reader_could_have_from_elsewhere_is_not_read() -> None:
    """From the task, itself, an observation before; nor a part of a word, nor what nobody has written yet."""
    before = turn("b", "Say approve or reject.", "first", 1)
    a = turn("a", "2 3", "return the sum\nfirst\napprove\nfive", 20)
    assert read(before, a, turn("b", "return the sum\nfirst\napprove\nfivefold", "hm", 1)) == [0.0, 0.0, 0.0]
    assert read(turn("b", "five", "x", 1), turn("a", "", "five", 1)) == [0.0, 0.0]


def test_a_word_of_the_prompt_is_read_by_an_agent_that_was_shown_another_part_of_the_prompt() -> None:
    """Not by one that was shown the word with a word beside it."""
    task = Task("t", "start b1 walls a3 c4 goal c2 landmark d4", {})
    scout = turn("scout", "goal c2 landmark d4", "c2", 1)
    mover = turn("mover", "start b1 walls a3 c4 message c2", "b2 c2", 2)
    assert read(scout, mover, task=task) == [0.0, 1.0]
    assert read(scout, turn("other", "goal c2, message c2", "x", 1), task=task) == [0.0, 0.0]
    first, again = turn("other", "goal c2, message c2", "x", 1), turn("other", "message c2", "x", 1)
    assert read(scout, first, again, task=task) == [0.0, 0.0, 0.0]


def test_a_line_of_two_agents_counts_once() -> None:
    a, b = turn("a", "", "five", 3), turn("b", "", "five", 5)
    assert read(a, b, turn("c", "a: five, b: five", "x", 1)) == [0.0, 0.0, 3.0]
