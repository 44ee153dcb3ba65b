"""Tags, verdicts and clipping of agents' texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_verl.tasks import clipped, tagged, verdict


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer> Ada </answer>", "Ada"),
        ("<ANSWER>a\nb</answer>", "a\nb"),
        ("<answer>one</answer> no: <answer>two</answer>", "two"),
        ("<answer> </answer>", None),
        ("<answer>unfinished", None),
        ("<search>Ada</search>", None),
    ],
)
def test_the_content_of_a_tag(text: str, found: str | None) -> None:
    assert tagged(text, "answer") == found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<verify>approve</verify>", "approve"),
        ("x <VERIFY> Reject </verify> y", "reject"),
        ("<verify>reject</verify> again <verify>reject</verify>", "reject"),
        ("<verify>reject</verify> or <verify>approve</verify>", None),
        ("<verify>maybe</verify>", None),
        ("approve", None),
        ("", None),
    ],
)
def test_a_verdict_is_one_word_in_tags(text: str, word: str | None) -> None:
    assert verdict(text, ("approve", "reject")) == word


@given(st.text(max_size=60), st.integers(8, 60))
def test_a_clipped_text_fits_and_keeps_its_ends(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= max(most, 7)
    assert short == text or (len(text) > most and short[-1] == text[-1])
