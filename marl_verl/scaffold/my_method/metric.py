"""A metric: a number of the method's own in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_verl.advantage import Metric
from marl_verl.sampling import Sample


@dataclass(frozen=True)
class Sessions(Metric):
    """How many sessions a task got: what the sampler saves."""

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """The number of one task; a step reports the mean over its tasks."""
        return {"my-method/sessions": float(len(sample.episodes))}
