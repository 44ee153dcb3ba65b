"""Compatibility checks of sampler, algorithm, team and task set, made before a run starts.

The run's own sampler makes synthetic rows of synthetic actions and scores, without a model. They have the nodes,
episodes, turns and components of the team's rows: computing their advantages shows whether the algorithm fits.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from omegaconf import DictConfig, OmegaConf

from marl_verl.advantage import RowTable
from marl_verl.advantage.estimator import Rows
from marl_verl.algorithms import Algorithm
from marl_verl.config.parts import algorithm_named, columns_of
from marl_verl.credit.base import Credit, ReplayCredit
from marl_verl.episode import Act, Action, Episode, Team, Turn, Workflow
from marl_verl.episode.effects import NOT_REPLAYABLE
from marl_verl.episode.row import row
from marl_verl.errors import MarlError, nearest
from marl_verl.models.count import model_config
from marl_verl.sampling import Candidate, Sampler
from marl_verl.sampling.context import BaseSamplingContext, TaskContext
from marl_verl.sampling.turn_columns import add_columns
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import TeamConfig

MOST_MOVES, SECONDS = 3, 30.0
OPTIMISERS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD"),
)
"""Names in `torch.optim` (tests/test_platform.py compares them): importing torch takes seconds."""
MASKED = ("sdpa", "eager")
"""Attention implementations that separate packed rows by a mask, which transformers makes from the position ids."""
PACKED = (
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("phi3", "smollm3", "olmo2", "olmoe", "granite", "cohere", "glm", "glm4", "starcoder2", "gpt2", "gpt_neox"),
)
"""Model types whose packed rows were compared with separate ones (tests/test_packed.py)."""
SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Keys of a model's config that change its logits after the output layer."""


def check_samplers(found: dict[str, Sampler], names: dict[str, str], team: TeamConfig, tasks: TaskSet) -> None:
    """Check the samplers of `samplers_of`, with the names of `sampler_names`, against team and task set."""
    for section, sampler in found.items():
        name = names[section]
        try:
            sampler.check(list(team.agents))
        except MarlError as error:
            raise MarlError(f"marl.{section}.options: {error}") from error
        if sampler.public and type(tasks).public_score is TaskSet.public_score:
            what = f"marl.{section}: sampler '{name}' needs public scores, but task set '{team.task.name}' has none"
            raise MarlError(f"{what}: implement TaskSet.public_score, or use sampler 'independent'")
    if found["validation"].branches and not found["validation"].public:
        remedy = "use 'independent', 'best-of', or 'tree-search' with options {guide: public}"
        what = f"sampler '{names['validation']}' selects by the true score, which a validation must not use"
        raise MarlError(f"{what}: {remedy}")


def check_fit(sampler: Sampler, algorithm: Algorithm, team: TeamConfig) -> None:
    """MarlError if credit or advantage is incompatible with the rows that the sampler makes."""
    credit: Any = algorithm.credit
    # a credit that replaces component `team` is not an increment
    incremental = sampler.incremental and "team" not in credit.consumed()
    if (why := algorithm.advantage.incompatibility(Rows(sampler.branches, sampler.crossed, incremental))) is not None:
        own = algorithm_named(team.algorithm.name, None, "").sampler
        hint = "" if own == algorithm.sampler else f" (the algorithm's own sampler is '{own}')"
        pair = f"sampler '{algorithm.sampler}' is incompatible with algorithm '{team.algorithm.name}'"
        raise MarlError(f"{pair}: {why}{hint}")
    for each in credit.each:
        _check_credit(each, sampler, algorithm, team)


def _check_credit(credit: Credit, sampler: Sampler, algorithm: Algorithm, team: TeamConfig) -> None:
    if (why := credit.incompatibility(sampler.branches)) is not None:
        raise MarlError(f"credit '{credit.name}' is incompatible with sampler '{algorithm.sampler}': {why}")
    if not isinstance(credit, ReplayCredit):
        return
    if sampler.branches or sampler.public:
        what = f"credit '{credit.name}' replays whole episodes, but sampler '{algorithm.sampler}' makes off-path turns"
        raise MarlError(f"{what}: use sampler 'independent'")
    try:
        credit.check(list(team.agents))
    except MarlError as error:
        raise MarlError(f"marl.algorithm.options.{error}") from error
    if credit.repeated and algorithm.advantage.sums_turns:
        what = f"credit '{credit.name}' is repeated on every turn of an agent, but the returns sum over turns"
        remedy = "use returns 'immediate', or a credit of single acts (counterfactual with credit_unit=act)"
        raise MarlError(f"{what}: {remedy}")


