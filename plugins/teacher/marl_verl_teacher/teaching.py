"""The part of a teacher in the update of a policy, the student, with verl's losses.

The teacher q reads the rows that are learnt, between sampling and update. The loss is L_reward + weight L_teacher, or
L_teacher alone, which aggregates over tokens as L_reward does (`actor.loss_agg_mode`) the loss of each token t:

    reverse-kl     -min(r_t A_t, clip(r_t, 0.8, 1.2) A_t)      A_t = log q_t - log pi_t, a number without gradient
                                                               r_t = pi_t / pi_old_t; where A_t < 0 at most -3 A_t
    k2, k3         1/2 d_t^2, min(10, exp(d_t) - d_t - 1)      d_t = log q_t - log pi_t, with gradient
    forward-topk   max(0, sum_v q(v) (log q(v) - log pi(v)))   v: the k likeliest tokens of q at t, with gradient

Sources: Agarwal et al. 2024, arXiv 2306.13649, algorithm 1 (GKD); Thinking Machines Lab 2025, "On-policy distillation"
(reverse-kl, a reward of each token); k2 and k3: Schulman 2020, "Approximating KL divergence".
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from verl.trainer.distillation import distillation_ppo_loss
from verl.utils import hf_tokenizer
from verl.utils.metric import Metric
from verl.workers.config import DistillationConfig, DistillationLossConfig

from marl_verl.backend.learning.batches import jagged, of_responses, rows_of_nested
from marl_verl.backend.learning.policy import WEIGHTS
from marl_verl.backend.protocol import Rows, Runtime
from marl_verl.errors import MarlError
from marl_verl_teacher.reading import read, same_tokens
from marl_verl_teacher.teacher import LOSS_MODES, Teacher

FIELDS = ("teacher_logprobs", "teacher_ids")  # of a row of n tokens: [n, k], each at the token before it


class Teaching:
    """A student's teacher in a run; `student` is the `LearningPolicy`."""

    fields = FIELDS  # what verl's update of the student reads besides, with `options`
    runtime: Runtime

    def __init__(self, settings: Teacher, student: Any) -> None:
        self.settings, self.student = settings, student
        self.shares = not settings.top  # whether rows may share prefixes: likeliest tokens need the logits of all
        alone = bool(settings.top) and not settings.reward
        self.options = {"distillation_use_topk": bool(settings.top), "distillation_only": alone}

    def begin(self, runtimes: Mapping[str, Runtime], config: DictConfig) -> None:
        """Find the teacher among the policies of a run. MarlError if it cannot teach the student."""
        name = self.settings.policy
        self.runtime, student = runtimes[name], config.policies[self.student.name].actor_rollout_ref.model
        if self.student.numbered:  # verl would take the numbers for weights of the teacher's loss
            raise MarlError(f"policy '{self.student.name}' has a teacher and learns from others' rows: remove either")
        if (endpoint := self.runtime.policy.endpoint) is not None:
            same, whose = same_tokens(name, endpoint, tokenizer_of(student)), f"'{endpoint.model}' at {endpoint.url}"
        else:
            teacher = config.policies[name].actor_rollout_ref.model
            same, whose = teacher.path == student.path, f"'{teacher.path}'"
            same = same or tokenizer_of(student).get_vocab() == tokenizer_of(teacher).get_vocab()
        if not same:
            problem = f"teacher '{name}' of policy '{self.student.name}' has another vocabulary"
            raise MarlError(f"{problem}, that of {whose}: it must be a model of the same family as '{student.path}'")

    def loss(self, actor: Any) -> Any:
        settings = self.settings
        loss = DistillationLossConfig(
            loss_mode=LOSS_MODES[settings.form],
            use_policy_gradient=settings.form == "reverse-kl",
            use_task_rewards=settings.reward,
            distillation_loss_coef=settings.weight,
            topk=settings.topk,
            loss_max_clamp=settings.clamp,
            log_prob_min_clamp=None,
        )
        return partial(taught_loss, config=actor, distillation_config=DistillationConfig(distillation_loss=loss))

    def score(self, batch: Rows) -> dict[str, float]:
        """Put `FIELDS` into rows. Returns `reverse_kl`, the mean of log pi - log q over the sampled tokens, under the
        student that sampled them, in nats; not of form forward-topk, in which the sampled tokens have no score."""
        store, top = self.student.store, self.settings.top
        data = store.get(batch.keys, ["input_ids", "response_mask", "rollout_log_probs"])
        log_probs, ids = zip(*read(self.runtime, rows_of_nested(data["input_ids"]), top), strict=True)
        store.put(batch.keys, dict(zip(FIELDS, (log_probs, ids), strict=True)))
        mask, sampled = data["response_mask"], data["rollout_log_probs"].values()
        if top or len(sampled) < len(mask.values()):  # `rollout.calculate_log_probs` is off
            return {}
        gaps = sampled - of_responses(jagged(log_probs), mask).values()[:, 0]
        return {"reverse_kl": float(gaps[mask.values().bool()].mean())}


def taught_loss(data: Any, model_output: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """verl's loss, also with importance weights, which it expects padded, and of padding rows alone, of whose tokens it
    would look for the least loss."""
    if model_output is None:  # of logits, for the likeliest tokens
        return distillation_ppo_loss(data=data, **options)
    data, mask = data.copy(), data["response_mask"]
    if WEIGHTS in data:
        data[WEIGHTS] = data[WEIGHTS].to_padded_tensor(0.0)
    padding = not mask.values().any()
    if padding:
        data["response_mask"] = torch.ones_like(mask)
    loss, metrics = distillation_ppo_loss(data=data, model_output=model_output, **options)
    if not padding:
        return loss, metrics
    zeros = {name: Metric(m.aggregation, 0.0) if isinstance(m, Metric) else 0.0 for name, m in metrics.items()}
    return 0.0 * loss, zeros


def tokenizer_of(model: Any) -> Any:
    return hf_tokenizer(str(model.tokenizer_path or model.path), trust_remote_code=bool(model.trust_remote_code))
