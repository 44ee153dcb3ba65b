"""Which tasks and rows a step trains on: the filter of groups (`marl.sampler.filter`) and the curriculum
(`marl.data.curriculum`); and checks for incompatible settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Interval
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.algorithms import Algorithm
from marl_verl.errors import MarlError
from marl_verl.options import build

FILTER, CURRICULUM = "marl.sampler.filter", "marl.data.curriculum"
Weight = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class FilterSettings:
    """Rows of groups without a learning signal are not trained on, and further tasks are sampled instead."""

    no_variance: bool = True  # false: no filter
    refill: Annotated[int, Interval(ge=0, le=16)] = 2  # rounds of further tasks in a step, at most
    above: float | None = None  # groups with a mean reward above it are trained on; null: all
    below: float | None = None  # groups with a mean reward below it are trained on; null: all

    def __post_init__(self) -> None:
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise MarlError(f"'above' must be less than below={self.below:g}, got {self.above:g}")


@dataclass(frozen=True)
class PoolWeights:
    """Relative probability that a task of a pool is drawn."""

    new: Weight = 1.0  # not sampled yet
    hard: Weight = 0.5  # success rate below `hard`
    medium: Weight = 1.0  # success rate from `hard` to `easy`
    easy: Weight = 0.2  # success rate above `easy`

    def __post_init__(self) -> None:
        if not any((self.new, self.hard, self.medium, self.easy)):
            raise MarlError("all weights are 0. Set one above 0, e.g. medium=1.")


@dataclass(frozen=True)
class CurriculumSettings:
    """Pools of tasks by measured success rate, and the probability with which each is drawn."""

    hard: Annotated[float, Interval(ge=0, le=1)] = 0.2  # a task with a lower success rate is hard
    easy: Annotated[float, Interval(ge=0, le=1)] = 0.8  # a task with a higher success rate is easy
    memory: Annotated[float, Interval(ge=0, lt=1)] = 0.5  # weight of the former rate when a task is sampled again
    weights: PoolWeights = field(default_factory=PoolWeights)  # how often tasks of each pool are drawn

    def __post_init__(self) -> None:
        if self.hard > self.easy:
            raise MarlError(f"'hard' must be at most easy={self.easy:g}, got {self.hard:g}")


def filter_of(config: DictConfig) -> FilterSettings | None:
    """The filter of a config, None without one. MarlError: an unknown key, a wrong type, an invalid value."""
    section = _section(config, FILTER)
    settings = None if section is None else build(FilterSettings, section, FILTER)
    return settings if settings is not None and settings.no_variance else None


def curriculum_of(config: DictConfig) -> CurriculumSettings | None:
    """The curriculum of a config, None without one. MarlError as `filter_of`."""
    section = _section(config, CURRICULUM)
    return None if section is None else build(CurriculumSettings, section, CURRICULUM)


def check_task_choice(config: DictConfig, algorithm: Algorithm) -> None:
    """MarlError for an invalid filter or curriculum, or one that the algorithm or the schedule does not allow."""
    if filter_of(config) is not None and algorithm.advantage.wants_critic() is not None:
        what = f"'{FILTER}' has no effect, because the advantages come from a critic: no group is compared"
        raise MarlError(f"{what}. Set {FILTER}=null, or choose an algorithm without a critic, e.g. grpo.")
    if curriculum_of(config) is not None and config.marl.schedule.mode == "async":
        why = "the tasks of a batch would depend on which episodes finish first"
        raise MarlError(f"'{CURRICULUM}' requires marl.schedule.mode=sync: with async {why}")


def _section(config: DictConfig, key: str) -> dict[str, Any] | None:
    section: Any = OmegaConf.select(config, key)
    return OmegaConf.to_container(section, resolve=True) if isinstance(section, DictConfig) else section  # type: ignore[return-value]
