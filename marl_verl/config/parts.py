"""Look up the registered algorithm and metrics that a config or a file names."""

from collections.abc import Mapping
from typing import Any

from marl_verl import plugins
from marl_verl.algorithms import Algorithm, Metric
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig


def algorithm_named(name: str, options: Mapping[str, Any] | None, where: str) -> Algorithm:
    """Return a registered algorithm with options; `where` is their config key. MarlError for an invalid option."""
    known = plugins.load()
    found = known.get("algorithms", name)
    if not isinstance(found, Algorithm):
        raise MarlError(f"algorithm '{name}' must be an Algorithm, got {found!r:.80}")
    return found.with_options(options, where=where, find=known.get)


def algorithm_of(team: TeamConfig) -> Algorithm:
    """Return the team's algorithm with its options. MarlError as `algorithm_named`, also for its loss or a metric."""
    algorithm = algorithm_named(team.algorithm.name, team.algorithm.options, "marl.algorithm.options")
    plugins.load().get("losses", algorithm.loss)
    metrics_of(algorithm)
    return algorithm


def metrics_of(algorithm: Algorithm) -> tuple[Metric, ...]:
    """Return the metrics of an algorithm. MarlError for an unknown name, or a target that is not a `Metric`."""
    known = plugins.load()
    found = []
    for name in algorithm.metrics:
        target = known.get("metrics", name)
        metric = target() if isinstance(target, type) else target
        if not isinstance(metric, Metric):
            source = known.entry("metrics", name).source
            raise MarlError(f"metric '{name}' of {source} must be a Metric, got {target!r:.80}")
        found.append(metric)
    return tuple(found)
