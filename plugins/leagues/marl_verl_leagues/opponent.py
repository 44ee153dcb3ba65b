"""Opponents (`marl.agents.NAME.opponent`): agents that act with snapshots of a policy, of which each task meets one.

The pool after step s has the newest `size` of the snapshots of steps 0, every, 2 every, ... <= s. A task meets
snapshot k of n with probability

    latest        1 for the newest one
    uniform       1 / n
    prioritised   (1 - x_k)^2 / sum_j (1 - x_j)^2, also uniform if all x are 1

where x_k is the policy's win rate against k, 1/2 before the first game (docs/teams.md). Source of `prioritised`:
AlphaStar, Vinyals et al. 2019 (f_hard with p = 2; win rates and decay as in its pseudocode).

Draws depend on the run's seed, the task's uid and the counts only, so a checkpoint stores no generator.

Snapshots are in RUN/opponents/POLICY/step_N, complete or absent: `model/` in Hugging Face's format, or `saved/`, what
verl saves of an adapter. Step 0 is the policy before training: the run's model, of which there is no copy. A checkpoint
has, for each policy with opponents, opponents/POLICY.json: the snapshots of its pool and the results against them.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from marl_verl_inspect.export import Source, export
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.advantage import FloatArray
from marl_verl.backend.protocol import Report
from marl_verl.errors import MarlError, check_known, user_error
from marl_verl.events import timed
from marl_verl.files import read_json, write_json
from marl_verl.options import Positive, build
from marl_verl.run.checkpoint import folders
from marl_verl.team import PolicyConfig, TeamConfig

DECAY = 0.99
FOLDER, MODEL, SAVED = "opponents", "model", "saved"
NOT_WEIGHTS = ("optim_*", "extra_state_*")
"""Files of a policy in a checkpoint that no server loads."""


@dataclass(frozen=True)
class Opponent:
    """Past versions of a policy, with which an agent acts: snapshots, of which each task meets one."""

    kind: ClassVar = "opponent"

    of: str  # the policy, which must be trained
    pool: Literal["latest", "uniform", "prioritised"] = "latest"  # how the snapshot of a task is chosen
    size: Positive = 8  # number of snapshots, the newest ones
    every: Positive = 20  # steps between two snapshots; the first one is the policy before training

    def described(self) -> str:
        which = {"latest": "the latest", "uniform": "one", "prioritised": "one, prioritised by win rates,"}[self.pool]
        return f"{which} of at most {self.size} snapshots of policy {self.of}, one every {self.every} steps"


def past_name(policy: str) -> str:
    """The name of the frozen policy that acts with past versions of a policy."""
    return f"{policy}-past"


def policy_of(section: Any, where: str, policies: Mapping[str, PolicyConfig]) -> PolicyConfig:
    """The frozen policy of an agent, with model, chat template and server settings of the policy whose past versions it
    acts with. MarlError unless that one is trained."""
    opponent = build(Opponent, section, where)
    check_known(f"policy in '{where}.of'", opponent.of, policies)
    of = policies[opponent.of]
    if not of.trained:
        raise MarlError(f"'{where}.of' is policy '{of.name}', which is not trained and has no past versions")
    override = {key: value for key, value in of.override.items() if key in ("model", "rollout")}
    if isinstance(model := override.get("model"), Mapping):
        override["model"] = {key: value for key, value in model.items() if not str(key).startswith("lora")}
    past: dict[str, Any] = {"name": past_name(of.name), "frozen": True, "past": opponent}
    past |= dict.fromkeys(("loss", "teacher", "base"))
    return replace(of, **past, override=override)


@dataclass
class Results:
    """The policy's games against a snapshot; earlier games count less."""

    games: float = 0.0
    wins: float = 0.0
    draws: float = 0.0

    def add(self, result: float) -> None:
        """Add a game: 1 if the policy has won, 0.5 for a draw, 0 if it has lost."""
        self.games, self.wins, self.draws = DECAY * self.games + 1, DECAY * self.wins, DECAY * self.draws
        self.wins += result == 1
        self.draws += result == 0.5

    @property
    def win_rate(self) -> float:
        return (self.wins + self.draws / 2) / self.games if self.games else 0.5


