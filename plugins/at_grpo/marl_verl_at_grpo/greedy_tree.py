"""The greedy tree: K candidates for an act, all of them rows, the best of them is what the next agent sees.

At the n-th act of the path, in state s_n, by the agent that the workflow calls there:

    a_k ~ pi(. | o(s_n)),  k = 0 .. K - 1         from one shared state, concurrently
    r_k = reward(s_n, a_k)                        its own: of the state that a_k, and no other, leads to
    s_(n+1) = what a_(k*) leads to,  k* = the lowest k with the largest r_k

Source: AT-GRPO, arXiv 2510.11062, tree-structured sampling. Where the run stands at several acts (a joint move, or
concurrent lanes), they are taken one after the other, those first that it reached first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from marl_verl.episode import Act, Turn
from marl_verl.sampling import (
    SESSION,
    Failure,
    Rollouts,
    Sample,
    Sampler,
    State,
    Unfinished,
    attempt,
    grow,
    leaf_episode,
    root,
)


class GreedyTree(Sampler):
    """One tree a task: `sessions` is K, the candidates for each act.

    Node "n-k" is candidate k for the n-th act of the winners' path, and its parent is the winner before; a row's index
    is n * K + k. The one episode is the winners' path, the other candidates are in its `others`. A candidate that
    fails is no row; where all candidates for an act fail, the path ends before that act.

    Attributes:
        unfinished: what a state is worth while the workflow has not ended; see `node.Unfinished`. Tokens sampled to see
            it are counted as "play-on", and are no rows.
    """

    branches: ClassVar[bool] = True
    unfinished: Unfinished = "proposal"

    async def sample(self, rollouts: Rollouts) -> Sample:
        """Grow one path from the root to the workflow's end."""
        found = Sample()
        start = await attempt(rollouts, SESSION, root(rollouts, SESSION))
        if isinstance(start, Failure):
            return Sample(failures=[start] * rollouts.sessions)  # none of the first act's candidates could be sampled
        path = _Path(start)
        while path.waiting:
            grown = await self._candidates(rollouts, path)
            found.failures += [each for each in grown if isinstance(each, Failure)]
            states = [each for each in grown if isinstance(each, State)]
            if not states:
                break
            if played_on := sum(state.played_on for state in states):
                found.add_tokens("play-on", played_on)
            path.go_on(states)
        if path.number:
            found.episodes.append(leaf_episode(path.state, path.others))
        return found

    async def _candidates(self, rollouts: Rollouts, path: _Path) -> list[State | Failure]:
        """All candidates for the path's next act, by number."""
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._candidate(rollouts, path, k)) for k in range(rollouts.sessions)]
        return [task.result() for task in made]

    async def _candidate(self, rollouts: Rollouts, path: _Path, k: int) -> State | Failure:
        grown = grow(
            rollouts,
            path.state,
            path.waiting[0],
            SESSION,
            f"{path.number}-{k}",
            index=path.number * rollouts.sessions + k,
            parent=path.state.turn.node if path.number else None,
            unfinished=self.unfinished,
        )
        return await attempt(rollouts, SESSION, grown)


@dataclass
class _Path:
    """The winners so far.

    Attributes:
        state: where the last winner led.
        waiting: the acts that it stands at; one that stood there before comes before those reached since.
        number: of the next act.
        others: the candidates that were not gone on with.
    """

    state: State
    waiting: list[Act] = field(init=False)
    number: int = 0
    others: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = list(self.state.acts)

    def go_on(self, states: list[State]) -> None:
        """Go on with the best of some candidates."""
        self.state = max(states, key=lambda state: state.value)  # the first of several
        self.others += [state.turn for state in states if state is not self.state]
        before = [act.key for act in self.waiting]
        self.waiting = sorted(
            self.state.acts, key=lambda act: before.index(act.key) if act.key in before else len(before)
        )
        self.number += 1
