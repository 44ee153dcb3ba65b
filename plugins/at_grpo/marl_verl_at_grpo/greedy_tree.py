"""Greedy tree: K candidates per act, all of which are rows; the best one leads to the state of the next act.

At the n-th act of the path, in state s_n, by the agent that the workflow calls there:

    a_k ~ pi(. | o(s_n)),  k = 0 .. K - 1         from one shared state, concurrently
    r_k = reward(s_n, a_k)                        reward of the state that a_k leads to
    s_(n+1) = state after a_(k*),  k* = the lowest k with the largest r_k

Source: AT-GRPO, arXiv 2510.11062, tree-structured sampling. Where the run is blocked on several acts (a joint move, or
concurrent lanes), they are sampled one after the other, in the order in which the run reached them.

An act of an agent that is not trained is a part of the transition to s_(n+1): it is sampled once, from the winner's
state (from each candidate's state if its reward depends on it: without a proposal before it), and is no row.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from marl_verl.algo.sampling import (
    SESSION,
    Failure,
    PartialValue,
    Sample,
    Sampler,
    SamplingContext,
    State,
    attempt,
    expand,
    leaf_episode,
    root,
    settled,
)
from marl_verl.episode import Act, Turn
from marl_verl.options import Count


class GreedyTree(Sampler):
    """Sample one tree per task.

    Node "n-k" is candidate k for the n-th act of the winners' path, and its parent is the previous winner; a row's
    index is n * K + k. The single episode is the winners' path, the other candidates are its `off_path_turns`. A failed
    candidate is no row; if all candidates for an act fail, the path ends before that act.

    Attributes:
        candidates: K, the number of candidates per act.
        partial_value: the value of a state before the end of the workflow; see `node.PartialValue`. Tokens sampled to
            estimate it are counted as "rollout" and are not rows.
    """

    branches: ClassVar[bool] = True
    candidates: Count = 8
    partial_value: PartialValue = "proposal"

    async def sample(self, context: SamplingContext) -> Sample:
        """Sample one path from the root to the workflow's end."""
        sample = Sample()
        start = await attempt(context, SESSION, root(context, SESSION))
        if isinstance(start, Failure):
            return Sample(failures=[start] * self.candidates)  # none of the first act's candidates could be sampled
        path = _Path(start)
        while path.waiting:
            grown = await self._candidates(context, path)
            sample.failures += [child for child in grown if isinstance(child, Failure)]
            states = [child for child in grown if isinstance(child, State)]
            if not states:
                break
            if value_tokens := sum(state.value_tokens for state in states):
                sample.add_tokens("rollout", value_tokens)
            best = path.choose(states)
            after = await attempt(context, SESSION, settled(context, best, SESSION))
            if isinstance(after, Failure):
                sample.failures.append(after)
                break
            path.advance(after)
        if path.state.episode is not None:
            sample.episodes.append(leaf_episode(path.state, path.off_path_turns))
        sample.count_transitions()
        return sample

    async def _candidates(self, context: SamplingContext, path: _Path) -> list[State | Failure]:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._candidate(context, path, k)) for k in range(self.candidates)]
        return [task.result() for task in made]

    async def _candidate(self, context: SamplingContext, path: _Path, k: int) -> State | Failure:
        grown = expand(
            context,
            path.state,
            path.waiting[0],
            SESSION,
            f"{path.number}-{k}",
            index=path.number * self.candidates + k,
            parent=path.state.turn.node if path.number else None,
            partial_value=self.partial_value,
        )
        return await attempt(context, SESSION, grown)


@dataclass
class _Path:
    """The winners so far.

    Attributes:
        state: state after the last winner.
        waiting: acts that the run is blocked on, in the order in which it reached them.
        number: number of the next act.
        off_path_turns: the candidates that were not chosen.
    """

    state: State
    waiting: list[Act] = field(init=False)
    number: int = 0
    off_path_turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = list(self.state.acts)

    def choose(self, states: list[State]) -> State:
        self.state = max(states, key=lambda state: state.value)  # the first of equals
        self.off_path_turns += [turn for state in states if state is not self.state for turn in state.own]
        return self.state

    def advance(self, state: State) -> None:
        self.state = state
        before = [act.key for act in self.waiting]
        self.waiting = sorted(
            self.state.acts, key=lambda act: before.index(act.key) if act.key in before else len(before)
        )
        self.number += 1
