"""Exploitability of the player in Kuhn Poker before and after a run, exact: nothing is sampled."""

import functools
from pathlib import Path

from marl_verl_self_play.kuhn import exploitability
from marl_verl_self_play.kuhn_poker import strategy_of

from marl_verl.run.reading import Run

POLICY = "player"


def before(run: Run) -> float:
    """Of the model that training began with, in chips per game."""
    return _measured(Path(run.config.policies[POLICY].actor_rollout_ref.model.path))[0]


def after(run: Run) -> float:
    """Of the last checkpoint."""
    return _measured(trained(run))[0]


def ratio(run: Run) -> float:
    return after(run) / before(run)


def legal(run: Run) -> float:
    """Mean probability of a legal move over the information sets, of the last checkpoint."""
    return _measured(trained(run))[1]


def trained(run: Run) -> Path:
    """The model of the last checkpoint."""
    return list(run.checkpoints.values())[-1] / "policies" / POLICY / "huggingface"


@functools.lru_cache(maxsize=2)
def _measured(folder: Path) -> tuple[float, float]:
    """(exploitability, mean probability of a legal move) of a model."""
    strategy, illegal = strategy_of(str(folder))
    return exploitability(strategy), 1 - illegal