class Pool:
    """The snapshots of one policy, by step, oldest first."""

    def __init__(self, settings: Opponent, seed: int) -> None:
        self.settings, self.seed, self.results = settings, seed, {0: Results()}

    def add(self, step: int) -> None:
        """Add a snapshot; the oldest one is removed where there are more than `size`."""
        self.results[step] = Results()
        while len(self.results) > self.settings.size:
            del self.results[min(self.results)]

    def probabilities(self) -> FloatArray:
        """[n] the probability of each snapshot, oldest first."""
        weights = np.ones(len(self.results))
        if self.settings.pool == "latest":
            weights[:-1] = 0
        elif self.settings.pool == "prioritised":
            weights = np.array([(1 - item.win_rate) ** 2 for item in self.results.values()])
        total = weights.sum()
        return weights / total if total > 1e-10 else np.full(len(weights), 1 / len(weights))

    def choose(self, uid: str) -> int:
        identity = json.dumps([self.seed, self.settings.of, uid]).encode()
        draw = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") / 2**64
        chances = self.probabilities()
        place = int(np.searchsorted(np.cumsum(chances), draw, side="right"))
        return list(self.results)[min(place, int(np.flatnonzero(chances)[-1]))]  # sums of rounded numbers


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of a policy in a run directory; `settings` is its `actor_rollout_ref.model`."""

    run: Path
    policy: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, run: Path, config: DictConfig, policy: str) -> "Snapshots":
        settings: Any = OmegaConf.to_container(config.policies[policy].actor_rollout_ref.model)
        return cls(run, policy, settings)

    @property
    def root(self) -> Path:
        return self.run / FOLDER / self.policy

    def write(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the snapshot of a step; `save` writes the policy's part of a checkpoint."""
        self.root.mkdir(parents=True, exist_ok=True)
        folders.tidy(self.root)
        writing = self.root / f"{folders.WRITING}step_{step}"
        save(writing / SAVED)
        source = Source(self.policy, step, writing / SAVED, self.settings)
        if source.lora is None:
            export(source, writing / MODEL)
            shutil.rmtree(writing / SAVED)
        for pattern in NOT_WEIGHTS:
            for path in (writing / SAVED).glob(pattern):
                path.unlink()
        folders.flush(writing)
        folders.commit(writing, self.folder(step))

    def folder(self, step: int) -> Path:
        return self.root / f"step_{step}"

    def source(self, step: int) -> Source:
        return Source(self.policy, step, self.folder(step) / SAVED, self.settings)

    def model(self, step: int) -> str | None:
        """The folder or hub name of the model of a snapshot; None for an adapter, which has to be merged first."""
        ready = self.folder(step) / MODEL
        return str(self.settings["path"]) if step == 0 else str(ready) if ready.is_dir() else None

    @contextmanager
    def loadable(self, step: int) -> Iterator[str]:
        """A model that servers can load within the context."""
        if (ready := self.model(step)) is not None:
            yield ready
            return
        merged = self.root / f"{folders.WRITING}merged"
        shutil.rmtree(merged, ignore_errors=True)  # of a killed process
        export(self.source(step), merged, merge=True)
        try:
            yield str(merged)
        finally:
            shutil.rmtree(merged)

    def check(self, steps: Collection[int]) -> None:
        for step in steps:
            if step and not self.folder(step).is_dir():
                raise MarlError(f"snapshot '{self.folder(step)}' is missing: opponents of '{self.policy}' act with it")

    def discard(self, pool: Collection[int]) -> None:
        """Remove the snapshots that neither the pool nor a complete checkpoint names."""
        needed = {*pool}
        for checkpoint in folders.complete(self.run / "checkpoints"):
            needed |= {*map(int, read(checkpoint, self.policy))}
        for path in self.root.glob("step_*"):
            if int(path.name.removeprefix("step_")) not in needed:
                folders.discard(path)


def check(run: Path, checkpoint: Path, policies: Iterable[str]) -> None:
    for policy in policies:
        Snapshots(run, policy, {}).check([int(step) for step in read(checkpoint, policy)])


def read(checkpoint: Path, policy: str) -> dict[str, Any]:
    """Step -> results of the snapshots that a checkpoint names, oldest first; step is a text."""
    path = checkpoint / FOLDER / f"{policy}.json"
    with user_error(f"checkpoint '{checkpoint}' is damaged: '{path}' cannot be read", KeyError, TypeError, ValueError):
        return dict(read_json(path)["snapshots"])