def check_replays(
    workflow: Workflow, samplers: dict[str, Sampler], names: dict[str, str], team: TeamConfig, algorithm: Algorithm
) -> None:
    """MarlError if a sampler or the credit replays episodes of a workflow that cannot be replayed."""
    if workflow.replayable:
        return
    what = f"workflow '{team.workflow.name}' {NOT_REPLAYABLE}"
    for section, sampler in samplers.items():
        if sampler.branches:
            remedy = "use 'independent' or 'best-of'"
            raise MarlError(f"marl.{section}: {what}, but sampler '{names[section]}' branches from replays: {remedy}")
    for credit in algorithm.replay_credits:
        remedy = "set marl.algorithm.options.credit=none"
        raise MarlError(f"{what}, but credit '{credit.name}' replays its episodes: {remedy}")


def check_advantage(synthetic: SyntheticTeam) -> None:
    """Compute advantages of synthetic rows. MarlError for a group column or a reward that the algorithm lacks."""
    try:
        synthetic.algorithm.compute(synthetic.table(synthetic.rows(0)))
    except MarlError as error:
        raise MarlError(f"algorithm '{synthetic.team.algorithm.name}' does not fit the team: {error}") from error


PADDING = 128
"""Tokens of a row of padding, verl's `SYNTHETIC_PADDING_SEQ_LEN`."""


def check_reference(resolved: DictConfig, team: TeamConfig) -> None:
    """MarlError for a KL loss of a whole model on a CPU: verl supports a reference model there only for an adapter."""
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part = resolved.policies[name].actor_rollout_ref
        if part.actor.use_kl_loss and not part.model.lora_rank and resolved.trainer.device == "cpu":
            why = "because verl keeps the reference model in pinned memory"
            remedy = f"on a CPU set marl.policies.{name}.model.lora_rank, or actor.use_kl_loss=false"
            raise MarlError(f"policy '{name}': actor.use_kl_loss of a whole model needs a GPU, {why}: {remedy}")


def check_engine(resolved: DictConfig, team: TeamConfig) -> None:
    """MarlError for training settings that verl accepts, and that fail after start-up or give wrong numbers."""
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part, where = resolved.policies[name].actor_rollout_ref, f"marl.policies.{name}"
        actor, rollout, attention = part.actor, part.rollout, part.model.override_config.get("attn_implementation")
        if actor.strategy not in ("fsdp", "fsdp2"):
            raise MarlError(f"'{where}.actor.strategy' must be fsdp2 or fsdp, got '{actor.strategy}'")
        check_optimiser(actor.optim, f"{where}.actor")
        if "model" not in actor.checkpoint.save_contents:
            raise MarlError(f"'{where}.actor.checkpoint.save_contents' lacks 'model', which resuming and export need")
        if actor.ulysses_sequence_parallel_size > 1 and attention not in (None, "flash_attention_2"):
            what = f"'{where}.actor.ulysses_sequence_parallel_size' is {actor.ulysses_sequence_parallel_size}"
            remedy = "install flash-attn and set model.override_config.attn_implementation=flash_attention_2"
            raise MarlError(f"{what}, which gives wrong log-probs with attention '{attention}': {remedy}")
        check_kernels(part.model, where, str(attention), resolved.trainer.device)
        longest = int(rollout.prompt_length) + int(rollout.response_length)
        dynamic = {"actor.ppo": actor.use_dynamic_bsz, "rollout.log_prob": rollout.log_prob_use_dynamic_bsz}
        if len(set(dynamic.values())) > 1:
            what = f"{where}: actor.use_dynamic_bsz and rollout.log_prob_use_dynamic_bsz must be equal"
            raise MarlError(f"{what}, got {', '.join(map(str, dynamic.values()))}")
        for key, by_tokens in dynamic.items():
            limit = OmegaConf.select(
                part, f"{key}_max_token_len_per_gpu" if by_tokens else f"{key}_micro_batch_size_per_gpu"
            )
            if by_tokens and (tokens := limit * actor.ulysses_sequence_parallel_size) < max(longest, PADDING):
                parts = f"(prompt {rollout.prompt_length} + response {rollout.response_length})"
                row = f"a row may have {longest} tokens {parts}"
                row = row if tokens < longest else f"a row of padding has {PADDING} tokens"
                raise MarlError(f"'{where}.{key}_max_token_len_per_gpu' is {limit}, but {row}")
            if not by_tokens and limit is None:
                remedy = "set it, or actor.use_dynamic_bsz=true"
                raise MarlError(f"'{where}.{key}_micro_batch_size_per_gpu' is missing: {remedy}")


