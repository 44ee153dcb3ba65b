"""Who acts in an evaluation with which weights, the continuations of an edited act, and evaluation.json, which passes
them to its process.

Swaps are applied before `untrained`: with `--swap a=b --untrained a` agent a has the initial model of b's policy. A
swap exchanges only policies; instructions, role reward and sampling remain with the agent.

An edit begins twice with the effects of a stored episode before an act: arm `recorded` with the act's own action, arm
`edited` with a text as its action, with the same sessions and seeds. Other acts of the same joint move did not see the
act and stay; later acts and calls are new.

The entry point `cross-play` of group `marl_verl.league` is the module of evaluations in which the steps of a run play
each other, an agent of each step acts beside the team of the last one, or an episode is continued after an edited act.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from marl_verl_inspect.episodes import file_of_episode, read_episodes
from marl_verl_inspect.export import WEIGHTS, Source
from marl_verl_inspect.replay import differences, replay

from marl_verl.config.policy_models import check_files
from marl_verl.config.stored import read_config
from marl_verl.episode import Action, ActRecord, Journal
from marl_verl.episode.codec import encode_journal
from marl_verl.errors import MarlError, check, check_known
from marl_verl.extensions import extension, required
from marl_verl.files import read_bytes, write_json
from marl_verl.run.checkpoint import folders
from marl_verl.run.reading import load_run
from marl_verl.run.run_dir import REQUEST
from marl_verl.tasks import Task
from marl_verl.team import TeamConfig

RESULT, MODELS = "result.json", "models"
Weights = Literal["trained", "untrained", "past", "frozen", "external"]
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


@dataclass(frozen=True)
class Assignment:
    """The policy of an agent: its name `source` in the run and its name `policy` in the evaluation, which differ if one
    agent has the trained and another the untrained weights, or for past versions of `source`."""

    source: str
    weights: Weights
    policy: str
    step: int = 0  # of the checkpoint, or of the snapshot of a past version
    kind: str = ""  # of the policy of past versions

    def describe(self) -> str:
        """A description of the weights for output."""
        step = f"step {self.step}"
        named = {"trained": step, "past": f"snapshot of {step}", "untrained": "before training"}
        return named.get(self.weights, self.weights)


@dataclass(frozen=True)
class Pairing:
    """Agent -> its policy; and of a cross-play the two players, such as "player@20": the row plays the first side, the
    column the second one. Of an edit, the column is the arm."""

    assignments: dict[str, Assignment]
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Request:
    """The content of evaluation.json; the result is stored next to it in result.json.

    Attributes:
        step: step of the checkpoint; part of the seeds, as in the validation at that step.
        pairings: those of a cross-play, a partner or an edit; one without names for an evaluation of one team.
        episodes: sampled episodes per task; 0 for the greedy pass only.
        at_once: maximum number of episodes in flight.
        seed: seed of the bootstrap intervals.
        exports: policy -> the source of a model to export to `models/` first.
        sides: of a cross-play: those of its rows and of its columns.
        rows: of the continuations of an edited act, which are played in place of the held-out tasks.
    """

    step: int
    pairings: tuple[Pairing, ...]
    episodes: int = 0
    ks: tuple[int, ...] = ()
    at_once: int = 1
    seed: int = 0
    exports: dict[str, Source] = field(default_factory=dict)
    sides: tuple[str, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def assignments(self) -> dict[str, Assignment]:
        """Agent -> its policy, in a cross-play that of the first pairing."""
        return self.pairings[0].assignments

    @property
    def policies(self) -> dict[str, Assignment]:
        """Name in the evaluation -> policy, of all pairings."""
        return {used.policy: used for pairing in self.pairings for used in pairing.assignments.values()}

    @property
    def compares(self) -> bool:
        """Whether the result compares pairings, in place of the scores of one team."""
        return self.pairings[0].column != ""

    def write(self, folder: Path) -> None:
        write_json(folder / REQUEST, dataclasses.asdict(self), default=str)  # a path becomes a string

    @classmethod
    def read(cls, folder: Path) -> "Request":
        return msgspec.json.decode(read_bytes(folder / REQUEST), type=cls, dec_hook=lambda kind, value: kind(value))


def requested(run: Path, team: TeamConfig, options: Options) -> tuple[Task | None, Request]:
    """(the task of an edited episode, the request): who acts with which policy."""
    counts: dict[str, Any] = {"episodes": options.sampled, "ks": options.ks, "at_once": options.at_once}
    task, step, arms = None, options.step, [""]
    if options.cross_play:
        partner = options.cross_play if isinstance(options.cross_play, str) else None
        cross_play = required("league", "cross-play", "unknown option '--cross-play'", "leagues")
        request = cross_play.pair(team, cross_play.chosen_steps(run, options.steps), partner)
        return None, dataclasses.replace(request, **counts)
    if options.edit:
        required("league", "cross-play", "unknown option '--edit'", "leagues")
        task, at, rows = edited_rows(run, *options.edit, sampled=options.sampled > 1)
        step = at if step is None and at in (0, *load_run(run).checkpoints) else step
        counts, arms = counts | {"rows": rows}, [row["uid"] for row in rows]
    step = chosen_step(run, step)
    snapshots = newest_snapshots(run, team, step)
    assignments = assign(team, step, options.swap, options.untrained, snapshots)
    return task, Request(step, tuple(Pairing(assignments, column=arm) for arm in arms), **counts)


def assign(
    team: TeamConfig,
    step: int,
    swaps: Sequence[Swap] = (),
    untrained: Sequence[str] = (),
    newest: Mapping[str, int] | None = None,
) -> dict[str, Assignment]:
    """Agent -> its policy, at a step (0: before training). MarlError for an unknown agent.

    `newest`: policy -> step of its newest snapshot in the checkpoint, with which agents act in past versions.
    """
    policies = {agent.name: agent.policy for agent in team.agents.values()}
    for name in (*itertools.chain(*swaps), *untrained):
        check_known("agent", name, policies)
    for first, second in swaps:
        policies[first], policies[second] = policies[second], policies[first]
    snapshots = newest or {}
    return {name: _assignment(team, policy, step, name in untrained, snapshots) for name, policy in policies.items()}


def _assignment(team: TeamConfig, source: str, step: int, untrained: bool, newest: Mapping[str, int]) -> Assignment:
    policy = team.policies[source]
    if (past := policy.past) is not None:
        if newest.get(past.of) and not untrained:
            return Assignment(past.of, "past", source, newest[past.of], past.kind)
        return _assignment(team, past.of, step, True, newest)
    if policy.frozen:
        return Assignment(source, "external" if policy.external else "frozen", source)
    if step == 0 or not untrained:
        return Assignment(source, "trained" if step else "untrained", source, step)
    name = f"{source}-untrained"
    while name in team.policies:
        name += "-1"
    return Assignment(source, "untrained", name)


def chosen_step(run: Path, step: int | None) -> int:
    """The step to evaluate, by default that of the newest complete checkpoint. MarlError if it does not exist."""
    return 0 if step == 0 else folders.step_of(folders.choose(run, step))


def newest_snapshots(run: Path, team: TeamConfig, step: int) -> dict[str, int]:
    """Policy with which agents act in past versions -> its newest snapshot in a checkpoint; 0 before training."""
    if not step or not team.past:
        return {}
    folder, versions = folders.choose(run, step), team.past.values()
    return {past.of: max(map(int, extension("policy", past.kind).read(folder, past.of))) for past in versions}


def find_models(run: Path, policies: Mapping[str, Assignment]) -> dict[str, str | Source]:
    """Policy in use, except external endpoints -> the folder or hub name of its model; a `Source` if that has to be
    exported first, because servers cannot load its format. MarlError if it is damaged or missing."""
    config, models = read_config(run / "config.yaml"), dict[str, str | Source]()
    for name, assignment in policies.items():
        if assignment.weights == "trained":
            checkpoint = folders.intact(folders.choose(run, assignment.step), f"policies/{assignment.source}/")
            source = Source.of(checkpoint, assignment.source, config)
            ready = source.folder / "huggingface"
            whole = source.lora is None and any(any(ready.glob(pattern)) for pattern in WEIGHTS)
            models[name] = str(ready.resolve()) if whole else source
        elif assignment.weights == "past":
            kind, at = extension("policy", assignment.kind), assignment.step
            snapshots = kind.Snapshots.of(run.resolve(), config, assignment.source)
            snapshots.check([at])
            models[name] = snapshots.model(at) or snapshots.source(at)  # the latter of an adapter
        elif assignment.weights != "external":
            models[name] = _initial_model(config, assignment)
    return models


def _initial_model(config: Any, assignment: Assignment) -> str:
    """The model of a frozen policy, or of a policy before training: a folder or a hub name."""
    model, label = config.policies[assignment.source].actor_rollout_ref.model, f"model of policy '{assignment.source}'"
    if model.get("lora_adapter_path"):
        raise MarlError(f"the {label} has an initial adapter, which cannot be served. Merge them, and train from that.")
    if Path(model.path).is_absolute() or Path(model.path).exists():
        check_files(Path(model.path), label)
    return str(model.path)


def edited_rows(
    run: Path, name: str, act: str, text: str, sampled: bool
) -> tuple[Task, int, tuple[dict[str, Any], ...]]:
    """(task, step, a `TaskRow` of each arm) of an episode. MarlError: no act "AGENT:SLOT", or its replay differs."""
    file = read_episodes(file_of_episode(run, name))
    episode = file.episode(name)
    if changed := differences(episode, replay(file.header, episode)):
        raise MarlError(f"episode '{name}' is not what is stored: {changed[0]}")
    acts = {":".join(record.act.key): record for record in episode.journal.acts()}
    check_known(f"act of episode '{name}'", act, acts)
    records, edited = episode.journal.records, acts[act]
    at, joint = records.index(edited), edited.act.joint
    later = [record for record in records[at + 1 :] if isinstance(record, ActRecord)]
    kept = [record for record in later if joint is not None and record.act.joint == joint]
    task, rows = json.dumps(dataclasses.asdict(episode.task)), []
    for arm, action in (("recorded", edited.action), ("edited", Action(text))):
        begun = Journal((*records[:at], ActRecord(edited.act, action), *kept), episode.journal.seed)
        rows.append({"task": task, "uid": arm, "keep": True, "sampled": sampled, "journal": encode_journal(begun)})
    return episode.task, file.header.step, tuple(rows)
