"""The key `teacher` of a policy's section: another policy scores the tokens that it samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt
from marl_verl_scripts.verl_script import ADDRESS, Script

from marl_verl.config.hardware import has_accelerator
from marl_verl.errors import MarlError, check_known
from marl_verl.options import Positive, build
from marl_verl.team import PolicyConfig

Above = Annotated[float, Gt(0)]
LOSS_MODES = {"reverse-kl": "k1", "forward-topk": "forward_kl_topk", "k2": "k2", "k3": "k3"}
"""Form -> verl's `loss_mode`."""
SAME = {"mse": "k2", "low_var_kl": "k3"}  # verl's names of one loss
TEACHER, DISTILLATION = "teacher", "distillation"
LOSS, MODEL = f"{DISTILLATION}.distillation_loss", f"{DISTILLATION}.teacher_models.teacher_model"


@dataclass(frozen=True)
class Teacher:
    """A policy whose log-probs of what another one samples are a part of that one's loss."""

    policy: str  # a frozen policy, or one with an endpoint that returns log-probs of prompts, as vLLM's does
    form: Literal["reverse-kl", "forward-topk", "k2", "k3"] = "reverse-kl"  # reverse-kl is a reward of each token
    weight: Above = 1.0  # of the teacher's loss, beside that of the rewards
    reward: bool = True  # false: no rewards, the teacher's loss alone
    topk: Positive = 32  # of form forward-topk: number of the teacher's likeliest tokens
    clamp: Above | None = None  # a token's loss is at most so far from 0; null: no limit

    @property
    def top(self) -> int:
        """Number of likeliest tokens that the teacher scores at each position; 0: the sampled token alone."""
        return self.topk if self.form == "forward-topk" else 0

    def described(self) -> str:
        share = f"weight {self.weight:g}" if self.reward else "instead of the reward"
        return f"teacher {self.policy} ({self.form}, {share})"

    def problems(self, student: PolicyConfig, policies: Mapping[str, PolicyConfig]) -> Iterator[str]:
        """What is wrong with it as the teacher of a policy."""
        check_known("teacher", self.policy, policies)
        teacher, label = policies[self.policy], f"teacher '{self.policy}' of policy '{student.name}'"
        actor = student.override.get("actor") or {}
        if student.frozen:
            yield f"policy '{student.name}' has a teacher, but is frozen: remove one of the two"
        if teacher.trained:
            yield f"{label} is trained: set marl.policies.{self.policy}.frozen=true"
        if teacher.script is not None:
            yield f"{label} is a script, which has no log-probs: name a policy with a model"
        for key in () if self.reward else ("use_kl_loss", "entropy_coeff"):
            if actor.get(key):
                where = f"marl.policies.{student.name}"
                yield f"'{where}.actor.{key}' has no effect without the reward: remove it, or {where}.teacher.reward"

    def serve(self, student: str, policies: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the servers of the teacher read whole rows of a student, of which vLLM samples one token more, and return
        enough log-probs. `policies` are the resolved sections."""
        if self.policy in policies:  # not an endpoint
            mine, rollout = (policies[name]["actor_rollout_ref"]["rollout"] for name in (student, self.policy))
            row, longest = (int(part["prompt_length"]) + int(part["response_length"]) for part in (mine, rollout))
            rollout["max_model_len"] = max(rollout["max_model_len"] or longest, row + 1)
            served = rollout["engine_kwargs"].get("vllm") or {}
            most = max(self.top, served.get("max_logprobs") or 0)
            rollout["engine_kwargs"]["vllm"] = {**served, "max_logprobs": most}

    def teaching(self, student: Any) -> Any:
        """Its part of the update of a `LearningPolicy`."""
        from marl_verl_teacher.teaching import Teaching  # with verl

        return Teaching(self, student)


def settings_of(section: Any, where: str) -> Teacher:
    """The teacher of a policy's section. MarlError: an invalid key or value."""
    return build(Teacher, section, where)


def translate(script: Script) -> None:
    """verl's keys of distillation: its teacher is a frozen policy, from which all others learn, on GPUs of its own."""

    def take(key: str) -> Any:
        value = script.get(key)
        script.values.pop(key, None)
        return value

    mode, gradient = take(f"{LOSS}.loss_mode"), take(f"{LOSS}.use_policy_gradient")
    forms = [
        form for form, name in LOSS_MODES.items() if (name, form == "reverse-kl") == (SAME.get(mode, mode), gradient)
    ]
    if not forms:
        problem = f"'{LOSS}.loss_mode={mode}' with use_policy_gradient={str(gradient).lower()} is no form of a teacher"
        raise MarlError(f"{problem}: use k1 with true, or k2, k3 or forward_kl_topk with false")
    keys = {"topk": "topk", "clamp": "loss_max_clamp", "weight": "distillation_loss_coef", "reward": "use_task_rewards"}
    teacher = {"policy": TEACHER, "form": forms[0], **{key: take(f"{LOSS}.{name}") for key, name in keys.items()}}
    for name in script.recipe.marl.policies:
        script.put(f"marl.policies.{name}.teacher", teacher)
    prefix = f"{MODEL}.inference."
    inference = [key for key in script.values if key.startswith(prefix)]
    rollout = {key.removeprefix(prefix): script.values.pop(key) for key in inference}
    policy = {"frozen": True, "model": {"path": take(f"{MODEL}.model_path")}, "rollout": rollout}
    gpus, nodes = take(f"{DISTILLATION}.n_gpus_per_node"), take(f"{DISTILLATION}.nnodes")
    if has_accelerator() or ADDRESS in script.values:
        script.put(f"marl.pools.{TEACHER}", {"gpus": gpus, "nodes": nodes})
        policy["pool"] = TEACHER
        rollout.setdefault("tensor_model_parallel_size", script.get(f"{prefix}tensor_model_parallel_size"))
    script.put(f"marl.policies.{TEACHER}", policy)
