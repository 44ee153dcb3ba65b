"""Credit `novelty`: how far an episode's answer is from those of the other episodes of its task.

    novelty_i = mean over the answers j of the task's other episodes of d(i, j),   d: share of bits that differ

d compares SimHashes (Charikar 2002) of the words and word pairs of two answers (`diversity.shingles`): bit b of one is
the majority of bit b over their hashes. In the mean d is theta / pi, where theta is the angle between the two sets: 0
for the same words, about 0.5 for answers without a common word. The definition is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import numpy as np

from marl_verl import Episode, Turn
from marl_verl.algo.advantage import FloatArray, RowTable, combine
from marl_verl.algo.credit import TableCredit
from marl_verl_mars2.diversity import shingles

SKETCH, BITS = "answer_sketch", 48  # a float64 has up to 53 bits exactly


def answer_sketch(turn: Turn, episode: Episode) -> Mapping[str, float]:
    """Column `answer_sketch`: the SimHash of the episode's answer as a number; none without an answer."""
    if episode.answer is None:
        return {}
    parts = [" ".join(words).encode() for words in shingles(str(episode.answer))]
    hashes = np.array([int.from_bytes(blake2b(part, digest_size=BITS // 8).digest()) for part in parts], int)
    ones = ((hashes[:, None] >> np.arange(BITS)) & 1).sum(axis=0)
    return {SKETCH: float(sum(1 << bit for bit in range(BITS) if 2 * ones[bit] > len(parts)))}


@dataclass(frozen=True)
class Novelty(TableCredit):
    """Share of bits (0 to 1) in which the sketches of an answer and of the task's others differ, in the mean.

    0 for an answer without others, and for an episode without an answer.
    """

    component: ClassVar[str] = "novelty"
    repeated: ClassVar[bool] = True
    no_tree: ClassVar[str | None] = "it compares whole episodes, and turns of a tree are of several"
    columns = (answer_sketch,)

    def compute(self, table: RowTable) -> FloatArray:
        episode = combine([table.uid.codes, table.session], len(table))
        first = np.unique(episode, return_index=True)[1]
        task = combine([table.uid.codes[first]], len(first))
        sketch = table.numbers.get(SKETCH, np.full(len(table), np.nan))[first]
        answered = ~np.isnan(sketch)
        bits = (np.nan_to_num(sketch).astype(np.int64)[:, None] >> np.arange(BITS)) & 1
        ones = np.zeros((len(first), BITS))  # of each task
        np.add.at(ones, task, bits)
        answers = np.bincount(task, weights=answered)[task]
        differ = np.where(bits, answers[:, None] - ones[task], ones[task]).mean(axis=1)
        return np.where(answered, differ / np.maximum(answers - 1, 1), 0.0)[episode]
