"""SHARP: a planner and its workers, rewarded by broadcast, marginal credit and tool use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marl_verl.algo.advantage import AGENT, Advantage, AdvantageResult, FloatArray, IntArray, RowTable, combine
from marl_verl.algo.algorithms import Algorithm, Metric, PlainRows, in_groups
from marl_verl.algo.rewards import RewardMix
from marl_verl.errors import check_known
from marl_verl_sharp.counterfactual import Counterfactual


def worker_calls(table: RowTable, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """([c] first row of each call, [c] its credit) of the calls that contain these rows."""
    if not len(rows):
        return rows, np.zeros(0)
    call = combine([table.uid.codes[rows], table.session[rows], table.agent.codes[rows]], len(rows))
    _, first = np.unique(call, return_index=True)
    credit = np.bincount(call, weights=table.rewards["mc"][rows]) / np.bincount(call)
    return rows[first], credit


class WorkerCalls(Metric):
    """`worker_calls/useful`, `idle`, `harmful`: the shares of the workers' calls with Delta above, at and below 0; and
    `worker_calls/credit`, the mean of Delta. Nothing without mc.

    A call is all acts of one worker in one session: Delta is the mean of `mc` over its turns (with credit unit "agent"
    they have the same). A worker that did not act made no call. The paper reports 13% useful and 4% harmful calls.
    Source: SHARP, arXiv 2602.08335, second hand.
    """

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        _, credit = worker_calls(table, np.flatnonzero((result.group >= 0) & table.present.get("mc", False)))
        if not len(credit):
            return {}
        columns = {"useful": credit > 0, "idle": credit == 0, "harmful": credit < 0, "credit": credit}
        return {f"worker_calls/{name}": float(values.mean()) for name, values in columns.items()}


@dataclass(frozen=True)
class SharpMix(RewardMix):
    """R = w_broadcast * broadcast + w_marginal * mc + w_tool * tool.

    A worker's mc is its own signed marginal credit, a component of its rows: the team's score minus the score with the
    worker masked. The planner's is lam * mean over the workers in its session of max(mc, 0); a worker with several
    acts counts with the mean of its rows. A row without tool calls has tool 0. Where no row has `broadcast`, it is
    `team`. With w_marginal 0 no mc is needed: credit "none" then saves the replays. Source: SHARP, arXiv 2602.08335,
    from second-hand descriptions: no authors' code was found.

    An mc on the planner's own rows is ignored. So add a planner of another name to `credit.without`, to avoid needless
    replays, and calls that `worker_calls/*` counts as a worker's. A worker in `credit.without` has no mc, which is an
    error.
    """

    name: ClassVar[str] = "sharp"
    w_broadcast: float = 0.9
    w_marginal: float = 0.9
    w_tool: float = 0.1
    planner: str = "planner"
    lam: float = 0.5

    def required(self) -> tuple[str, ...]:
        return ("tool",)

    def compute(self, table: RowTable) -> FloatArray:
        check_known("agent", self.planner, table.role.names)
        planner = table.role.codes == table.role.names.index(self.planner)
        credit = self.marginal(table, planner) if self.w_marginal else np.zeros(len(table))
        broadcast = table.component("broadcast" if np.any(table.present.get("broadcast", False)) else "team")
        return self.w_broadcast * broadcast + self.w_marginal * credit + self.w_tool * table.rewards.get("tool", 0.0)

    def marginal(self, table: RowTable, planner: np.ndarray) -> FloatArray:
        """The marginal credit of each row [n]."""
        credited = planner | table.present.get("mc", False)
        worker = table.agent.value(int(np.argmin(credited)))  # of the first row that is not, if any
        remedy = "use credit 'counterfactual' or 'shapley' and leave no worker out of it, or w_marginal=0"
        table.check(credited, f"of worker '{worker}' lacks reward 'mc': {remedy}")
        session = combine([table.uid.codes, table.session], len(table))
        calls, credit = worker_calls(table, np.flatnonzero(~planner))
        total = np.bincount(session[calls], weights=np.maximum(credit, 0.0), minlength=len(table))
        mean = total / np.maximum(np.bincount(session[calls], minlength=len(table)), 1)
        return np.where(planner, self.lam * mean[session], table.rewards.get("mc", 0.0))


SHARP = Algorithm(
    sampler="independent",
    rewards=SharpMix(),
    credit=(Counterfactual(component="mc", without=("planner",)),),
    advantage=Advantage(sample="session_mean", group=AGENT, singleton="zero"),
    loss="ppo-clip",
    metrics=(WorkerCalls(),),
)
"""A = (R_k - mean_k) / (std_k + 1e-6), mean and std over the episodes of the task in which agent k acted.

R_k is the mean of R over the agent's rows in an episode, and all of them get its advantage. Compared: the same agent
over the episodes of one task, by broadcast reward, marginal credit and tool use. A worker's
marginal credit is measured by replaying the episode without it. Source: SHARP, arXiv 2602.08335.
"""


def sharp(rows: PlainRows) -> list[float]:
    rewards: dict[Any, list[float]] = {}  # of an agent's rows in each session
    for row in rows:
        session = [o for o in rows if (o["uid"], o["session"]) == (row["uid"], row["session"])]
        workers = {o["agent"] for o in session} - {"planner"}
        credit = [np.mean([o["rewards"]["mc"] for o in session if o["agent"] == worker]) for worker in sorted(workers)]
        gains = [max(float(mc), 0.0) for mc in credit]
        mc = 0.5 * (float(np.mean(gains)) if gains else 0.0) if row["agent"] == "planner" else row["rewards"]["mc"]
        reward = 0.9 * row["rewards"]["broadcast"] + 0.9 * mc + 0.1 * row["rewards"].get("tool", 0.0)
        rewards.setdefault((row["uid"], row["session"], row["agent"]), []).append(reward)
    means = [float(np.mean(values)) for values in rewards.values()]
    advantages = in_groups(means, [{"uid": uid, "agent": agent} for uid, _, agent in rewards], ["uid", "agent"])
    of = dict(zip(rewards, advantages, strict=True))
    return [of[row["uid"], row["session"], row["agent"]] for row in rows]


REFERENCES = {"sharp": sharp}
