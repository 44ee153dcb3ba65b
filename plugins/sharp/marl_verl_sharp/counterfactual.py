"""Credits that replay an episode with agents masked: `counterfactual`, and `shapley`.

`counterfactual` is the score that a team reached, minus the score without one agent, or one act.

    Delta_m = R(tau) - R(tau with m masked)
    R(tau with M masked) = score of the answer that the workflow reaches on the same task, with the same calls and
                           random draws, when every act of M gets a placeholder

Delta is signed: below 0, the team would have scored higher without m. This is leave-one-out: the Deltas need not add up
to the score (two workers with the same result have 0 each).

A masked run is a replay of the episode's journal with some actions replaced. The mode defines the other actions:

    regenerate   an act with an unchanged observation keeps its action; any other act is sampled again
    rescore      every act keeps its action, whatever its observation; nothing is sampled
    full         every act after a masked one is sampled again, whatever its observation

An act is after a masked one if the workflow reaches it only once the masked act is resolved: acts of the same joint
move, and of concurrent lanes, are not. Recorded results of `team.call` are reused if the arguments are unchanged.
A masked run that reaches the token limit of an episode is scored by its latest proposal (`team.propose`), else 0.
Source: SHARP, arXiv 2602.08335, from second-hand descriptions: no authors' code was found.

`shapley` are Shapley values of an episode's agents:

    v(S)  = score of the episode with every player outside S masked;  v(N) = its own score, without a replay
    phi_i = mean over orders pi of N of  v(those up to i in pi) - v(those before i in pi)

Up to `exact_up_to` players the mean is over all orders, computed from the 2^n coalitions (`shapley`; Shapley, 1953).
Above that over `permutations` random ones (Castro, Gomez and Tejada, 2009), with truncation (Ghorbani and Zou, "Data
Shapley", 2019, algorithm 1): in each of them, once |v(N) - v(those so far)| < `truncation`, the remaining players of
the order get 0 without a replay. sum_i phi_i = v(N) - v({}), with an error below `truncation`. Each coalition is
replayed at most once.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from random import Random
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import AttemptFailed, SamplingContext, ask, drive, gather_all, scored
from marl_verl.episode import Act, Action, Episode, Journal, TokenBudgetExceeded, Turn, WorkflowError
from marl_verl.errors import MarlError, check_known
from marl_verl.options import Positive

Mode = Literal["regenerate", "rescore", "full"]
Masked = frozenset[str | tuple[str, str]]
"""Masked agents (all of their acts), and masked single acts as keys (agent, slot)."""
Coalition = frozenset[str]
Play = Callable[[Iterable[Coalition]], Awaitable[None]]


@dataclass(frozen=True)
class MaskingCredit(ReplayCredit):
    """Base of the credits that mask agents."""

    one_side: ClassVar[str | None] = "it compares scores of the whole team with and without an agent"
    mode: Mode = "regenerate"  # the other agents' actions in a masked run, see the module
    placeholder: str = "(no answer)"  # text of a masked action, which the workflow must handle
    without: tuple[str, ...] = ()  # agents that are never masked, and whose turns get no credit

    def check(self, agents: Sequence[str]) -> None:
        """MarlError for an unknown agent (with the nearest), or if no agent is left to credit."""
        for name in self.without:
            check_known("agent in 'without'", name, agents)
        if not self.players(agents):
            raise MarlError(f"credit '{self.name}' has no agent to credit: 'without' has all agents of the team")

    def players(self, agents: Sequence[str]) -> tuple[str, ...]:
        """The agents that may be masked, in the order of the team."""
        return tuple(name for name in agents if name not in self.without)

    def acting(self, context: SamplingContext, episode: Episode) -> tuple[str, ...]:
        """The players that acted in an episode, in the order of the team, each spawned agent by itself; masking others
        has no effect."""
        acted = dict.fromkeys((turn.role, turn.agent) for turn in episode.turns)
        return tuple(agent for name in self.players(context.agents) for role, agent in acted if role == name)

    async def values(
        self, context: SamplingContext, episode: Episode, masks: Sequence[Masked]
    ) -> tuple[list[float], int]:
        """(score of the episode with each mask, in order; number of sampled tokens); the runs are concurrent.
        AttemptFailed: a run failed; of several, the first in order."""
        runs = (masked_value(context, episode, masked, self.mode, self.placeholder) for masked in masks)
        results = await gather_all(runs)
        return [value for value, _ in results], sum(tokens for _, tokens in results)


@dataclass(frozen=True)
class Counterfactual(MaskingCredit):
    """Delta on every turn of a player, by a replay without it; all replays of an episode run concurrently.

    An agent that did not act has no turn and needs no replay.
    """

    unit: Literal["agent", "act"] = "agent"  # what is masked together, and gets the same Delta

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "repeated", self.unit == "agent")

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Set Delta on the turns. Returns the number of sampled tokens. AttemptFailed if a masked run has no score."""
        players = self.acting(context, episode)
        masked: dict[str | tuple[str, str], list[Turn]] = {}  # the turns of each replay
        for turn in episode.turns:
            if turn.agent in players:
                masked.setdefault(turn.agent if self.unit == "agent" else turn.key, []).append(turn)
        values, tokens = await self.values(context, episode, [frozenset({one}) for one in masked])
        for turns, value in zip(masked.values(), values, strict=True):
            for turn in turns:
                turn.rewards[self.component] = episode.score - value
        return tokens


