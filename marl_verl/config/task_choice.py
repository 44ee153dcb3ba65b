"""Which tasks and rows a step trains on: the filter of groups (`marl.sampler.filter`) and the curriculum
(`marl.data.curriculum`), and what they are incompatible with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.schema import Curriculum, Filter
from marl_verl.errors import check
from marl_verl.options import build

FILTER, CURRICULUM = "marl.sampler.filter", "marl.data.curriculum"


def filter_of(config: DictConfig) -> Filter | None:
    """The filter of a config, None without one."""
    section = _section(config, FILTER)
    settings = None if section is None else build(Filter, section, FILTER)
    return settings if settings is not None and settings.no_variance else None


def curriculum_of(config: DictConfig) -> Curriculum | None:
    """The curriculum of a config, None without one."""
    section = _section(config, CURRICULUM)
    return None if section is None else build(Curriculum, section, CURRICULUM)


@check
def check_task_choice(config: DictConfig, algorithm: Algorithm) -> Iterator[str]:
    """MarlError for an invalid filter or curriculum, or one that the algorithm or the schedule does not allow."""
    if filter_of(config) is not None and algorithm.advantage.wants_critic() is not None:
        problem = f"'{FILTER}' has no effect, because the advantages come from a critic: no group is compared"
        yield f"{problem}. Set {FILTER}=null, or choose an algorithm without a critic, e.g. grpo."
    if curriculum_of(config) is not None and config.marl.schedule.mode == "async":
        why = "the tasks of a batch would depend on which episodes finish first"
        yield f"'{CURRICULUM}' requires marl.schedule.mode=sync: with async {why}"


def _section(config: DictConfig, key: str) -> dict[str, Any] | None:
    section: Any = OmegaConf.select(config, key)
    return OmegaConf.to_container(section, resolve=True) if isinstance(section, DictConfig) else section  # type: ignore[return-value]