def check_optimiser(optim: DictConfig, where: str) -> None:
    """MarlError for an optimiser that torch lacks, or whose package is not installed; verl loads it by name."""
    package = str(optim.optimizer_impl).partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise MarlError(f"'{where}.optim.optimizer_impl' is '{optim.optimizer_impl}', which is not installed")
    if optim.optimizer_impl == "torch.optim" and optim.optimizer not in OPTIMISERS:
        near = nearest(str(optim.optimizer), OPTIMISERS)
        raise MarlError(f"unknown value '{optim.optimizer}' of '{where}.optim.optimizer': {near}")


def check_critic_rows(resolved: DictConfig) -> None:
    """MarlError where a critic's row, an observation and one token, may exceed its token limit of a micro-batch."""
    for name, settings in resolved.critics.items():
        check_optimiser(settings.critic.optim, "marl.critic")
        size, batch = int(settings.critic.ppo_mini_batch_size), int(resolved.data.train_batch_size)
        if batch % min(size, batch):
            what = f"data.train_batch_size={batch} is not a multiple of marl.critic.ppo_mini_batch_size={size}"
            raise MarlError(f"{what}: set a divisor of the batch size")
        critic, prompt = settings.critic, int(settings.max_prompt_length)
        if settings.scope == "policy":
            prompt = int(resolved.policies[settings.policy].actor_rollout_ref.rollout.prompt_length)
        limit = critic.ppo_max_token_len_per_gpu
        if critic.use_dynamic_bsz and limit * critic.fsdp.ulysses_sequence_parallel_size < prompt + 1:
            seen = "a joint observation" if settings.scope == "team" else f"an observation of policy '{name}'"
            lower = "lower marl.critic.max_prompt_length" if settings.scope == "team" else "lower its prompt_length"
            what = (
                f"'marl.critic.ppo_max_token_len_per_gpu' is {limit}, but {seen} may have {prompt} tokens and one more"
            )
            raise MarlError(f"{what}: raise it, or {lower}")
        if not critic.use_dynamic_bsz and critic.ppo_micro_batch_size_per_gpu is None:
            remedy = "set it, or marl.critic.use_dynamic_bsz=true"
            raise MarlError(f"'marl.critic.ppo_micro_batch_size_per_gpu' is missing: {remedy}")
        attention = str(critic.model.override_config.get("attn_implementation"))
        check_kernels(critic.model, "marl.critic", attention, resolved.trainer.device)


def check_kernels(model: DictConfig, where: str, attention: str, device: str) -> None:
    """MarlError where packed rows or verl's fused kernels are known to give wrong log-probs, or to fail."""
    found = model_config(str(model.path))
    kind = str(found.get("model_type"))
    if model.use_remove_padding and found and attention in MASKED and kind not in PACKED:
        what = f"'{where}.model.use_remove_padding': models of type '{kind}' are not known to separate packed rows"
        raise MarlError(f"{what} with attention '{attention}': set {where}.model.use_remove_padding=false")
    if not model.use_fused_kernels:
        return
    backend, named = model.fused_kernel_options.impl_backend, f"'{where}.model.use_fused_kernels'"
    off = f"set {where}.model.use_fused_kernels=false"
    if backend not in ("torch", "triton") or (backend == "triton" and device == "cpu"):
        what = f"{named} supports fused_kernel_options.impl_backend=torch, or on a GPU triton, got '{backend}'"
        raise MarlError(f"{what}: set one of them")
    if scaled := [key for key in SCALED if found.get(key) not in (None, 1)]:
        raise MarlError(f"{named}: verl's kernels ignore '{scaled[0]}', which models of type '{kind}' have: {off}")


