"""Masking: what the team would have reached without what some of its agents did.

    v(tau without M) = score of the answer that the workflow reaches on the same task, with the same calls and random
                       draws, when every act of M gets a placeholder

An episode is its journal, so this is a replay of it with some actions replaced. What the others do then is the mode:

    regenerate   an act that is shown the same as before keeps its action, at no cost; another one is sampled again
    rescore      every act keeps the text that it has, whatever it is shown now; nothing is sampled
    full         every act that comes after a masked one is sampled again, whatever it is shown

An act comes after a masked one if the workflow reaches it only once the masked one is answered: acts of the same joint
move, and of lanes beside it, do not. Recorded results of `team.call` stay where its arguments are unchanged.
A masked run that reaches the token limit of an episode is worth its latest proposal (`team.propose`), 0 without one.
Source of the modes: SHARP, arXiv 2602.08335, second hand: no authors' code was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from marl_verl.credit import ReplayCredit
from marl_verl.episode import Act, Action, Episode, Journal, TokenBudgetExceeded, WorkflowError
from marl_verl.errors import MarlError, unknown
from marl_verl.sampling import AttemptFailed, SamplingContext, ask, drive, gather_all, scored

Mode = Literal["regenerate", "rescore", "full"]
Masked = frozenset[str | tuple[str, str]]
"""Agents, all of whose acts are masked, and single acts by their keys (agent, slot)."""


@dataclass(frozen=True)
class MaskingCredit(ReplayCredit):
    """Base of the credits that mask agents.

    Attributes:
        mode: what the others do in a masked run: see the module.
        placeholder: what a masked agent says instead. The workflow has to get along with it, as with any answer.
        only: the agents that are credited; empty for all of them.
        without: agents that are not, in any case. They are never masked, and their turns get nothing.
    """

    mode: Mode = "regenerate"
    placeholder: str = "(no answer)"
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in get_args(Mode):
            raise unknown("mode", self.mode, get_args(Mode))
        for option in ("only", "without"):
            names = getattr(self, option)
            if isinstance(names, str):
                raise MarlError(f"'{option}' must be a list of agents, got '{names}'")
            object.__setattr__(self, option, tuple(names))  # a config has lists

    def check(self, agents: Sequence[str]) -> None:
        """MarlError for an agent that the team has not (nearest offered), or if nobody is left to credit."""
        for option in ("only", "without"):
            for name in getattr(self, option):
                if name not in agents:
                    raise MarlError(f"credit_{option}: {unknown('agent', name, agents)}")
        if not self.players(agents):
            left_out = f"credit_only={list(self.only)} and credit_without={list(self.without)}"
            raise MarlError(f"credit '{self.name}' has nobody to credit: {left_out} leave no agent of the team")

    def players(self, agents: Sequence[str]) -> tuple[str, ...]:
        """The agents that may be masked, in the order of the team."""
        return tuple(name for name in agents if (not self.only or name in self.only) and name not in self.without)

    def acting(self, context: SamplingContext, episode: Episode) -> tuple[str, ...]:
        """The players that acted in an episode, in the order of the team: masking another one changes nothing."""
        acted = {turn.agent for turn in episode.turns}
        return tuple(name for name in self.players(context.agents) if name in acted)

    async def values(
        self, context: SamplingContext, episode: Episode, masks: Sequence[Masked]
    ) -> tuple[list[float], int]:
        """(what the episode is worth with each of these masked, in order; tokens sampled), all runs at once.

        Raises:
            Failed: a run came to nothing; of several, the first in order.
        """
        runs = (masked_value(context, episode, masked, self.mode, self.placeholder) for masked in masks)
        found = await gather_all(runs)
        return [value for value, _ in found], sum(tokens for _, tokens in found)


async def masked_value(
    context: SamplingContext, episode: Episode, masked: Masked, mode: Mode, placeholder: str
) -> tuple[float, int]:
    """(score of the answer that an episode's workflow reaches with some of its acts masked, tokens sampled for it).

    The run is a new one, with requests and seeds of its own ("without worker2"); the episode is left as it is.

    Args:
        masked: whose acts get `placeholder`, those too that the episode had not.

    Raises:
        Failed: the run came to no score: a policy, the workflow, the scoring, or a limit. It names who was masked.
    """
    who = ", ".join(sorted(name if isinstance(name, str) else ":".join(name) for name in masked)) or "nobody"
    try:
        return await _played(context, episode, masked, mode, placeholder, f"without {who}")
    except (AttemptFailed, WorkflowError) as error:
        raise AttemptFailed(error.reason, f"replay with {who} masked: {error}") from (error.__cause__ or error)


async def _played(
    context: SamplingContext, episode: Episode, masked: Masked, mode: Mode, placeholder: str, candidate: str
) -> tuple[float, int]:
    tokens = 0

    async def sample(act: Act) -> Action:
        nonlocal tokens
        if _hidden(act, masked):
            return Action(placeholder)
        if mode == "rescore":
            record = episode.journal.act(*act.key)
            return Action(placeholder) if record is None else record.action
        action = await ask(context, act, episode.session, candidate)
        tokens += action.length
        return action

    kept = await _kept(context, episode, masked, mode)
    async with context.start(episode.session, kept) as run:
        try:
            await drive(run, sample)
        except TokenBudgetExceeded:  # without them the team finds no end: what it would answer by then
            answer = run.proposals[-1] if run.proposals else None
        else:
            answer = run.answer
        return 0.0 if answer is None else await scored(context, context.score(answer)), tokens


async def _kept(context: SamplingContext, episode: Episode, masked: Masked, mode: Mode) -> Journal:
    """What a masked run finds recorded: all but the masked acts, and in mode "full" but the acts after them, too."""
    journal = episode.journal
    acts = [record for record in journal.acts() if not _hidden(record.act, masked)]
    kept = Journal((*acts, *journal.calls()), journal.seed)
    if mode != "full":
        return kept
    # without answers to the masked acts the workflow gets as far as it can without them, and no further
    async with context.start(episode.session, kept) as run:
        await run.run_until_blocked()
        return Journal((*run.journal.acts(), *journal.calls()), journal.seed)


def _hidden(act: Act, masked: Masked) -> bool:
    return act.agent in masked or act.key in masked
