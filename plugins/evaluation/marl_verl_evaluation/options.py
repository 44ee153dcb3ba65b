"""The options of an evaluation: the arguments of `marl_verl.evaluate`, and of the command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marl_verl.errors import MarlError, check

Swap = tuple[str, str]
EPISODES = 8
AT_ONCE = 256
"""Maximum episodes in flight: an act that waits for a server longer than `marl.rollout.act_seconds` fails."""
KS = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Options:
    """The arguments of `marl_verl.evaluate`, which describes them."""

    step: int | None = None
    tasks: int | None = None
    episodes: int | None = None
    k: Sequence[int] | None = None
    swap: Sequence[Swap] = ()
    untrained: Sequence[str] = ()
    seed: int | None = None
    greedy_only: bool = False
    at_once: int = AT_ONCE
    cross_play: bool | str = False
    steps: Sequence[int] | None = None
    edit: tuple[str, str, str] | None = None

    @property
    def sampled(self) -> int:
        """The number of sampled episodes of each task."""
        usual = 1 if self.edit else EPISODES
        return 0 if self.greedy_only else usual if self.episodes is None else self.episodes

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of k, ascending. MarlError: not from 1 to the number of episodes."""
        if self.edit or not self.sampled:
            return ()
        ks = sorted(set(self.k or (*(k for k in KS if k < self.sampled), self.sampled)))
        if ks[0] < 1 or ks[-1] > self.sampled:
            raise MarlError(f"--k must be whole numbers from 1 to --episodes ({self.sampled}), got {self.k}")
        return tuple(ks)


@check
def check_options(options: Options) -> Iterator[str]:
    """Refuse options without an effect, which the result would name nevertheless."""
    for name in ("step", "swap", "untrained", "k", "greedy_only", "edit") if options.cross_play else ("steps",):
        if getattr(options, name) != getattr(Options, name):
            without = "with" if options.cross_play else "without"
            yield f"--{name.replace('_', '-')} has no effect {without} --cross-play or --partner: leave it out"
    if options.tasks is not None and options.tasks < 1:
        yield f"--tasks must be 1 or more, got {options.tasks}"
