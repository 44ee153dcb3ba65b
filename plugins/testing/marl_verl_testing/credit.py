"""Check credits that replay episodes; example in docs/plugins.md."""

import asyncio
import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from marl_verl import MarlError, Task, TaskSet
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import AttemptFailed, Independent
from marl_verl.episode import Episode, Workflow, WorkflowError
from marl_verl_testing.given import SECONDS, must, nothing_left, same, same_elsewhere, time_limit
from marl_verl_testing.replayed import named
from marl_verl_testing.scripted import ScriptedContext, ScriptedPolicy


def check_credit(
    credit: ReplayCredit,
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    tasks: TaskSet | None = None,
    *,
    episodes: int = 2,
    seed: int = 0,
    orders: int = 3,
    seconds: float = SECONDS,
    **options: Any,
) -> list[Episode]:
    """Assert the required properties of a `ReplayCredit`; call it from a test (it starts an event loop).

    It samples episodes with the scripted policy and credits each: twice, and `orders` times with other arrival orders
    of the actions. Then it makes the credit's requests fail. It asserts that

        every turn of a player has the component, a finite number, and no other turn has it
        the reported number of tokens is that of the requested actions
        the episode's journal, the actions of its turns and their other rewards are unchanged
        the credit of an episode is independent of the arrival order and of the hash seed, which orders sets
        no task is left running
        if a request fails, `assign` raises AttemptFailed or WorkflowError

    Args:
        tasks: scores the answers; without it every answer scores 1, and most credits are 0.
        options: of `ScriptedContext`: rewards, sides, mix, limits.

    Returns the credited episodes of the first pass; your test must check their credits.
    """

    def credited(order: int | None = None) -> tuple[list[Episode], list[str]]:
        context = ScriptedContext(workflow, task, policy, tasks, seed, order=order, **options)
        return asyncio.run(_credited(credit, context, episodes))

    with time_limit("check_credit", seconds):
        first, lines = credited()
        for order in (None, *range(orders)):
            when = "the second time" if order is None else "with actions arriving in another order"
            same(lines, credited(order)[1], f"credit '{credit.name}', {when},")
        asyncio.run(_check_failing(credit, ScriptedContext(workflow, task, policy, tasks, seed, **options), episodes))
        same_elsewhere(lambda: credited()[1], lines, f"credit '{credit.name}'")
    return first


async def _sampled(context: ScriptedContext, episodes: int) -> list[Episode]:
    sample = await Independent(episodes).sample(context)
    if sample.failures:
        raise MarlError(f"there is nothing to credit: {sample.failures[0].detail}")
    return sample.episodes


async def _credited(credit: ReplayCredit, context: ScriptedContext, episodes: int) -> tuple[list[Episode], list[str]]:
    """(credited episodes, what was credited as lines), checked each by itself."""
    credit.check(context.agents)
    name, running, lines = f"credit '{credit.name}'", asyncio.all_tasks(), list[str]()
    sampled = await _sampled(context, episodes)
    for episode in sampled:
        before, asked = copy.deepcopy(episode), len(context.given)
        reported = await credit.assign(context, episode)
        await nothing_left(running, f"when {name} has returned")
        tokens = sum(action.length for action in context.given[asked:])
        must(reported == tokens, f"{name} reports {reported} tokens, and {tokens} were sampled")
        _check_credits(credit, before, episode, credit.players(context.agents))
        lines += [f"session {episode.session} sampled {tokens} tokens"]
        lines += [f"{named(turn)}: {sorted(turn.rewards.items())}" for turn in episode.turns]
    return sampled, lines


def _check_credits(credit: ReplayCredit, before: Episode, after: Episode, players: Sequence[str]) -> None:
    """Every turn of a player has a finite credit, no other turn has one, and nothing else has changed."""
    for old, new in zip(before.turns, after.turns, strict=True):
        rewards = dict(new.rewards)
        value = rewards.pop(credit.component, None)
        right = value is not None and math.isfinite(value) if new.role in players else value is None
        must(right, f"credit '{credit.name}': {named(new)} has '{credit.component}' {value}; players are {players}")
        rest = dataclasses.replace(new, rewards=rewards)
        must(old == rest, f"credit '{credit.name}' changed {named(old)} from {old} to {rest}")
    unchanged = dataclasses.replace(after, turns=before.turns) == before
    must(unchanged, f"credit '{credit.name}' changed the episode's journal, answer or score")


async def _check_failing(credit: ReplayCredit, context: ScriptedContext, episodes: int) -> None:
    """If policy requests fail, `assign` raises for every episode that needs one."""
    for episode in await _sampled(context, episodes):
        asked = len(context.asked)
        context.failing = lambda request: True
        try:
            await credit.assign(context, episode)
        except (AttemptFailed, WorkflowError):
            continue
        must(len(context.asked) == asked, f"credit '{credit.name}' assigns credit although its policy requests fail")
