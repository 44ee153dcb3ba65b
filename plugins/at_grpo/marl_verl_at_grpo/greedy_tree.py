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
    PartialValue,
    Sample,
    Sampler,
    SamplingContext,
    State,
    attempt,
    expand,
    leaf_episode,
    root,
)


class GreedyTree(Sampler):
    """One tree a task: `sessions` is K, the candidates for each act.

    Node "n-k" is candidate k for the n-th act of the winners' path, and its parent is the winner before; a row's index
    is n * K + k. The one episode is the winners' path, the other candidates are its `off_path_turns`. A candidate that
    fails is no row; where all candidates for an act fail, the path ends before that act.

    Attributes:
        partial_value: the value of a state before the end of the workflow; see `node.PartialValue`. Tokens sampled to
            find it are counted as "rollout" and are not rows.
    """

    branches: ClassVar[bool] = True
    partial_value: PartialValue = "proposal"

    async def sample(self, context: SamplingContext) -> Sample:
        """Grow one path from the root to the workflow's end."""
        found = Sample()
        start = await attempt(context, SESSION, root(context, SESSION))
        if isinstance(start, Failure):
            return Sample(failures=[start] * context.sessions)  # none of the first act's candidates could be sampled
        path = _Path(start)
        while path.waiting:
            grown = await self._candidates(context, path)
            found.failures += [each for each in grown if isinstance(each, Failure)]
            states = [each for each in grown if isinstance(each, State)]
            if not states:
                break
            if value_tokens := sum(state.value_tokens for state in states):
                found.add_tokens("rollout", value_tokens)
            path.go_on(states)
        if path.number:
            found.episodes.append(leaf_episode(path.state, path.off_path_turns))
        return found

    async def _candidates(self, context: SamplingContext, path: _Path) -> list[State | Failure]:
        """All candidates for the path's next act, by number."""
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._candidate(context, path, k)) for k in range(context.sessions)]
        return [task.result() for task in made]

    async def _candidate(self, context: SamplingContext, path: _Path, k: int) -> State | Failure:
        grown = expand(
            context,
            path.state,
            path.waiting[0],
            SESSION,
            f"{path.number}-{k}",
            index=path.number * context.sessions + k,
            parent=path.state.turn.node if path.number else None,
            partial_value=self.partial_value,
        )
        return await attempt(context, SESSION, grown)


@dataclass
class _Path:
    """The winners so far.

    Attributes:
        state: where the last winner led.
        waiting: the acts that it stands at; one that stood there before comes before those reached since.
        number: of the next act.
        off_path_turns: the candidates that were not chosen.
    """

    state: State
    waiting: list[Act] = field(init=False)
    number: int = 0
    off_path_turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = list(self.state.acts)

    def go_on(self, states: list[State]) -> None:
        """Go on with the best of some candidates."""
        self.state = max(states, key=lambda state: state.value)  # the first of several
        self.off_path_turns += [state.turn for state in states if state is not self.state]
        before = [act.key for act in self.waiting]
        self.waiting = sorted(
            self.state.acts, key=lambda act: before.index(act.key) if act.key in before else len(before)
        )
        self.number += 1
