"""Models that distributions make before a run: entry points of the groups `marl_verl.model` and `marl_verl.pretrained`.

A `model` is named by a key of a policy's section, `marl.policies.NAME.KEY: {options}`. A `pretrained` one is named by
`model: {path: NAME}`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from marl_verl.extensions import extension, names
from marl_verl.team import Named

Progress = Callable[[float], None]  # called with the fraction done


class ModelToMake(Protocol):
    """A model that a policy's section describes; it is made before the run, and then found in a cache."""

    @property
    def label(self) -> str:
        """What it is, in words."""

    def folder(self) -> Path:
        """Where it is in the cache; it need not exist."""

    def tokenizer(self) -> Any:
        """Its tokenizer, with a chat template that takes all messages."""

    def config(self) -> Mapping[str, Any]:
        """Its sizes, as in a config.json."""


class Source(Protocol):
    """The object of an entry point of group `marl_verl.model`."""

    def describe(
        self, options: Mapping[str, Any], where: str, task: Named, agents: Sequence[str], seed: int
    ) -> ModelToMake:
        """The model of section `where` for agents on a task set. MarlError for an invalid option."""

    def make(self, models: Sequence[ModelToMake], progress: Progress) -> list[Path]:
        """Make models that are not in the cache; their folders."""


class Pretrained(Protocol):
    """The object of an entry point of group `marl_verl.pretrained`."""

    def folder(self) -> Path:
        """Where the model is in the cache; it need not exist."""

    def check(self) -> object:
        """MarlError if `fetch` cannot work."""

    def fetch(self) -> Path:
        """Put the model into the cache, if it is not there; its folder."""


def pretrained(path: Any) -> Pretrained | None:
    """The model that a distribution has under this name, unless a file has the name."""
    return extension("pretrained", path) if path in names("pretrained") and not Path(path).exists() else None


def located(path: Any) -> Any:
    """The folder in the cache for the name of a pretrained model; any other path unchanged."""
    return path if (model := pretrained(path)) is None else str(model.folder())
