"""Credit `shapley`: Shapley values of an episode's agents, computed by replaying the episode.

    v(S)  = score of the episode with every player outside S masked;  v(N) = its own score, without a replay
    phi_i = mean over orders pi of N of  v(those up to i in pi) - v(those before i in pi)

Up to `exact_up_to` players the mean is over all orders, computed from the 2^n coalitions
(`marl_verl.algo.credit.shapley`; Shapley, 1953). Above that over `permutations` random ones (Castro, Gomez and
Tejada, 2009), with truncation (Ghorbani and Zou, "Data Shapley", 2019, algorithm 1): in each of them, once |v(N) -
v(those so far)| < `truncation`, the remaining players of the order get 0 without a replay. sum_i phi_i = v(N) -
v({}), with an error below `truncation`.

Each coalition is replayed at most once, however many orders contain it. Masking: `marl_verl_sharp.counterfactual`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar

from annotated_types import Ge, Interval

from marl_verl.algo.credit import coalitions, shapley
from marl_verl.algo.sampling import SamplingContext
from marl_verl.episode import Episode
from marl_verl.options import Positive
from marl_verl_sharp.counterfactual import MaskingCredit

Coalition = frozenset[str]
Play = Callable[[Iterable[Coalition]], Awaitable[None]]


@dataclass(frozen=True)
class SampledShapley(MaskingCredit):
    """phi_i on every turn of player i. Players are the agents that acted in the episode.

    Attributes:
        exact_up_to: maximum number n of players for exact values, with 2^n - 1 replays.
        permutations: number of random orders for more players: at most `permutations` * (n - 1) + 1 replays.
        truncation: tolerance in units of the score; 0 for none. With it, replays of one order are sequential.
    """

    name: ClassVar[str] = "shapley"
    exact_up_to: Annotated[int, Interval(ge=0, le=16)] = 6
    permutations: Positive = 16
    truncation: Annotated[float, Ge(0)] = 0.0

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Set phi on the turns. Returns the number of sampled tokens. AttemptFailed if a replay has no score."""
        players = self.acting(context, episode)
        value, tokens = {frozenset(players): episode.score}, 0  # of the coalitions that were replayed, and of all

        async def play(wanted: Iterable[Coalition]) -> None:
            """Replay the coalitions that `value` lacks, concurrently."""
            nonlocal tokens
            new = [coalition for coalition in dict.fromkeys(wanted) if coalition not in value]
            values, sampled = await self.values(context, episode, [frozenset(players) - coalition for coalition in new])
            value.update(zip(new, values, strict=True))
            tokens += sampled

        if len(players) <= self.exact_up_to:
            await play(coalitions(players))
            shares = shapley(players, value)
        else:
            rng = Random(repr((episode.journal.seed, episode.task.id, self.name)))
            orders = [rng.sample(players, len(players)) for _ in range(self.permutations)]
            shares = await self._sampled(orders, value, play)
        for turn in episode.turns:
            if turn.agent in shares:
                turn.rewards[self.component] = shares[turn.agent]
        return tokens

    async def _sampled(self, orders: list[list[str]], value: dict[Coalition, float], play: Play) -> dict[str, float]:
        """phi from random orders. All orders advance by one player at a time, so the result is deterministic."""
        players = orders[0]
        if self.truncation:
            await play([frozenset()])
        else:  # every prefix is needed: replay all concurrently
            await play(frozenset(order[:size]) for order in orders for size in range(len(players)))
        whole, reached = value[frozenset(players)], [value[frozenset()]] * len(orders)
        gained = dict.fromkeys(players, 0.0)
        for place in range(len(players)):
            going = [number for number, so_far in enumerate(reached) if abs(whole - so_far) >= self.truncation]
            joined = {number: frozenset(orders[number][: place + 1]) for number in going}
            await play(joined.values())
            for number, coalition in joined.items():
                gained[orders[number][place]] += value[coalition] - reached[number]
                reached[number] = value[coalition]
        return {player: gain / len(orders) for player, gain in gained.items()}