@dataclass(frozen=True)
class SyntheticTeam:
    """Maker of synthetic rows; `moves` are the first moves of the rehearsed workflow (agents that act concurrently)."""

    sampler: Sampler
    algorithm: Algorithm
    team: TeamConfig
    moves: tuple[tuple[str, ...], ...] = ()

    def rows(self, number: int, episodes: int | None = None) -> list[dict[str, Any]]:
        """The rows of task `number`: all, or those of its first `episodes`. MarlError where the sampler fails."""
        name, agents = self.algorithm.sampler, self.team.agents
        rewards = {agent.reward: _role_reward for agent in agents.values() if agent.reward}
        acting = {agent for move in self.moves[:MOST_MOVES] for agent in move}
        moves = (*self.moves[:MOST_MOVES], *((agent,) for agent in agents if agent not in acting))
        workflow, mix = _SyntheticWorkflow(moves), self.algorithm.rewards
        task_context = TaskContext(workflow, _SyntheticTasks(), agents, rewards, mix)
        task = Task(f"synthetic-{number}", "", {"number": number})
        context = _SyntheticContext(task_context, task, task.id)
        try:
            sample = asyncio.run(asyncio.wait_for(self.sampler.sample(context), SECONDS))
        except TimeoutError as error:
            raise MarlError(f"sampler '{name}' took longer than {SECONDS:.0f} s for one synthetic task.") from error
        if sample.failures or not sample.turns:
            why = sample.failures[0].detail if sample.failures else "it returned no turns"
            raise MarlError(f"sampler '{name}' fails on a synthetic task of the team: {why}")
        for credit in self.algorithm.replay_credits:  # no replays: a credit may support its own workflow only
            players = credit.players(list(agents))
            for turn in (turn for turn in sample.turns if turn.agent in players):
                turn.rewards[credit.component] = (1 + turn.session) / (1 + turn.index)
        add_columns(columns_of(self.algorithm), sample)
        value = {"value": 0.0} if self.algorithm.advantage.wants_critic() else {}
        chosen = {id(turn) for each in sample.episodes[:episodes] for turn in each.turns}
        return [{**row(turn), **value} for turn in sample.turns if episodes is None or id(turn) in chosen]

    def table(self, rows: Sequence[dict[str, Any]]) -> RowTable:
        return RowTable.from_rows(rows, self.algorithm.components(self.team.agents))


class _SyntheticWorkflow(Workflow):
    """Workflow of given moves; the team proposes an answer after each."""

    moves: tuple[tuple[str, ...], ...]

    async def run(self, task: Task, team: Team) -> str:
        message = ""
        for move in self.moves:
            for agent in move:  # reward component `tool` needs a call
                await team[agent].call(len, agent)
            seen = {agent: f"{task.id}: {agent} acts" for agent in move}
            actions = await team.act(seen) if len(seen) > 1 else {move[0]: await team[move[0]].act(seen[move[0]])}
            for action in actions.values():
                message += action.text
                if _number(action.text, 2):
                    team.invalid(action, "synthetic")
            team.propose(message)
        return message


class _SyntheticTasks(TaskSet):
    """Task set whose scores differ between answers, and more between tasks."""

    def score(self, task: Task, answer: Any) -> float:
        return _number(answer, 97) / 8 + 20.0 * int(task.data["number"])

    def public_score(self, task: Task, answer: Any) -> float:
        return _number(answer, 53) / 8


class _SyntheticContext(BaseSamplingContext):
    """Its actions differ by agent, slot, session and candidate."""

    def seed(self, session: int) -> int:
        return session

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        text = f"({agent or act.agent} {act.slot} {session} {candidate})"
        ids = [*range(1 + _number(text, 16))]
        return Action(text, [], ids, [-0.1 * (1 + each) for each in ids], stop_reason="stop", version=0)

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The sum of the components; errors of the mix appear when the advantage is computed."""
        return [sum(turn.components.values()) for turn in turns]


def _role_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """A role reward that differs between the agents of a joint move."""
    return 1.0 + (turn.session + turn.index) % 2


def _number(text: str, below: int) -> int:
    return crc32(text.encode()) % below
