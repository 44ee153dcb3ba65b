"""Look up the registered parts that a config or a file names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marl_verl import plugins
from marl_verl.algo.algorithms import Algorithm, Loss, Metric
from marl_verl.algo.sampling import Sampler
from marl_verl.algo.sampling.turn_columns import ColumnFunction
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.plugins import KINDS
from marl_verl.team import Named, TeamConfig


def part(kind: str, name: str, base: type | None) -> Any:
    """Return a registered part. MarlError unless it is a subclass of `base`, or callable where `base` is None."""
    known = plugins.load()
    found = known.get(kind, name)
    right = callable(found) if base is None else isinstance(found, type) and issubclass(found, base)
    if not right:
        wanted = "a function" if base is None else f"a subclass of {base.__name__}"
        source = known.entry(kind, name).source
        raise MarlError(f"{KINDS[kind]} '{name}' of {source} must be {wanted}, got {found!r:.80}")
    return found


def algorithm_named(name: str, options: Mapping[str, Any] | None, where: str) -> Algorithm:
    """Return a registered algorithm with options; `where` is their config key. MarlError for an invalid option."""
    known = plugins.load()
    found = known.get("algorithms", name)
    if not isinstance(found, Algorithm):
        raise MarlError(f"algorithm '{name}' must be an Algorithm, got {found!r:.80}")
    return found.with_options(options, where=where, find=known.get)


def algorithm_of(team: TeamConfig) -> Algorithm:
    """Return the team's algorithm with its options. MarlError as `algorithm_named`, also for named parts."""
    algorithm = algorithm_named(team.algorithm.name, team.algorithm.options, "marl.algorithm.options")
    loss_named(algorithm.loss)
    metrics_of(algorithm)
    columns_of(algorithm)
    return algorithm


def loss_named(name: str) -> Loss:
    """Return a registered loss. MarlError for an unknown name, and a target that is no `Loss` and no loss function."""
    known = plugins.load()
    found, entry = known.get("losses", name), known.entry("losses", name)
    if isinstance(found, Loss):
        if entry.settings:
            keys = ", ".join(entry.settings)
            raise MarlError(f"loss '{name}' of {entry.source} is a Loss registered with {keys}: set them in the Loss")
        return found
    if not callable(found):
        raise MarlError(f"loss '{name}' must be a Loss, got {found!r:.80}")
    return Loss.of(found, name, entry.settings)


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


def columns_of(algorithm: Algorithm) -> dict[str, ColumnFunction]:
    """Return the column functions of an algorithm by name and source. MarlError for an unknown name, or no function."""
    known = plugins.load()
    return {
        f"'{name}' of {known.entry('columns', name).source}": part("columns", name, None) for name in algorithm.columns
    }


def sampler_names(algorithm: Algorithm, marl: Mapping[str, Any]) -> dict[str, str]:
    """Section of the config ("sampler", "validation") -> the name of its sampler."""
    return {"sampler": algorithm.sampler, "validation": str(marl["validation"]["sampler"] or "independent")}


def samplers_of(algorithm: Algorithm, marl: Mapping[str, Any]) -> dict[str, Sampler]:
    """Section of the config ("sampler", "validation") -> the sampler with its options."""
    found: dict[str, Sampler] = {}
    for section, name in sampler_names(algorithm, marl).items():
        kind, options, where = part("samplers", name, Sampler), marl[section].get("options"), f"marl.{section}.options"
        if section == "validation" and marl[section]["sampler"] is None:
            options = {"episodes": 1, **(options or {})}
        try:
            found[section] = build(kind, options, where)
        except MarlError as error:
            raise MarlError(f"{error} (of sampler '{name}')") from error
    return found


def named_samplers(algorithm: Algorithm, marl: Mapping[str, Any]) -> dict[str, Named]:
    """Section of the config -> the name of its sampler and all options, defaults included."""
    names, found = sampler_names(algorithm, marl), samplers_of(algorithm, marl)
    return {section: Named(names[section], dataclasses.asdict(sampler)) for section, sampler in found.items()}
