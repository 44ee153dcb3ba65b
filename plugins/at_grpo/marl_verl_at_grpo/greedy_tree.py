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
    gather_all,
    leaf_episode,
    root,
    settled,
)
from marl_verl.episode import Turn
from marl_verl.options import Count


class GreedyTree(Sampler):
    """Sample one tree per task.

    Node "n-k" is candidate k for the n-th act of the winners' path, and its parent is the previous winner; a row's
    index is n * K + k. The single episode is the winners' path, the other candidates are its `off_path_turns`. A failed
    candidate is no row; if all candidates for an act fail, the path ends before that act.

    Attributes:
        candidates: K, the number of candidates per act.
        partial_value: the value of a state before the end of the workflow (docs/sampling.md). Tokens sampled to
            estimate it are counted as "rollout" and are not rows.
    """

    branches: ClassVar[bool] = True
    candidates: Count = 8
    partial_value: PartialValue = "proposal"

    async def sample(self, context: SamplingContext) -> Sample:
        sample = Sample()
        start = await attempt(context, SESSION, root(context, SESSION))
        if isinstance(start, Failure):
            return Sample(failures=[start] * self.candidates)  # none of the first act's candidates could be sampled
        state, number, waiting, off_path = start, 0, list(start.acts), list[Turn]()
        while waiting:  # the acts that the run is blocked on, in the order in which it reached them
            where, most, value = (context, state, waiting[0], SESSION), self.candidates, self.partial_value
            parent = state.turn.node if number else None
            work = [
                expand(*where, f"{number}-{k}", index=number * most + k, parent=parent, partial_value=value)
                for k in range(most)
            ]
            grown = await gather_all(attempt(context, SESSION, child) for child in work)
            sample.failures += [child for child in grown if isinstance(child, Failure)]
            states = [child for child in grown if isinstance(child, State)]
            if not states:
                break
            if value_tokens := sum(child.value_tokens for child in states):
                sample.add_tokens("rollout", value_tokens)
            state = max(states, key=lambda child: child.value)  # the first of equals
            off_path += [turn for child in states if child is not state for turn in child.own]
            after = await attempt(context, SESSION, settled(context, state, SESSION))
            if isinstance(after, Failure):
                sample.failures.append(after)
                break
            before = [act.key for act in waiting]
            state, number = after, number + 1
            waiting = sorted(after.acts, key=lambda act: before.index(act.key) if act.key in before else len(before))
        if state.episode is not None:
            sample.episodes.append(leaf_episode(state, off_path))
        sample.count_transitions()
        return sample
