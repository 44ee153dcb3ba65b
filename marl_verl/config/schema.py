"""The keys of section `marl`: each once, with type, default, range and meaning (the comment behind it).

The defaults of a recipe, the checks of its values and the page docs/config.md are made from these classes. Agents,
policies and their sections are in `marl_verl.team`, options of registered parts in the parts themselves.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval
from omegaconf import MISSING, DictConfig

from marl_verl.config.stored import marl_section
from marl_verl.errors import MarlError
from marl_verl.extensions import names
from marl_verl.options import NonNegative, Positive, Share, Small, build

Above = Annotated[float, Gt(0)]
Part = Annotated[float, Interval(gt=0, le=1)]
CRITIC_KEYS = (*names("model"), "max_prompt_length")
"""Keys of `marl.critic` that are not keys of verl's `critic`; distributions add sources of models."""
Tasks = Annotated[int, Interval(ge=1, le=1_000_000)]
Options = dict[str, Any]
SCHEDULE, FILTER, CURRICULUM = "marl.schedule", "marl.sampler.filter", "marl.data.curriculum"
SET_BY_RUN = ("recipe", "folder")  # keys of `marl.run` that are no defaults of a recipe


@dataclass(frozen=True)
class Run:
    """The run directory, seeds, and what a run writes."""

    name: str | int | float | None = None  # folder under `dir`; null: the recipe's name, numbered
    dir: str = "runs"  # folder of all runs, relative to the current one
    backend: Literal["local", "verl"] | None = None  # local: one process; verl, or null: on Ray, with vLLM's servers
    seed: NonNegative = 0  # for data order, sampling, models that are made, and tasks
    repeatable: bool = False  # a seed for every request; default: true on a CPU, false on GPUs (docs/sampling.md)
    share_prefixes: bool = True  # compute what rows begin with once, same gradient (docs/shared_prefixes.md)
    keep_rows: NonNegative = 1  # write rows/, for `marl-verl explain`, every N steps; 0: never
    keep_journals: NonNegative = 1  # write journals/, the episodes for `marl-verl replay`, every N steps; 0: never
    journal_tasks: Positive | None = None  # number of tasks per step whose episodes are written; null: all
    journal_tokens: bool = False  # include token ids and log-probabilities in journals/
    recipe: str | None = None  # the recipe's file, which the run sets
    folder: str | None = None  # the run directory, which the run sets


@dataclass(frozen=True)
class TaskSection:
    """The tasks: a registered task set, or files."""

    name: str = MISSING  # a registered task set; `marl-verl plugins` lists them
    options: Options = field(default_factory=dict)  # of the task set; `marl-verl plugins NAME` lists them
    reward: str | None = None  # a function that scores answers, e.g. my_reward.py:compute_score; relative to the recipe
    reward_kwargs: Options = field(default_factory=dict)  # further arguments of this function
    train_size: Tasks | None = None  # number of generated tasks (null: 4096), or most of a file (null: all)
    test_size: Tasks | None = None  # of held-out tasks, for validations and evaluations (null: 300, or all of a file)
    train_file: str | None = None  # JSON lines or parquet with the columns id, prompt, data
    test_file: str | None = None  # the same for held-out tasks


@dataclass(frozen=True)
class WorkflowSection:
    """What the agents do on a task."""

    name: str = MISSING  # a registered workflow
    options: Options = field(default_factory=dict)  # of the workflow


@dataclass(frozen=True)
class AlgorithmSection:
    """How advantages are computed."""

    name: str = "grpo"  # `marl-verl plugins` lists all
    options: Options = field(default_factory=dict)  # of its parts, e.g. gamma, baseline, credit (docs/algorithms.md)


@dataclass(frozen=True)
class Filter:
    """Rows of groups without a learning signal are not trained on, and further tasks are sampled instead."""

    no_variance: bool = True  # false: no filter
    refill: NonNegative | None = 2  # rounds of further tasks in a step, at most; null: no limit
    above: float | None = None  # groups with a mean reward above it are trained on; null: all
    below: float | None = None  # groups with a mean reward below it are trained on; null: all

    def __post_init__(self) -> None:
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise MarlError(f"'above' must be less than below={self.below:g}, got {self.above:g}")


@dataclass(frozen=True)
class SamplerSection:
    """The algorithm's own sampler, or `marl.algorithm.options.sampler`."""

    options: Options = field(default_factory=dict)  # episodes, candidates, joint_actions or nodes: 8 by default
    filter: Filter | None = None  # do not train on groups without a difference, sample further tasks (docs/sampling.md)

    @property
    def filters(self) -> Filter | None:
        """The filter that is on."""
        return self.filter if self.filter is not None and self.filter.no_variance else None


@dataclass(frozen=True)
class PoolWeights:
    """Relative probability that a task of a pool is drawn."""

    new: Small = 1.0  # not sampled yet
    hard: Small = 0.5  # success rate below `hard`
    medium: Small = 1.0  # success rate from `hard` to `easy`
    easy: Small = 0.2  # success rate above `easy`


