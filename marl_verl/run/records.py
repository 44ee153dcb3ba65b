"""Stored episodes and rows of a run, for `marl-verl replay` and `explain`, and the limit on failed episodes."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.config.parts import samplers_of
from marl_verl.config.stored import marl_section
from marl_verl.episode.codec import SCHEMA, as_line
from marl_verl.errors import check
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks import Split
from marl_verl.team import AgentConfig, Named, TeamConfig
from marl_verl.version import __version__

if TYPE_CHECKING:
    from marl_verl.backend.protocol import Report


def header(
    team: TeamConfig, algorithm: Algorithm, step: int, split: Split, seed: int, sampler: Named
) -> dict[str, Any]:
    """The first line of a file of episodes: the data besides an episode that its replay needs, and the step of the run.
    `sampler` has all options, defaults included."""
    return {
        **{"schema": SCHEMA, "kind": "episodes", "marl_verl": __version__, "step": step, "split": split, "seed": seed},
        "task": _part("tasks", team.task),
        "workflow": _part("workflows", team.workflow),
        "agents": {agent.name: _agent(agent, team) for agent in team.agents.values()},
        "algorithm": {"name": team.algorithm.name, "options": algorithm.options()},
        "sampler": {"name": sampler.name, "options": sampler.options},
    }


def _agent(agent: AgentConfig, team: TeamConfig) -> dict[str, Any]:
    past = team.past.get(agent.policy)
    stored = {key: getattr(agent, key) for key in ("policy", "reward", "instructions")}
    return stored if past is None else {**stored, "past_of": past.of}


def _part(kind: str, named: Named) -> dict[str, Any]:
    source = plugins.load().entry(kind, named.name).source
    origin = {"distribution": source.distribution, "version": source.version}
    return {"name": named.name, "options": named.options, **origin}


class Records:
    """Writes the episodes and the rows of a run's steps to its directory; `config` is resolved."""

    def __init__(self, config: DictConfig, team: TeamConfig, algorithm: Algorithm, run_dir: RunDir) -> None:
        self._team, self._algorithm, self._run_dir = team, algorithm, run_dir
        self._marl = marl_section(config)

    def keeps(self, step: int, position: int) -> bool:
        """Whether the episodes of the task at a position of the step's batch are stored in journals/."""
        run = self._marl["run"]
        every, tasks = int(run["keep_journals"]), run["journal_tasks"]
        return every > 0 and step % every == 0 and (tasks is None or position < int(tasks))

    def journals(self, step: int, reports: "list[Report]") -> None:
        """Store the episodes of a training step. MarlError as in `check_failures`."""
        lines = [line for report in reports for line in report.lines]
        if lines:  # before `check_failures`: the lines include the failures
            self._run_dir.lines("journals", step, [self._header(step, "train"), *lines])
        self.check_failures(reports)

    def episodes(self, step: int, lines: Iterable[str]) -> None:
        """Store sample episodes of a validation."""
        self._run_dir.lines("episodes", step, [self._header(step, "test"), *lines])

    def rows(self, step: int, table: RowTable, result: AdvantageResult) -> None:
        """Store how a step's advantages were computed, every `marl.run.keep_rows` steps."""
        if (every := int(self._marl["run"]["keep_rows"])) and step % every == 0:
            document = step_document(self._team.algorithm.name, self._algorithm, table, result, step)
            taught = [policy for policy in self._team.policies.values() if policy.teacher is not None]
            notes = [f"the loss of policy {policy.name} also has {policy.teacher.described()}" for policy in taught]
            self._run_dir.rows(step, document | ({"teachers": notes} if notes else {}))

    def _header(self, step: int, split: Split) -> str:
        """The first line of a file of episodes: of a training step, or of a validation's greedy pass."""
        sampler = Named("independent", {"episodes": 1})
        if split == "train":
            name, options = samplers_of(self._algorithm, self._marl)["sampler"]
            sampler = Named(name, dataclasses.asdict(options))
        return as_line(header(self._team, self._algorithm, step, split, int(self._marl["run"]["seed"]), sampler))

    @check
    def check_failures(self, reports: "list[Report]") -> Iterator[str]:
        """MarlError if a sampler failed, or more attempts than `marl.rollout.max_failed_share` allows."""
        yield from (f"sampling task '{report.task}' failed: {report.error}" for report in reports if report.error)
        failures = [failure for report in reports for failure in report.failures]
        total = sum(report.attempts for report in reports)
        share = float(self._marl["rollout"]["max_failed_share"])
        if failures and len(failures) > share * total:
            problem = f"{len(failures)} of {total} attempts failed, above marl.rollout.max_failed_share={share:g}"
            yield f"{problem}. First failure: {failures[0].reason}: {failures[0].detail}"
