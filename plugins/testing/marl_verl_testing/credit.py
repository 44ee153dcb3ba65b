"""Check credits that replay episodes; example in docs/plugins.md."""

import asyncio
import copy
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import AttemptFailed, Independent
from marl_verl.episode import Act, Episode, Turn, Workflow, WorkflowError
from marl_verl.errors import MarlError
from marl_verl.tasks.base import TaskSet
from marl_verl.tasks.task import Task
from marl_verl_testing.given import SECONDS, SwitchedOff, lets_out, must, same_elsewhere, time_limit
from marl_verl_testing.scripted import ScriptedContext, ScriptedPolicy, shuffled

ROUNDS = 50  # iterations of the event loop after which a replay waits for an act


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
    of the actions. Then it cancels the credit at its first request, and makes its requests fail. It asserts that

        every turn of a player has the component, a finite number, and no other turn has it
        the reported number of tokens is that of the requested actions
        the episode's journal, the actions of its turns and their other rewards are unchanged
        the credit of an episode is independent of the arrival order and of the hash seed, which orders sets
        no task is left running, after a cancellation or otherwise
        if a request fails, `assign` raises AttemptFailed or WorkflowError

    Args:
        tasks: scores the answers; without it every answer scores 1, and most credits are 0.
        episodes: number of episodes, with different seeds.
        seconds: time limit of the check.
        options: of `ScriptedContext`: rewards, sides, mix, limits.

    Returns:
        The credited episodes of the first pass; your test must check their credits.

    Raises:
        AssertionError: the violated property and where.
        MarlError: the workflow failed, or an option of the credit does not fit the team.
    """

    def context(shuffle: int | None) -> ScriptedContext:
        return ScriptedContext(workflow, task, policy, tasks, seed, shuffled(shuffle), **options)

    compute = partial(_lines, credit, episodes, workflow, task, policy, tasks, seed, options)
    with time_limit("check_credit", seconds):
        episodes_credited = asyncio.run(_Check(credit, Independent(episodes), context).all(orders))
        same_elsewhere(compute, compute(), f"credit '{credit.name}'")
    return episodes_credited


def _lines(credit: ReplayCredit, episodes: int, *scene: Any) -> list[str]:
    *given, options = scene

    async def credited() -> list[str]:
        context = ScriptedContext(*given, **options)
        sample = await Independent(episodes).sample(context)
        for episode in sample.episodes:
            await credit.assign(context, episode)
        return [f"{_place(turn)}: {sorted(turn.rewards.items())}" for turn in sample.turns]

    return asyncio.run(credited())


class _Check:
    """One check: the credit, the sampler of its episodes, and a factory of sampling contexts."""

    def __init__(
        self, credit: ReplayCredit, sampler: Independent, context: Callable[[int | None], ScriptedContext]
    ) -> None:
        self.credit, self.sampler, self.context = credit, sampler, context
        self.name = f"credit '{credit.name}'"

    async def all(self, orders: int) -> list[Episode]:
        self.credit.check(self.context(None).agents)
        first, tokens = await self.credited(None)
        for shuffle in (None, *range(orders)):
            again, other_tokens = await self.credited(shuffle)
            when = "the second time" if shuffle is None else "with actions arriving in another order"
            for old, new in zip(first, again, strict=True):
                must(old.journal == new.journal, f"the sampled episode differs {when}: see check_workflow")
                for turn, other in zip(old.turns, new.turns, strict=True):
                    one, two = turn.rewards.get(self.credit.component), other.rewards.get(self.credit.component)
                    must(one == two, f"{self.name} gives {_place(turn)} {one}, {when} {two}")
            must(tokens == other_tokens, f"{self.name} reports {tokens} tokens, {when} {other_tokens}")
        await self.cancelled()
        await self.failing(tokens)
        return first

    async def sampled(self, shuffle: int | None) -> tuple[ScriptedContext, list[Episode]]:
        """A context and its sampled episodes without credit."""
        context = self.context(shuffle)
        sample = await self.sampler.sample(context)
        if sample.failures:
            raise MarlError(f"there is nothing to credit: {sample.failures[0].detail}")
        return context, sample.episodes

    async def credited(self, shuffle: int | None) -> tuple[list[Episode], list[int]]:
        """(credited episodes, tokens reported for each), all checked."""
        context, episodes = await self.sampled(shuffle)
        reported = []
        for episode in episodes:
            before, asked = copy.deepcopy(episode), len(context.given)
            reported.append(await self.credit.assign(context, episode))
            self.nothing_runs("has returned")
            sampled = sum(action.length for action in context.given[asked:])
            must(reported[-1] == sampled, f"{self.name} reports {reported[-1]} tokens, and {sampled} were sampled")
            self.credits(episode, context.agents)
            self.rest(before, episode)
        return episodes, reported

    def credits(self, episode: Episode, agents: tuple[str, ...]) -> None:
        """Every turn of a player has a finite credit, and no other turn has one."""
        players = self.credit.players(agents)
        for turn in episode.turns:
            value = turn.rewards.get(self.credit.component)
            if turn.role not in players:
                must(value is None, f"{self.name}: {_place(turn)} has a credit, and its agent is not a player")
            else:
                must(value is not None, f"{self.name}: {_place(turn)} lacks '{self.credit.component}'")
                finite = isinstance(value, int | float) and math.isfinite(value)
                must(finite, f"{self.name}: {_place(turn)} has {value!r}, which is not a finite number")

    def rest(self, before: Episode, after: Episode) -> None:
        for old, new in zip(before.turns, after.turns, strict=True):
            rewards = {name: value for name, value in new.rewards.items() if name != self.credit.component}
            rest = dataclasses.replace(new, rewards=rewards)
            must(old == rest, f"{self.name} changed {_place(old)} from {old} to {rest}")
        same = dataclasses.replace(after, turns=before.turns) == before
        must(same, f"{self.name} changed the episode's journal, answer or score")

    async def cancelled(self) -> None:
        """A cancellation during requests ends `assign` and all tasks that it started."""
        context, episodes = await self.sampled(None)
        context.delay = lambda act, session: 10**9
        for episode in episodes:
            assigning = asyncio.ensure_future(self.credit.assign(context, episode))
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            under_way = not assigning.done()
            assigning.cancel()
            await asyncio.wait([assigning])
            must(assigning.cancelled() or not under_way, f"{self.name} continues after it is cancelled")
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            self.nothing_runs("was cancelled")

    async def failing(self, tokens: list[int]) -> None:
        """If policy requests fail, `assign` raises for every episode that needs one."""
        context, episodes = await self.sampled(None)
        context.delay = _switched_off
        for episode, needed in zip(episodes, tokens, strict=True):
            raised = False
            try:
                await self.credit.assign(context, episode)
            except (AttemptFailed, WorkflowError):
                raised = True
            except Exception as error:
                if not lets_out(error):
                    raise
                message = f"{self.name} raised {type(error).__name__}"
                raise AssertionError(f"a request failed, and {message}: use `ask` for policy requests") from error
            self.nothing_runs("has raised")
            must(raised or not needed, f"{self.name} assigns credit although its policy requests fail")

    def nothing_runs(self, when: str) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        must(not left, f"{self.name} leaves {len(left)} tasks running when it {when}")


def _switched_off(act: Act, session: int) -> int:
    raise SwitchedOff("check_credit makes all policy requests fail")


def _place(turn: Turn) -> str:
    return f"turn {turn.session}_{turn.index} of agent '{turn.agent}'"
