"""The curriculum (`marl.data.curriculum`): tasks are drawn by pools of their measured success rate.

After a step, for each task i that was sampled, with s_i the share of its episodes that succeeded:

    rate_i <- s_i                                       the first time
    rate_i <- memory * rate_i + (1 - memory) * s_i      later

A task is in the pool `new` without a rate, `hard` if rate_i < hard, `easy` if rate_i > easy, else `medium`. A step
draws its tasks without replacement, each with a probability proportional to the weight of its pool among the remaining
ones: the largest log(u_i) / w_i, u_i uniform in (0, 1) (Efraimidis and Spirakis, 2006). Tasks of pools with weight 0
are drawn when no others remain. Draws depend on seed, step and rates only, so a checkpoint stores no generator.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from marl_verl.algo.advantage import FloatArray, IntArray
from marl_verl.config.schema import Curriculum as CurriculumSettings
from marl_verl.files import read_json

if TYPE_CHECKING:
    from marl_verl.backend.report import Report

POOLS = ("new", "hard", "medium", "easy")
FILE = "tasks.json"


class Curriculum:
    """Success rates of the tasks with these ids, and draws from them. A part of a checkpoint: `FILE`."""

    def __init__(self, settings: CurriculumSettings, ids: Sequence[str], seed: int) -> None:
        self.settings, self._ids, self._seed = settings, list(ids), seed
        self._number = {task: number for number, task in enumerate(self._ids)}
        self.rates: FloatArray = np.full(len(ids), np.nan)
        self.episodes = np.zeros(len(ids), dtype=np.int64)
        self._drawn = np.zeros(len(POOLS), dtype=np.int64)  # tasks drawn in the step from each pool

    def pools(self) -> IntArray:
        """[n] the pool of each task, as position in `POOLS`."""
        rates, limits = self.rates, self.settings
        pools: IntArray = np.select([np.isnan(rates), rates < limits.hard, rates > limits.easy], [0, 1, 3], 2)
        return pools

    def draw(self, step: int, count: int, taken: Collection[int] = ()) -> list[int]:
        """`count` different tasks by number, none of them in `taken`: those that the step has drawn before."""
        weights = asdict(self.settings.weights)
        weight = np.array([weights[pool] for pool in POOLS])[self.pools()]
        generator = np.random.default_rng(zlib.crc32(f"{self._seed} curriculum {step} {len(taken)}".encode()))
        chance = np.log1p(-generator.random(len(self._ids))) / np.where(weight > 0, weight, 1.0)
        order = np.lexsort((-chance, weight == 0))
        numbers = order[~np.isin(order, list(taken))][:count]
        drawn = np.bincount(self.pools()[numbers], minlength=len(POOLS))
        self._drawn = self._drawn + drawn if taken else drawn
        return [int(number) for number in numbers]

    def record(self, outcomes: Iterable[Report]) -> None:
        """Add the outcomes of a step. A task of which every episode failed to run is not measured."""
        for outcome in outcomes:
            if not outcome.successes:
                continue
            number = self._number[outcome.task]
            share, memory, before = float(np.mean(outcome.successes)), self.settings.memory, self.rates[number]
            self.rates[number] = share if np.isnan(before) else memory * before + (1 - memory) * share
            self.episodes[number] += len(outcome.successes)

    def metrics(self) -> dict[str, float]:
        """Number of tasks in each pool, and how many the step has drawn from each."""
        counts = {"tasks": np.bincount(self.pools(), minlength=len(POOLS)), "drawn": self._drawn}
        return {f"curriculum/{kind}/{pool}": float(n[i]) for kind, n in counts.items() for i, pool in enumerate(POOLS)}

    def save(self, folder: Path, step: int) -> None:
        """Write the statistics: task id -> number of episodes and success rate."""
        folder.mkdir(parents=True)
        measured = np.flatnonzero(self.episodes)
        tasks = {self._ids[i]: {"episodes": int(self.episodes[i]), "rate": float(self.rates[i])} for i in measured}
        (folder / FILE).write_text(json.dumps({"step": step, "tasks": tasks}, indent=1) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Continue from saved statistics."""
        saved: Mapping[str, Mapping[str, float]] = read_json(folder / FILE)["tasks"]
        for task, values in saved.items():
            number = self._number[task]
            self.rates[number], self.episodes[number] = values["rate"], values["episodes"]
