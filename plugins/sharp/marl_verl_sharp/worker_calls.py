"""Metric `worker-calls`: shares of the workers' calls that were useful, idle and harmful.

    useful = share of calls with Delta > 0        idle = with Delta = 0        harmful = with Delta < 0

A call is all acts of one worker in one session: Delta is the mean of `mc` over its turns (with credit unit "agent" they
have the same). A worker that did not act made no call. The paper reports 13% useful and 4% harmful calls.
Source: SHARP, arXiv 2602.08335, second hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, FloatArray, IntArray, RowTable, combine
from marl_verl.algo.algorithms import Metric


def worker_calls(table: RowTable, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """([c] first row of each call, [c] its credit) of the calls that contain these rows."""
    if not len(rows):
        return rows, np.zeros(0)
    call = combine([table.uid.codes[rows], table.session[rows], table.agent.codes[rows]], len(rows))
    _, first = np.unique(call, return_index=True)
    credit = np.bincount(call, weights=table.rewards["mc"][rows]) / np.bincount(call)
    return rows[first], credit


@dataclass(frozen=True)
class WorkerCalls(Metric):
    """`worker_calls/useful`, `idle`, `harmful`, and `worker_calls/credit`, the mean of Delta; nothing without mc."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        if "mc" not in table.present:
            return {}
        _, credit = worker_calls(table, np.flatnonzero((result.group >= 0) & table.present["mc"]))
        if not len(credit):
            return {}
        return {
            "worker_calls/useful": float((credit > 0).mean()),
            "worker_calls/idle": float((credit == 0).mean()),
            "worker_calls/harmful": float((credit < 0).mean()),
            "worker_calls/credit": float(credit.mean()),
        }
