"""What a team's config names, loaded: used by the command line, the trainer and the rollout workers alike."""

from __future__ import annotations

from marl_verl import plugins
from marl_verl.advantage import Algorithm
from marl_verl.errors import MarlError
from marl_verl.team import Team


def algorithm_of(team: Team) -> Algorithm:
    """The team's algorithm with the options of `marl.algorithm.options`, whose every name is registered.

    Raises:
        MarlError: unknown algorithm, option, credit scheme or loss (nearest offered), wrong type of option, or
            something else than an `Algorithm` registered under the name.
    """
    known = plugins.load()
    found = known.get("algorithms", team.algorithm.name)
    if not isinstance(found, Algorithm):
        raise MarlError(f"algorithm '{team.algorithm.name}' must be an Algorithm, it is {found!r:.80}")
    algorithm = found.with_options(team.algorithm.options, where="marl.algorithm.options")
    known.get("credits", algorithm.credit)
    known.get("losses", algorithm.loss)
    return algorithm