class Past:
    """The pools of a run, their snapshots on disk, and their servers. A part of a checkpoint, in its `folder`."""

    folder = FOLDER

    def __init__(self, config: DictConfig, team: TeamConfig, policies: Any, run: Path) -> None:
        self._team, self._policies = team, policies
        settings = {past.of: past for past in team.past.values()}
        self.pools = {of: Pool(item, int(config.marl.run.seed)) for of, item in settings.items()}
        self.snapshots = {of: Snapshots.of(run, config, of) for of in settings}
        self._met: dict[str, dict[str, int]] = {}  # task of the step -> policy -> snapshot
        self._seconds: dict[str, float] = {}  # of loading snapshots, since the last metrics

    def rounds(self, uids: Sequence[str]) -> list[tuple[dict[str, int], list[int]]]:
        """(policy -> snapshot, positions of the tasks that meet these) of each round, for further tasks of a step."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for position, uid in enumerate(uids):
            self._met[uid] = {of: pool.choose(uid) for of, pool in self.pools.items()}
            groups.setdefault(tuple(self._met[uid].values()), []).append(position)
        return [(dict(zip(self.pools, steps, strict=True)), groups[steps]) for steps in sorted(groups)]

    def use(self, chosen: Mapping[str, int]) -> None:
        """Load snapshots (policy -> step) into the opponents' servers. No task may be in flight."""
        for of, step in chosen.items():
            runtime = self._policies.runtimes[past_name(of)]
            if runtime.step != step:
                with timed(self._seconds, "load_snapshots"), self.snapshots[of].loadable(step) as model:
                    runtime.load(step, model)

    def newest(self) -> dict[str, int]:
        """Policy -> its newest snapshot, which validations meet."""
        return {of: max(pool.results) for of, pool in self.pools.items()}

    def record(self, reports: Iterable[Report]) -> None:
        """Add the results of a step, of which these are all reports."""
        for report in sorted(reports, key=lambda report: report.uid):
            for of, step in self._met[report.uid].items():
                for result in results(self._team, of, report):
                    self.pools[of].results[step].add(result)
        self._met = {}

    def take(self, step: int) -> None:
        for of, pool in self.pools.items():
            if step % pool.settings.every == 0:
                self.snapshots[of].write(step, partial(self._policies.runtimes[of].save, step=step))
                pool.add(step)

    def discard(self) -> None:
        """Remove the snapshots that neither a pool nor a checkpoint needs."""
        for of, pool in self.pools.items():
            self.snapshots[of].discard(pool.results)

    def metrics(self) -> dict[str, float]:
        """The win rate against each snapshot that was met, and the seconds of loading since the last call."""
        values = {f"seconds/{part}": seconds for part, seconds in self._seconds.items()}
        self._seconds = {}
        for of, pool in self.pools.items():
            played = {step: item for step, item in pool.results.items() if item.games}
            values |= {f"opponent/{of}/win_rate/step_{step}": item.win_rate for step, item in played.items()}
        return values

    def save(self, folder: Path, step: int) -> None:
        """Write the snapshots of each pool with the results against them."""
        for of, pool in self.pools.items():
            document = {"step": step, "snapshots": {str(at): asdict(item) for at, item in pool.results.items()}}
            write_json(folder / f"{of}.json", document)

    def load(self, folder: Path) -> None:
        for of, pool in self.pools.items():
            pool.results = {int(at): Results(**counts) for at, counts in read(folder.parent, of).items()}


def results(team: TeamConfig, of: str, report: Report) -> list[float]:
    """The result of a policy's agents against its past versions, in each episode of a task: 1, 0.5 or 0.

    Their best score against that of the past versions; the team's success if they have no sides, or common ones.
    """
    names = of, past_name(of)
    own, theirs = ({agent.side for agent in team.agents.values() if agent.policy == name} - {None} for name in names)
    if not own or not theirs or own & theirs or not report.outcomes:
        return [float(success) for success in report.successes]
    best = ([max(outcome[str(side)] for side in sides) for sides in (own, theirs)] for outcome in report.outcomes)
    return [1.0 if mine > other else 0.5 if mine == other else 0.0 for mine, other in best]
