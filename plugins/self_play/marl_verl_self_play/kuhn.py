"""Kuhn Poker (Kuhn, 1950): rules, exact value of two strategies, best responses by enumeration, exploitability.

Three cards J < Q < K, one for each player; both put in 1 chip. A history is the moves so far, "p" (check or fold) or
"b" (bet or call, 1 chip). It ends after pp, bp, bb, pbp or pbb; the higher card wins unless a player folded.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations, product

CARDS = ("J", "Q", "K")
DEALS: tuple[tuple[str, str], ...] = tuple((one, two) for one, two in permutations(CARDS, 2))
TURNS = (("", "pb"), ("p", "b"))  # the histories after which each player moves
INFORMATION_SETS = tuple(tuple(card + history for card in CARDS for history in turns) for turns in TURNS)
ENDS = ("pp", "bp", "bb", "pbp", "pbb")

Strategy = Mapping[str, float]
"""Information set (own card and history, such as "Qpb") -> probability of "b": bet or call."""


def legal_moves(history: str) -> tuple[str, str]:
    return ("fold", "call") if history.endswith("b") else ("check", "bet")


def payoff(deal: Sequence[str], history: str) -> int:
    """Chips that the first player wins (the second loses them) in a finished game."""
    if history.endswith("bp"):
        return 1 if history == "bp" else -1
    stake = 2 if history.endswith("bb") else 1
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake


def equilibrium(alpha: float = 0.0) -> dict[str, float]:
    """A Nash equilibrium: all have alpha = P(the first player bets a J), from 0 to 1/3."""
    first = {"J": alpha, "Q": 0.0, "K": 3 * alpha, "Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0}
    return {**first, "Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0}


def value(strategy: Strategy) -> float:
    """Expected chips of the first player if both play by `strategy`, over the six deals. -1/18 in equilibrium."""
    return sum(_from(strategy, deal, "") for deal in DEALS) / len(DEALS)


def best_response(strategy: Strategy, player: int) -> tuple[float, dict[str, float]]:
    """(expected chips of player 0 or 1, the pure strategy that gets them), the best against `strategy` of the other.

    All 2^6 pure strategies are tried.
    """
    names, sign = INFORMATION_SETS[player], (1, -1)[player]
    strategies = (dict(zip(names, moves, strict=True)) for moves in product((0.0, 1.0), repeat=len(names)))
    values = ((sign * value({**strategy, **pure}), pure) for pure in strategies)
    return max(values, key=lambda pair: pair[0])


def exploitability(strategy: Strategy) -> float:
    """Mean of what the two best responses win against `strategy`, in chips per game; 0 only in equilibrium.

    (max_1 u_1(s_1, strategy) + max_2 u_2(strategy, s_2)) / 2, half of NashConv.
    """
    return (best_response(strategy, 0)[0] + best_response(strategy, 1)[0]) / 2


def _from(strategy: Strategy, deal: tuple[str, str], history: str) -> float:
    if history in ENDS:
        return payoff(deal, history)
    bet = strategy[deal[len(history) % 2] + history]
    return bet * _from(strategy, deal, history + "b") + (1 - bet) * _from(strategy, deal, history + "p")
