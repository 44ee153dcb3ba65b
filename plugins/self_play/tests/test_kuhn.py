"""Kuhn Poker: its exact solution, and what the two players see, do and are paid."""

import asyncio

import pytest
from marl_verl_self_play.kuhn import (
    DEALS,
    ENDS,
    INFORMATION_SETS,
    best_response,
    equilibrium,
    exploitability,
    legal_moves,
    payoff,
    value,
)
from marl_verl_self_play.kuhn_poker import KuhnPoker, KuhnPokerGame, move_probabilities
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent

ALL = (*INFORMATION_SETS[0], *INFORMATION_SETS[1])
TASK = Task("k", "rules", {"cards": ["K", "Q"]})


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 3])
def test_the_known_equilibria_have_value_minus_one_eighteenth_and_no_exploitability(alpha: float) -> None:
    assert value(equilibrium(alpha)) == pytest.approx(-1 / 18, abs=1e-12)
    assert best_response(equilibrium(alpha), 0)[0] == pytest.approx(-1 / 18, abs=1e-12)
    assert best_response(equilibrium(alpha), 1)[0] == pytest.approx(1 / 18, abs=1e-12)
    assert exploitability(equilibrium(alpha)) == pytest.approx(0, abs=1e-12)


def test_exploitability_of_strategies_solved_by_hand() -> None:
    # All bet and call: every game is for 2 chips. The best answer loses 1 with J (it folds), 0 on average with Q and
    # wins 2 with K: 1/3 a game for either player.
    assert value(dict.fromkeys(ALL, 1.0)) == pytest.approx(0)
    assert exploitability(dict.fromkeys(ALL, 1.0)) == pytest.approx(1 / 3)
    # All check and fold: whoever bets always wins 1 chip.
    assert exploitability(dict.fromkeys(ALL, 0.0)) == pytest.approx(1)


PLAYS = {"pp": 1, "bp": 1, "bb": 2, "pbp": -1, "pbb": 2}  # payoffs of the first player with K against Q


@pytest.mark.parametrize("history", ENDS)
def test_every_play_pays_what_the_rules_say(history: str) -> None:
    words = [legal_moves(history[:at])[move == "b"].title() + "!" for at, move in enumerate(history)]
    run = check_workflow(KuhnPokerGame(), TASK, ScriptedPolicy({"first": words[::2], "second": words[1::2]}))
    assert run.answer["rewards"] == {"first": PLAYS[history], "second": -PLAYS[history]}
    assert (run.invalid, run.answer["illegal"], len(run.turns)) == ({}, 0, len(history))
    assert payoff(("Q", "K"), history) == {"bp": 1, "pbp": -1}.get(history, -PLAYS[history])


@pytest.mark.parametrize("text", ["raise", "call"])
def test_an_illegal_move_is_marked_and_counts_as_a_check(text: str) -> None:
    run = check_workflow(KuhnPokerGame(), TASK, ScriptedPolicy({"first": text, "second": "check"}))
    assert run.invalid == {("first", "0"): "no single legal move: check or bet"}
    assert run.answer["text"] == "K Q: first check, second check"
    assert KuhnPoker().score(TASK, run.answer) == {"first": 1, "second": -1}
    assert not KuhnPoker().success(TASK, run.answer)


def test_each_side_is_rewarded_with_its_own_payoff() -> None:
    policy = ScriptedPolicy({"first": "bet", "second": "call"})
    sides = {name: name for name in ("first", "second")}
    context = ScriptedContext(KuhnPokerGame(), TASK, policy, tasks=KuhnPoker(), sides=sides)
    (episode,) = asyncio.run(Independent(episodes=1).sample(context)).episodes
    assert (episode.score, episode.outcomes, episode.success) == (0, {"first": 2, "second": -2}, True)
    assert {turn.agent: sum(turn.components.values()) for turn in episode.turns} == {"first": 2, "second": -2}
    check_sampler(Independent(episodes=2), KuhnPokerGame(), TASK, policy, tasks=KuhnPoker(), sides=sides)


def test_drawn_seats_are_those_of_the_task() -> None:
    """Agent `first` has the second seat in about half of the tasks, in all episodes of these."""
    policy = ScriptedPolicy({"first": "bet", "second": "call"}), ScriptedPolicy({"second": "bet", "first": "call"})
    second = 0
    for task in KuhnPoker().generate("train", 60, 0):
        played = [check_workflow(KuhnPokerGame(drawn_seats=True), task, each).answer for each in policy]
        swapped = played[0]["illegal"] > 0  # then the first seat has called
        second += swapped
        answer = played[swapped]
        assert answer["illegal"] == 0
        one, two = task.data["cards"]
        seats = ("second", "first") if swapped else ("first", "second")
        assert answer["text"] == f"{one} {two}: {seats[0]} bet, {seats[1]} call"
        won = payoff((one, two), "bb")
        assert KuhnPoker().score(task, answer) == {seats[0]: won, seats[1]: -won}
    assert 15 < second < 45


def test_every_six_tasks_have_each_deal() -> None:
    deals = [tuple(task.data["cards"]) for task in KuhnPoker().generate("train", 12, 0)]
    assert sorted(deals[:6]) == sorted(deals[6:]) == sorted(DEALS)


def test_the_probability_of_a_move_is_that_of_all_texts_that_name_it() -> None:
    chances = {"bet": 0.4, "Bet!": 0.1, "check": 0.3, "fold": 0.15, "bet or check": 0.05}.items()
    assert move_probabilities(chances, "") == pytest.approx((0.5, 0.2))
    assert move_probabilities(chances, "b") == pytest.approx((0.0, 0.85))  # "bet" and "check" are no answers to a bet


def test_a_player_sees_its_own_card_and_the_moves() -> None:
    run = check_workflow(KuhnPokerGame(), TASK, ScriptedPolicy({"first": ["check", "fold"], "second": "bet"}))
    assert [shown(act) for act, _ in run.turns] == ["K", "Q check", "K check bet"]
