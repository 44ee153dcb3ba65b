"""Whether the parts of a run go together, each by itself and with team and task: checked before it starts."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from marl_verl.advantage.estimator import Rows
from marl_verl.algorithms import Algorithm
from marl_verl.config.checks import part
from marl_verl.config.parts import algorithm_named
from marl_verl.config.synthetic import SyntheticTeam
from marl_verl.credit.replay import ReplayCredit
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.sampling import Sampler
from marl_verl.tasks.base import TaskSet
from marl_verl.team import TeamConfig


def samplers(algorithm: Algorithm, marl: dict[str, Any]) -> dict[str, Sampler]:
    """The samplers of training and validation: where a config says it -> the sampler with its options."""
    found: dict[str, Sampler] = {}
    for section, name in (("sampler", algorithm.sampler), ("validation", marl["validation"]["sampler"])):
        kind, where = part("samplers", str(name), Sampler), f"marl.{section}.options"
        try:
            found[section] = build(kind, marl[section]["options"], where)
        except MarlError as error:
            raise MarlError(f"{error} (of sampler '{name}')") from error
    return found


def check_samplers(
    found: dict[str, Sampler], validation: str, algorithm: Algorithm, team: TeamConfig, tasks: TaskSet
) -> None:
    """Each sampler of `samplers` with the team and the task set; `validation` is the name of the validation's."""
    for section, sampler in found.items():
        name = algorithm.sampler if section == "sampler" else validation
        try:
            sampler.check(list(team.agents))
        except MarlError as error:
            raise MarlError(f"marl.{section}.options: {error}") from error
        if sampler.public and type(tasks).public_score is TaskSet.public_score:
            what = f"marl.{section}: sampler '{name}' chooses by public score, and task '{team.task.name}' has none"
            raise MarlError(f"{what}: write TaskSet.public_score, or use sampler 'independent'")
    if found["validation"].branches and not found["validation"].public:
        remedy = "use 'independent', 'best-of', or 'tree-search' with options {guide: public}"
        raise MarlError(f"sampler '{validation}' chooses by the true score, which a validation must not know: {remedy}")


def check_fit(sampler: Sampler, algorithm: Algorithm, team: TeamConfig) -> None:
    """Whether credit and advantage are for rows such as the sampler makes."""
    credit: Any = algorithm.credit
    # a credit that takes the place of component `team` is no increment
    incremental = sampler.incremental and "team" not in credit.reads()
    if (why := algorithm.advantage.misfit(Rows(sampler.branches, sampler.crossed, incremental))) is not None:
        own = algorithm_named(team.algorithm.name, None, "").sampler
        hint = "" if own == algorithm.sampler else f" (the algorithm's own sampler is '{own}')"
        pair = f"sampler '{algorithm.sampler}' does not go with algorithm '{team.algorithm.name}'"
        raise MarlError(f"{pair}: {why}{hint}")
    if (why := credit.misfit(sampler.branches)) is not None:
        raise MarlError(f"credit '{credit.name}' does not go with sampler '{algorithm.sampler}': {why}")
    if not isinstance(credit, ReplayCredit):
        return
    if sampler.branches or sampler.public:
        what = f"credit '{credit.name}' replays whole episodes, and sampler '{algorithm.sampler}' has turns beside them"
        raise MarlError(f"{what}: use sampler 'independent'")
    try:
        credit.check(list(team.agents))
    except MarlError as error:
        raise MarlError(f"marl.algorithm.options.{error}") from error
    if credit.repeated and algorithm.advantage.sums_turns:
        what = f"credit '{credit.name}' is repeated on every turn of an agent, and the returns sum turns"
        remedy = "use returns 'immediate', or a credit of single acts (counterfactual with credit_unit=act)"
        raise MarlError(f"{what}: {remedy}")


def check_advantage(synthetic: SyntheticTeam) -> None:
    """Compute advantages of synthetic rows. MarlError for a group column or a reward that the algorithm lacks."""
    try:
        synthetic.algorithm.compute(synthetic.table(synthetic.rows(0, attempts=2)))
    except MarlError as error:
        raise MarlError(f"algorithm '{synthetic.team.algorithm.name}' does not fit the team: {error}") from error


def check_reference(resolved: DictConfig, team: TeamConfig) -> None:
    """KL to the start needs a reference; on a CPU verl has none of a whole model, only an adapter switched off."""
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part = resolved.policies[name].actor_rollout_ref
        if part.actor.use_kl_loss and not part.model.lora_rank and resolved.trainer.device == "cpu":
            why = "because verl keeps its reference in pinned memory"
            remedy = f"on a CPU give it an adapter (marl.policies.{name}.model.lora_rank), or no KL"
            raise MarlError(f"policy '{name}': actor.use_kl_loss of a whole model needs a GPU, {why}: {remedy}")