@dataclass(frozen=True)
class Curriculum:
    """Pools of tasks by measured success rate, and the probability with which each is drawn."""

    hard: Share = 0.2  # a task with a lower success rate is hard
    easy: Share = 0.8  # a task with a higher success rate is easy
    memory: Annotated[float, Interval(ge=0, lt=1)] = 0.5  # weight of the former rate when a task is sampled again
    weights: PoolWeights = field(default_factory=PoolWeights)  # how often tasks of each pool are drawn


@dataclass(frozen=True)
class DataSection:
    """Which tasks are drawn."""

    curriculum: Curriculum | None = None  # draw tasks by their measured success rate (docs/sampling.md)


@dataclass(frozen=True)
class ValidationSection:
    """The sampled pass of a validation; the greedy pass runs each task once."""

    sampler: str | None = None  # null: independent, with 1 episode by default
    options: Options = field(default_factory=dict)  # of this sampler


@dataclass(frozen=True)
class Size:
    """A pool of devices on which policies that name it are colocated. Without a pool, a policy has
    trainer.n_gpus_per_node dedicated GPUs on each of trainer.nnodes nodes."""

    gpus: Positive = 1  # GPUs on each node
    nodes: Positive = 1  # nodes


@dataclass(frozen=True)
class Schedule:
    """The order of sampling and training. sync: sample, then train; async: train when a buffer is full."""

    mode: Literal["sync", "async"] = "sync"  # async: policies are trained while sampling continues
    fill: Positive | None = None  # rows in a policy's buffer that start its training; null: those of a batch (async)
    batch: Positive | None = None  # rows per optimiser update; null: all, in as many updates as with sync (async)
    ahead: NonNegative = 1  # batches of tasks sampled ahead of the one that is trained on; 0: on-policy (async)
    turns: list[list[str]] | None = None  # policies that learn in turn, e.g. [[solver], [verifier]]; null: all (sync)
    turn_steps: Positive = 1  # steps of a turn
    max_staleness: Positive = 4  # updates by which a row may be older than its policy; older ones are dropped (async)

    def __post_init__(self) -> None:
        if self.fill is not None and self.batch is not None and self.batch > self.fill:
            raise MarlError(f"'batch' must be at most fill={self.fill}, got {self.batch}: lower batch, or raise fill")

    def learning(self, trained: Iterable[str], step: int) -> set[str]:
        """Those of the trained policies that learn in a step, the first of which is 1."""
        turns = self.turns or [[*trained]]
        return {*trained}.intersection(turns[(step - 1) // self.turn_steps % len(turns)])


@dataclass(frozen=True)
class Rollout:
    """Limits of episodes."""

    max_failed_share: Share = 0.1  # share of a step's attempts that may fail; above it the run stops with the reason
    act_seconds: Above | None = 300  # time limit of one act
    call_seconds: Above | None = 300  # of one team.call, and of scoring one answer; null: none, functions then block
    step_seconds: Above | None = 60  # of a workflow's own code between acts; longer ends the run; null: never
    episode_seconds: Above | None = 3600  # of one episode; in a tree, from one act to the next
    episode_agents: Positive = 64  # limit on the agents that one episode spawns
    episode_tokens: Positive | None = None  # limit on the tokens sampled in one episode, over all agents
    keep_episodes: NonNegative = 4  # episodes written to episodes/ per validation, for `marl-verl replay`


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoints on disk."""

    keep: Positive = 2  # number of complete checkpoints kept on disk


@dataclass(frozen=True)
class CriticKeys:
    """For algorithms with a critic; the section also takes any key of verl's `critic`."""

    max_prompt_length: Positive | None = None  # of a team: most tokens of a joint observation; null: the agents' sum


@dataclass(frozen=True)
class Marl:
    """Section `marl` of a config."""

    run: Run = field(default_factory=Run)
    plugins: list[str] | str | None = field(default_factory=list)  # plugin files of the recipe, e.g. [my_team.py]
    task: TaskSection = field(default_factory=TaskSection)
    workflow: WorkflowSection = field(default_factory=WorkflowSection)
    algorithm: AlgorithmSection = field(default_factory=AlgorithmSection)
    sampler: SamplerSection = field(default_factory=SamplerSection)
    data: DataSection = field(default_factory=DataSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    agents: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Any] = field(default_factory=dict)
    pools: Mapping[str, Any] | None = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    critic: Mapping[str, Any] | None = field(default_factory=lambda: {"max_prompt_length": None})
    rollout: Rollout = field(default_factory=Rollout)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


def marl_of(config: DictConfig) -> Marl:
    """Section `marl` of a config, without what distributions add to `marl.run`. MarlError: an invalid key or value."""
    section = marl_section(config)
    if isinstance(run := section.get("run"), dict):
        added = {*names("run"), *names("state")}
        section = {**section, "run": {key: value for key, value in run.items() if key not in added}}
    return build(Marl, section, "marl")


def defaults() -> dict[str, Any]:
    """Section `marl` with all defaults, as plain containers."""
    section = dataclasses.asdict(Marl())
    for key in (*SET_BY_RUN, "repeatable"):  # hardware/*.yaml sets repeatable
        del section["run"][key]
    return section
