"""Credit `shapley`: Shapley values of an episode's agents, computed by replaying the episode.

    v(S)  = score of the episode with every player outside S masked;  v(N) = its own score, without a replay
    phi_i = mean over orders pi of N of  v(those up to i in pi) - v(those before i in pi)

Up to `exact_up_to` players the mean is over all orders, computed from the 2^n coalitions
(`marl_verl.algo.credit.shapley`; Shapley, 1953). Above that over `permutations` random ones (Castro, Gomez and
Tejada, 2009), with truncation (Ghorbani and Zou, "Data Shapley", 2019, algorithm 1): in each of them, once |v(N) -
v(those so far)| < `truncation`, the remaining players of the order get 0 without a replay. sum_i phi_i = v(N) -
v({}), with an error below `truncation`.

Each coalition is replayed at most once, however many orders contain it. Masking: `marl_verl_sharp.masking`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Annotated, ClassVar

from annotated_types import Ge, Interval

from marl_verl.algo.credit import coalitions, shapley
from marl_verl.algo.sampling import SamplingContext
from marl_verl.episode import Episode
from marl_verl.options import Positive
from marl_verl_sharp.masking import MaskingCredit

Coalition = frozenset[str]


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
        if not players:
            return 0
        game = Game(self, context, episode, players, {frozenset(players): episode.score})
        if len(players) <= self.exact_up_to:
            await game.play(coalitions(players))
            shares = shapley(players, game.value)
        else:
            shares = await self._sampled(game, Random(repr((episode.journal.seed, episode.task.id, self.name))))
        for turn in episode.turns:
            if turn.agent in shares:
                turn.rewards[self.component] = shares[turn.agent]
        return game.tokens

    async def _sampled(self, game: "Game", random: Random) -> dict[str, float]:
        """phi from random orders. All orders advance by one player at a time, so the result is deterministic."""
        players, whole = game.players, game.value[frozenset(game.players)]
        orders = [random.sample(players, len(players)) for _ in range(self.permutations)]
        if self.truncation:
            await game.play([frozenset()])
        else:  # every prefix is needed: replay all concurrently
            await game.play(frozenset(order[:size]) for order in orders for size in range(len(players)))
        reached = [game.value[frozenset()]] * len(orders)
        gained = dict.fromkeys(players, 0.0)
        for place in range(len(players)):
            going = [number for number, value in enumerate(reached) if abs(whole - value) >= self.truncation]
            joined = {number: frozenset(orders[number][: place + 1]) for number in going}
            await game.play(joined.values())
            for number, coalition in joined.items():
                gained[orders[number][place]] += game.value[coalition] - reached[number]
                reached[number] = game.value[coalition]
        return {player: gain / len(orders) for player, gain in gained.items()}


@dataclass
class Game:
    """v of the coalitions of an episode's players, each replayed on first use.

    Attributes:
        value: coalition -> v, of those replayed so far, and of all players (the episode's score).
        tokens: number of sampled tokens.
    """

    credit: MaskingCredit
    context: SamplingContext
    episode: Episode
    players: tuple[str, ...]
    value: dict[Coalition, float]
    tokens: int = 0

    async def play(self, wanted: Iterable[Coalition]) -> None:
        """Replay the coalitions that `value` lacks, concurrently. Raises AttemptFailed."""
        new = [coalition for coalition in dict.fromkeys(wanted) if coalition not in self.value]
        masks = [frozenset(self.players) - coalition for coalition in new]
        values, tokens = await self.credit.values(self.context, self.episode, masks)
        self.value.update(zip(new, values, strict=True))
        self.tokens += tokens
