"""Look up the registered parts that a config or a file names."""

import dataclasses
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from marl_verl import plugins
from marl_verl.algo import advantage, credit, rewards
from marl_verl.algo.advantage import PerRole
from marl_verl.algo.algorithms import Algorithm, Loss, Metric, presets
from marl_verl.algo.sampling import Sampler
from marl_verl.algo.sampling.sampler import ColumnFunction
from marl_verl.errors import MarlError, shown, unknown, user_error
from marl_verl.extensions import extension, names
from marl_verl.options import Find, Part, build, paths
from marl_verl.plugins.one_file import modules_of
from marl_verl.team import AgentConfig, TeamConfig

# modules whose parts have short names in every config, and classes to derive parts from
CORE = tuple(module.__name__ for module in (rewards, credit, advantage, presets))
BASES = {Metric, credit.Credit, credit.ReplayCredit, credit.TableCredit, advantage.Returns, rewards.RewardMix}
BASES |= {advantage.Baseline, advantage.Scale, advantage.Estimator, advantage.GroupEstimator}


def algorithm_named(name: str, options: Mapping[str, Any] | None, where: str) -> Algorithm:
    """Return a registered algorithm with options; `where` is their config key.

    A part is named by its short name where it is one of marl-verl or of group `parts` (`extensions`), or the module
    that has the algorithm or one of its parts defines or imports it; and everywhere as "package.module:Class".
    MarlError for an invalid option.
    """
    algorithm: Algorithm = plugins.load().get("algorithms", name)
    entry = plugins.load().entry("algorithms", name)
    homes = [str(place).partition(":")[0] for place in (entry.target, entry.source.target)]
    return algorithm.with_options(options, where, finder(algorithm, *homes, *modules_of(entry.source.target)))


def finder(algorithm: Algorithm, *homes: str) -> Find:
    """Resolves names of parts for an algorithm; `homes`: modules that define or register it."""
    others = (extension("parts", name).__name__ for name in names("parts"))
    modules = dict.fromkeys((*homes, *(type(part).__module__ for part in algorithm.parts()), *CORE, *others))
    return lambda base, name, where: _find(base, name, where, [module for module in modules if module in sys.modules])


def with_flat(algorithm: Algorithm, options: Mapping[str, Any], where: str) -> Algorithm:
    """The algorithm with options, of which those of its parts may also stand alone, as in files of marl-verl 0.1:
    {"returns": "discounted", "gamma": 0.9}. MarlError as `algorithm_named`."""
    # names of parts come first: they decide which other options there are
    for option in sorted(options, key=lambda name: (not hasattr(algorithm, name), not isinstance(options[name], str))):
        path = [option] if hasattr(algorithm, option) else (paths(algorithm, option) or [option])[0].split(".")
        value = options[option]
        for key in reversed(path[1:]):
            value = {key: value}
        algorithm = algorithm.with_options({path[0]: value}, where, finder(algorithm))
    return algorithm


def _find(base: type[Part] | None, name: str, where: str, modules: Iterable[str]) -> Any:
    """The part (`base` None: function) of a short name in the modules, or at "package.module:Class"; or MarlError."""
    kind = "column function" if base is None else base.kind
    if ":" in name:
        part = imported(name, where)
        if not (callable(part) if base is None else issubclass(part if isinstance(part, type) else type(part), base)):
            raise MarlError(f"'{where}': '{name}' is no {kind}, but {part!r:.80}")
        return part
    values = [(module, value) for module in modules for value in vars(sys.modules[module]).values()]
    public = [(module, value) for module, value in values if not getattr(value, "__name__", "_").startswith("_")]
    if base is None:
        homes = [module for module in modules if not module.startswith("marl_verl.")]
        functions = [value for home, value in public if inspect.isfunction(value) and value.__module__ == home in homes]
        parts: dict[str, Any] = {function.__name__: function for function in functions}
    else:
        classes = [value for _, value in reversed(public) if isinstance(value, type) and issubclass(value, base)]
        parts = {part.name: part for part in classes if part not in BASES}
    if name not in parts:
        error = plugins.load().explained(unknown(kind, name, parts))
        raise MarlError(f"'{where}' (a name, or package.module:Class): {error}")
    return parts[name]


def imported(path: str, where: str) -> Any:
    """The object at "package.module:attribute". MarlError if it cannot be imported."""
    with user_error(f"'{where}': cannot import '{path}'", ImportError, AttributeError, ValueError):
        return pkgutil.resolve_name(path)


def algorithm_of(team: TeamConfig) -> Algorithm:
    """Return the team's algorithm with its options, and with the advantages of single agents (`PerRole`). MarlError as
    `algorithm_named`, also for its loss."""
    algorithm = algorithm_for(team)
    loss_named(algorithm.loss)
    advantage = algorithm.advantage
    for agent in team.agents.values():
        if agent.algorithm is not None and (agent.algorithm.name or "advantage" in agent.algorithm.options):
            advantage = PerRole(agent.name, algorithm_for(team, agent).advantage, advantage)
    return dataclasses.replace(algorithm, advantage=advantage)


def algorithm_for(team: TeamConfig, agent: AgentConfig | None = None) -> Algorithm:
    """The algorithm of a team, or that of whose advantage and loss an agent learns. MarlError as `algorithm_named`."""
    algorithm = algorithm_named(team.algorithm.name, team.algorithm.options, "marl.algorithm.options")
    if agent is None or agent.algorithm is None:
        return algorithm
    name, options, where = agent.algorithm.name, agent.algorithm.options, f"marl.agents.{agent.name}.algorithm.options"
    return algorithm_named(name, options, where) if name else algorithm.with_options(options, where, finder(algorithm))


def loss_of(team: TeamConfig, policy: str) -> tuple[str, Loss]:
    """(name, loss) of a policy: its own, else that of its agents. MarlError as `loss_named`."""
    agents = [agent for agent in team.agents.values() if agent.policy == policy]
    losses = [algorithm_for(team, agent).loss for agent in agents] or [algorithm_for(team).loss]
    name = team.policies[policy].loss or losses[0]
    return name, loss_named(name)


def loss_named(name: str) -> Loss:
    """Return a registered loss. MarlError for an unknown name, and a target that is no loss function."""
    known = plugins.load()
    target, entry = known.get("losses", name), known.entry("losses", name)
    if isinstance(target, Loss) and not entry.settings:
        return target
    return Loss.of(target, name, entry.settings)


def columns_of(algorithm: Algorithm) -> dict[str, ColumnFunction]:
    """The column functions of an algorithm and its credits by name."""
    functions = (*algorithm.columns, *(function for credit in algorithm.credit for function in credit.columns))
    for function in functions:
        if "<" in getattr(function, "__qualname__", "<"):
            raise MarlError(f"column function {shown(function, 99)} must not be a lambda or local: move it to a module")
    return {f"'{function.__module__}:{function.__qualname__}'": function for function in functions}


def samplers_of(algorithm: Algorithm, marl: Mapping[str, Any]) -> dict[str, tuple[str, Sampler]]:
    """Section of the config ("sampler", "validation") -> the name of its sampler, and the sampler with its options."""
    samplers = {}
    validation = marl["validation"]["sampler"]
    for section, name in {"sampler": algorithm.sampler, "validation": str(validation or "independent")}.items():
        kind, options = plugins.load().get("samplers", name), marl[section].get("options")
        if section == "validation" and validation is None:
            options = {"episodes": 1, **(options or {})}
        with user_error(f"sampler '{name}'"):
            samplers[section] = name, build(kind, options, f"marl.{section}.options")
    return samplers