@dataclass(frozen=True)
class SampledShapley(MaskingCredit):
    """phi_i on every turn of player i. Players are the agents that acted in the episode."""

    name: ClassVar[str] = "shapley"
    exact_up_to: Annotated[int, Interval(ge=0, le=16)] = 6  # maximum number n of players for 2^n - 1 replays
    permutations: Positive = 16  # random orders for more players: at most `permutations` * (n - 1) + 1 replays
    truncation: Annotated[float, Ge(0)] = 0.0  # in units of the score. With it, replays of one order are sequential

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


async def masked_value(
    context: SamplingContext, episode: Episode, masked: Masked, mode: Mode, placeholder: str
) -> tuple[float, int]:
    """(score of the answer that an episode's workflow reaches with some of its acts masked, tokens sampled for it).

    The run has its own requests and seeds (candidate "without worker2"); the episode is not changed.

    Args:
        masked: agents and acts that get `placeholder`, including acts that the episode does not have.

    AttemptFailed, which names the mask: the run has no score.
    """
    who = ", ".join(sorted(name if isinstance(name, str) else ":".join(name) for name in masked)) or "no player"
    tokens = 0

    async def sample(act: Act) -> Action:
        nonlocal tokens
        if _hidden(act, masked):
            return Action(placeholder)
        if mode == "rescore":
            record = episode.journal.act(*act.key)
            return Action(placeholder) if record is None else record.action
        action = await ask(context, act, episode.session, f"without {who}")
        tokens += action.length
        return action

    try:
        kept = await _kept(context, episode, masked, mode)
        async with context.start(episode.session, kept) as run:
            try:
                await drive(run, sample)
            except TokenBudgetExceeded:  # the team does not finish without them: use its latest proposal
                answer = run.proposals[-1] if run.proposals else None
            else:
                answer = run.answer
            return 0.0 if answer is None else await scored(context, context.score(answer)), tokens
    except (AttemptFailed, WorkflowError) as error:
        raise AttemptFailed(error.reason, f"replay with {who} masked: {error}") from (error.__cause__ or error)


async def _kept(context: SamplingContext, episode: Episode, masked: Masked, mode: Mode) -> Journal:
    """The journal of a masked run: without the masked acts and, in mode "full", without the acts after them."""
    journal = episode.journal
    acts = [record for record in journal.acts() if not _hidden(record.act, masked)]
    kept = Journal((*acts, *journal.calls()), journal.seed)
    if mode != "full":
        return kept
    # run until blocked on the masked acts: the acts reached so far do not depend on them
    async with context.start(episode.session, kept) as run:
        await run.run_until_blocked()
        return Journal((*run.journal.acts(), *journal.calls()), journal.seed)


def _hidden(act: Act, masked: Masked) -> bool:
    return act.agent in masked or act.key in masked


def coalitions(players: Sequence[str]) -> list[frozenset[str]]:
    return [frozenset(chosen) for size in range(len(players) + 1) for chosen in combinations(players, size)]


def shapley(players: Sequence[str], value: Mapping[frozenset[str], float]) -> dict[str, float]:
    """phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

    The only division of v(N) - v(empty) that is efficient, symmetric, linear, and gives 0 to null players.
    Source: Shapley, 1953; for two players phi_a = (v(a) - v(0) + v(ab) - v(b)) / 2.
    `players`: n different names; `value`: v of all 2^n coalitions.
    """
    n = len(players)
    weight = [factorial(size) * factorial(n - size - 1) / factorial(n) for size in range(n)]
    return {
        player: sum(
            weight[len(chosen)] * (value[chosen | {player}] - value[chosen])
            for chosen in coalitions([other for other in players if other != player])
        )
        for player in players
    }
