"""Calls in separate threads."""

from __future__ import annotations

import threading

import pytest

from marl_verl.threads import at_once, in_thread


def test_calls_run_at_the_same_time_and_results_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=10)
    assert list(at_once({"b": lambda: both.wait() >= 0, "a": lambda: both.wait() >= 0})) == ["b", "a"]
    assert at_once({}) == {}


def test_the_first_error_is_raised_when_all_calls_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        at_once({"a": fail, "b": lambda: ended.append("b")})
    assert ended == ["b"]
    with pytest.raises(ValueError, match="broken"):
        in_thread("test", fail).result(timeout=10)
