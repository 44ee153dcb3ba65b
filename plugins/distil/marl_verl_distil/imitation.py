"""Imitation as an algorithm: rows are demonstrations in place of sampled actions, and all advantages are 1.

    L = -1/T sum_it log pi(token t of demonstration i | prompt, tokens before t)    T: tokens of all demonstrations

This is verl's SFT loss (`verl.workers.utils.losses.sft_loss`).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl import Action, Task, Team, Workflow
from marl_verl.algo.advantage import TASK, AdvantageResult, Estimator, FloatArray, RowTable, group_ids
from marl_verl.algo.algorithms import Algorithm, Loss, PlainRows
from marl_verl.algo.sampling import Independent, Sample, SamplingContext
from marl_verl.tasks.base import observation

KEY = "demonstrations"
"""In a task's data: [{"text", "prompt_ids", "response_ids"}, ...]."""


class Demonstrations(Independent):
    """The demonstrations of a task as its episodes. Tasks without (those of checks before a run) are sampled."""

    async def sample(self, context: SamplingContext) -> Sample:
        if KEY not in context.task.data:
            return await super().sample(context)
        sample = Sample()
        for session, demonstration in enumerate(context.task.data[KEY]):
            unknown = [0.0] * len(demonstration["response_ids"])  # log-probs: the loss does not read them
            async with context.start(session) as run:
                for act in await run.next() or ():
                    run.resolve(act, Action(**demonstration, log_probs=unknown, stop_reason="stop"))
                await run.next()
                sample.episodes.append(await context.finish(run, session))
        return sample


@dataclass(frozen=True)
class Imitated(Estimator):
    """A = 1: every demonstration counts alike, whatever its score."""

    name: ClassVar[str] = "imitated"
    no_tree: ClassVar[str | None] = "demonstrations are whole episodes"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        zeros, ones, rows = np.zeros(len(table)), np.ones(len(table)), np.arange(len(table))
        return AdvantageResult(ones, reward, zeros, ones, group_ids(table, TASK), rows, TASK)


LOSS = Loss({"policy_loss": {"loss_mode": "gpg"}, "loss_agg_mode": "token-mean"}, {"bypass_mode": True})
"""L = -1/T sum_it A_i log pi(token), verl's "gpg", which has no pi_old."""

IMITATION = Algorithm(sampler="demonstrations", advantage=Imitated(), loss="imitation")
"""A = 1 on the rows of demonstrations: nothing is compared."""


def imitation(rows: PlainRows) -> list[float]:
    return [1.0] * len(rows)


REFERENCES = {"imitation": imitation}


class AfterReasoning(Workflow):
    """A team of one agent that sees the task's prompt or messages. Its answer is the text after the last `separator`,
    or all of it without one."""

    separator: str = "---"

    async def run(self, task: Task, team: Team) -> str:
        action = await team[team.agents[0]].act(observation(task))
        return str(action.text).rpartition(self.separator)[2].strip()
