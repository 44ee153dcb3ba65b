"""The hooks that a plugin can implement, and `Registry`, which registers parts by name.

A plugin is a module, a class (instantiated without arguments) or an instance whose functions carry `@hookimpl`. A
distribution offers it under the entry-point group `marl_verl`::

    [project.entry-points.marl_verl]
    my-plugin = "my_package.plugin"

docs/plugins.md has an example of each hook and of each method of the registry.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from marl_verl.errors import MarlError

if TYPE_CHECKING:
    from random import Random

    from marl_verl.algo.algorithms import Algorithm, Loss
    from marl_verl.algo.algorithms.losses import LossFunction
    from marl_verl.algo.sampling import Sampler
    from marl_verl.episode import Episode, Turn, Workflow
    from marl_verl.episode.messages import Message
    from marl_verl.tasks import Task, TaskSet

KINDS: Mapping[str, str] = {
    "tasks": "task",
    "workflows": "workflow",
    "rewards": "reward",
    "samplers": "sampler",
    "losses": "loss",
    "scripts": "script",
    "algorithms": "algorithm",
    "commands": "command",
}
"""Kind of part -> its singular noun for error messages."""
CLASSES = ("tasks", "workflows", "samplers")  # kinds whose targets are classes
TARGETS: Mapping[str, str] = {
    "tasks": "marl_verl.tasks:TaskSet",
    "workflows": "marl_verl.episode:Workflow",
    "samplers": "marl_verl.algo.sampling:Sampler",
    "algorithms": "marl_verl.algo.algorithms:Algorithm",
    **dict.fromkeys(("rewards", "scripts"), "collections.abc:Callable"),
}
"""Kind of part -> the base of its targets, or their class."""

PROJECT = "marl_verl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Source:
    """The origin of a plugin."""

    plugin: str  # name of the entry point
    distribution: str
    version: str
    target: str  # "package.module" or "package.module:attribute"
    content: str = ""  # sha256 of its source; "" where `content_of` computes it on demand

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} (plugin '{self.plugin}')"


@dataclass(frozen=True)
class Entry:
    """A registered part. `target` is the object, or a "package.module:attribute" that is imported on first use."""

    kind: str
    name: str
    target: object
    source: Source
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a loss function

    @property
    def shown(self) -> str:
        """The target as "package.module:attribute" where it has such a name, else its repr."""
        if isinstance(self.target, str):
            return self.target
        module, name = getattr(self.target, "__module__", None), getattr(self.target, "__qualname__", None)
        return f"{module}:{name}" if module and name else repr(self.target)


@dataclass
class Registry:
    """The parts that one plugin registers: the argument of `marl_register`.

    Every method takes a name and a target: the object itself, or "package.module:attribute", which is imported on first
    use. MarlError if the plugin has registered the name already.
    """

    source: Source
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def task(self, name: str, target: "type[TaskSet] | str") -> None:
        """Register a task set: it generates tasks and scores answers."""
        self._add("tasks", name, target)

    def workflow(self, name: str, target: "type[Workflow] | str") -> None:
        """Register a workflow: its async `run(task, team)` returns the team's answer."""
        self._add("workflows", name, target)

    def reward(self, name: str, target: "Callable[[Task, Turn, Episode], float | Awaitable[float]] | str") -> None:
        """Register a role reward: (task, turn, episode) -> component `role` of an agent's turns; it may be async."""
        self._add("rewards", name, target)

    def sampler(self, name: str, target: "type[Sampler] | str") -> None:
        """Register a sampler: its async `sample(context)` makes the episodes of one task."""
        self._add("samplers", name, target)

    def loss(
        self,
        name: str,
        target: "Loss | LossFunction | str",
        *,
        actor: Mapping[str, Any] | None = None,
        correction: Mapping[str, Any] | None = None,
        one_update: bool = False,
    ) -> None:
        """Register a loss: one of verl's policy losses with its settings, or a function with these settings."""
        settings = {"actor": actor, "correction": correction, "one_update": one_update}
        self._add("losses", name, target, {key: value for key, value in settings.items() if value})

    def script(self, name: str, target: "Callable[[list[Message], Random], str | Awaitable[str]] | str") -> None:
        """Register a script: (messages, random) -> the text of an action. A policy with this `script` acts by it."""
        self._add("scripts", name, target)

    def algorithm(self, name: str, target: "Algorithm | str") -> None:
        """Register an algorithm: sampler, reward mix, credit, advantage and loss."""
        self._add("algorithms", name, target)

    def command(self, name: str, target: object, help: str) -> None:
        """Register `marl-verl NAME`: a module ("package.module"), or an object, with `add_arguments(parser)` and
        `run(options)`, which returns the exit code. `help` is its line in `marl-verl --help`.

        The module is imported when the command is called; its `EXAMPLES`, if any, end the command's `--help`.
        """
        self._add("commands", name, target, {"help": help})

    def _add(self, kind: str, name: str, target: object, settings: Mapping[str, Any] | None = None) -> None:
        if (kind, name) in self.entries:
            raise MarlError(f"{KINDS[kind]} '{name}' is registered twice by the same plugin: rename one")
        self.entries[kind, name] = Entry(kind, name, target, self.source, settings or {})


@hookspec
def marl_register(registry: Registry) -> None:
    """Register parts: `registry.workflow("debate", Debate)`, ... Called first, once in every process of a run."""


@hookspec
def marl_episode_finished(episode: "Episode") -> None:
    """Observe episodes: called in the rollout worker's process when an episode has been sampled and scored."""


@hookspec
def marl_step_finished(step: int, metrics: Mapping[str, Any]) -> None:
    """Observe training: called in the driver's process after each step, with the step's metrics."""
