"""A check for credits that replay episodes. docs/plugins.md has an example."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

from marl_verl.credit import ReplayCredit
from marl_verl.episode import Act, Episode, Turn, Workflow, WorkflowError
from marl_verl.errors import MarlError
from marl_verl.sampling import AttemptFailed, Independent
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.testing.given import SwitchedOff, awaitable, instance, lets_out, must
from marl_verl.testing.scripted import ScriptedContext, ScriptedPolicy, shuffled

ROUNDS = 50  # of the event loop, after which a replay surely stands at an act


def check_credit(
    credit: ReplayCredit,
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    tasks: TaskSet | None = None,
    *,
    sessions: int = 2,
    seed: int = 0,
    orders: int = 3,
    **options: Any,
) -> list[Episode]:
    """Assert that a credit keeps to what `ReplayCredit` promises; call it from a test (it starts an event loop).

    It samples episodes with the scripted policy and credits each: twice, and `orders` times with actions arriving in
    other orders. Then it cancels the credit at its first request, and lets its requests fail. It asserts that

        every turn of a player has the component, a finite number, and no other turn has it
        the tokens reported are those of the actions that were asked for
        the episode's journal, its turns' actions and their other rewards are as they were
        the same episode gets the same credit, whatever arrives first
        nothing is left running, cancelled or not
        a request that fails is told: `assign` raises Failed (or WorkflowError)

    Args:
        tasks: scores the answers; without it every answer scores 1, and most credits are 0.
        sessions: how many episodes; they have seeds of their own.
        options: of `ScriptedContext`: rewards, mix, limits.

    Returns:
        The episodes of the first time, credited: what they are credited with is for your test to say.

    Raises:
        AssertionError: which promise is broken, and where.
        MarlError: the workflow failed, an option of the credit does not fit the team, an argument is of another kind.
    """
    instance(credit, ReplayCredit, "MyCredit(), of a dataclass MyCredit(ReplayCredit)")

    def context(shuffle: int | None) -> ScriptedContext:
        return ScriptedContext(workflow, task, policy, sessions, tasks, seed, shuffled(shuffle), **options)

    return asyncio.run(_Check(credit, context).all(orders))


class _Check:
    """One check: the credit, and how to make the rollouts that it is tried on."""

    def __init__(self, credit: ReplayCredit, context: Callable[[int | None], ScriptedContext]) -> None:
        self.credit, self.context = credit, context
        self.name = f"credit '{credit.name}'"

    async def all(self, orders: int) -> list[Episode]:
        self.credit.check(self.context(None).agents)
        first, tokens = await self.credited(None)
        for shuffle in (None, *range(orders)):
            again, other_tokens = await self.credited(shuffle)
            when = "the second time" if shuffle is None else "with actions arriving in another order"
            for old, new in zip(first, again, strict=True):
                must(old.journal == new.journal, f"the episode itself is another one {when}: see check_workflow")
                for turn, other in zip(old.turns, new.turns, strict=True):
                    one, two = turn.rewards.get(self.credit.component), other.rewards.get(self.credit.component)
                    must(one == two, f"{self.name} gives {_place(turn)} {one}, {when} {two}")
            must(tokens == other_tokens, f"{self.name} reports {tokens} tokens, {when} {other_tokens}")
        await self.cancelled()
        await self.failing(tokens)
        return first

    async def sampled(self, shuffle: int | None) -> tuple[ScriptedContext, list[Episode]]:
        """Rollouts, and the episodes that they give before anything is credited."""
        context = self.context(shuffle)
        sample = await Independent().sample(context)
        if sample.failures:
            raise MarlError(f"there is nothing to credit: {sample.failures[0].detail}")
        return context, sample.episodes

    async def credited(self, shuffle: int | None) -> tuple[list[Episode], list[int]]:
        """(credited episodes, tokens reported for each), each looked at."""
        context, episodes = await self.sampled(shuffle)
        reported = []
        for episode in episodes:
            before, asked = copy.deepcopy(episode), len(context.given)
            reported.append(await self.assigned(context, episode))
            self.nothing_runs("has returned")
            sampled = sum(action.length for action in context.given[asked:])
            must(reported[-1] == sampled, f"{self.name} reports {reported[-1]} tokens, and {sampled} were sampled")
            self.credits(episode, context.agents)
            self.rest(before, episode)
        return episodes, reported

    async def assigned(self, context: ScriptedContext, episode: Episode) -> int:
        """The tokens that the credit reports for an episode."""
        tokens = await awaitable(self.credit.assign(context, episode), f"{self.name}: `assign`")
        message = f"`assign` must return the tokens it sampled, a whole number; it returned {tokens!r:.60}"
        must(isinstance(tokens, numbers.Integral) and not isinstance(tokens, bool), f"{self.name}: {message}")
        return int(tokens)

    def credits(self, episode: Episode, agents: tuple[str, ...]) -> None:
        """Every player's turn has a finite one, nobody else's has any."""
        players = self.credit.players(agents)
        for turn in episode.turns:
            value = turn.rewards.get(self.credit.component)
            if turn.agent not in players:
                must(value is None, f"{self.name}: {_place(turn)} has it, and its agent is no player")
            else:
                must(value is not None, f"{self.name}: {_place(turn)} lacks '{self.credit.component}'")
                finite = isinstance(value, int | float) and math.isfinite(value)
                must(finite, f"{self.name}: {_place(turn)} has {value!r}, which is no finite number")

    def rest(self, before: Episode, after: Episode) -> None:
        """All but the component is as it was."""
        must(before.journal == after.journal, f"{self.name} changed the episode's journal")
        must(len(before.turns) == len(after.turns), f"{self.name} changed the number of the episode's turns")
        for old, new in zip(before.turns, after.turns, strict=True):
            must(old.action == new.action, f"{self.name} changed the action of {_place(old)}")
            others = {name: value for name, value in new.rewards.items() if name != self.credit.component}
            must(old.rewards == others, f"{self.name} changed rewards of {_place(old)}: {old.rewards} to {others}")
            same = dataclasses.replace(new, rewards=old.rewards) == old
            must(same, f"{self.name} changed {_place(old)} from {old} to {new}")
        same = (before.answer, before.score, before.success) == (after.answer, after.score, after.success)
        must(same, f"{self.name} changed the episode's answer or score")

    async def cancelled(self) -> None:
        """Cancelled while its requests are under way, it ends, and so does all that it started."""
        context, episodes = await self.sampled(None)
        context.delay = lambda act, session: 10**9
        for episode in episodes:
            assigning = asyncio.ensure_future(self.assigned(context, episode))
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            under_way = not assigning.done()
            assigning.cancel()
            await asyncio.wait([assigning])
            must(assigning.cancelled() or not under_way, f"{self.name} goes on when it is cancelled")
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            self.nothing_runs("was cancelled")

    async def failing(self, tokens: list[int]) -> None:
        """With policies that fail, it raises for every episode that it needs them for."""
        context, episodes = await self.sampled(None)
        context.delay = _switched_off
        for episode, needed in zip(episodes, tokens, strict=True):
            raised = False
            try:
                await self.assigned(context, episode)
            except (AttemptFailed, WorkflowError):
                raised = True
            except Exception as error:
                if not lets_out(error):
                    raise
                message = f"comes out of {self.name} as {type(error).__name__}"
                raise AssertionError(f"a request failed, and {message}: ask policies by `ask`") from error
            self.nothing_runs("has raised")
            must(raised or not needed, f"{self.name} gives credit though the policies that it asks fail")

    def nothing_runs(self, when: str) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        must(not left, f"{self.name} leaves {len(left)} tasks running when it {when}")


def _switched_off(act: Act, session: int) -> int:
    raise SwitchedOff("check_credit has switched the policies off")


def _place(turn: Turn) -> str:
    return f"turn {turn.session}_{turn.index} of agent '{turn.agent}'"
