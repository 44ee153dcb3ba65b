"""Checks of training settings that verl accepts, and that fail long after the start or give wrong numbers."""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.backend import is_local
from marl_verl.errors import check, nearest
from marl_verl.models.count import model_config, model_folder, shapes
from marl_verl.team import TeamConfig

MASKED = ("sdpa", "eager", "flex_attention")
"""Attention implementations that separate packed rows by a mask, which transformers makes from the position ids."""
PACKED = (
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("phi3", "smollm3", "olmo2", "olmoe", "granite", "cohere", "glm", "glm4", "starcoder2", "gpt2", "gpt_neox"),
)
"""Model types whose packed rows were compared with separate ones (tests/test_packed.py)."""
SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Keys of a model's config that change its logits after the output layer."""


@check
def check_engine(resolved: DictConfig, team: TeamConfig) -> Iterator[str]:
    """MarlError for training settings that verl accepts, and that fail after start-up or give wrong numbers."""
    local = is_local(resolved)
    for past in team.past.values():
        part, where = resolved.policies[past.of].actor_rollout_ref, f"marl.policies.{past.of}"
        if part.model.get("lora_adapter_path") or part.rollout.data_parallel_size > 1:
            problem = f"agents act with past versions of '{past.of}', which are whole models in one shard"
            yield f"{problem}: leave out {where}.model.lora_adapter_path and .rollout.data_parallel_size"
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part, where = resolved.policies[name].actor_rollout_ref, f"marl.policies.{name}"
        actor, rollout, attention = part.actor, part.rollout, part.model.override_config.get("attn_implementation")
        width = actor.ulysses_sequence_parallel_size
        if actor.use_kl_loss and not (part.model.lora_rank or local or resolved.trainer.device != "cpu"):
            remedy = f"on a CPU set marl.run.backend=local, {where}.model.lora_rank, or actor.use_kl_loss=false"
            yield f"policy '{name}': actor.use_kl_loss needs a GPU, or an adapter: {remedy}"
        if "model" not in actor.checkpoint.save_contents:
            yield f"'{where}.actor.checkpoint.save_contents' lacks 'model', which resuming and export need"
        if width > 1 and attention not in (None, "flash_attention_2"):
            remedy = "install flash-attn and set model.override_config.attn_implementation=flash_attention_2"
            problem = f"'{where}.actor.ulysses_sequence_parallel_size' is {width}, which gives wrong log-probs with"
            yield f"{problem} attention '{attention}': {remedy}"
        yield from kernel_problems(part.model, where, str(attention))
        yield from _adapter_problems(part.model, where)
        if actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz:
            yield f"{where}: actor.use_dynamic_bsz and rollout.log_prob_use_dynamic_bsz must be equal"
        longest = int(rollout.prompt_length) + int(rollout.response_length)
        for key in ("actor.ppo", "rollout.log_prob"):
            limit = OmegaConf.select(part, f"{key}_max_token_len_per_gpu") * width
            if actor.use_dynamic_bsz and limit < longest:
                row = f"a row may have {longest} tokens (prompt + response)"
                yield f"'{where}.{key}_max_token_len_per_gpu' is {limit}, but {row}: raise it"


@check
def check_critic_rows(resolved: DictConfig) -> Iterator[str]:
    """MarlError where a critic's row, an observation and one token, may exceed its token limit of a micro-batch."""
    for settings in resolved.critics.values():
        critic, prompt = settings.critic, int(settings.max_prompt_length)
        if settings.scope == "policy":
            prompt = int(resolved.policies[settings.policy].actor_rollout_ref.rollout.prompt_length)
        limit = critic.ppo_max_token_len_per_gpu * critic.fsdp.ulysses_sequence_parallel_size
        if critic.use_dynamic_bsz and limit < prompt + 1:
            problem = f"'marl.critic.ppo_max_token_len_per_gpu' is {limit}, but an observation may have {prompt} tokens"
            yield f"{problem} and one more: raise it, or lower marl.critic.max_prompt_length"
        attention = critic.model.override_config.get("attn_implementation")
        yield from kernel_problems(critic.model, "marl.critic", str(attention))


def _adapter_problems(model: DictConfig, where: str) -> Iterator[str]:
    """Names of `target_modules` that no matrix of the model has: peft ignores them beside others."""
    modules, matrices = model.target_modules, shapes(model_folder(str(model.path)))
    if not model.lora_rank or not matrices or isinstance(modules, str | None):
        return
    names = sorted({name.split(".")[-2] for name, shape in matrices.items() if len(shape) > 1 and "." in name})
    unknown = [str(name) for name in modules if str(name).split(".")[-1] not in names]
    if unknown or not modules:
        problem = f"unknown module '{unknown[0]}' of" if unknown else "there is no module in"
        yield f"{problem} '{where}.model.target_modules': {nearest(''.join(unknown[:1]), names)}"


def kernel_problems(model: DictConfig, where: str, attention: str) -> Iterator[str]:
    """Where packed rows or fused kernels are known to give wrong log-probs."""
    config = model_config(str(model.path))
    kind = str(config.get("model_type"))
    if model.use_remove_padding and config and attention in MASKED and kind not in PACKED:
        problem = f"'{where}.model.use_remove_padding': models of type '{kind}' are not known to separate packed rows"
        yield f"{problem} with attention '{attention}': set {where}.model.use_remove_padding=false"
    if model.use_fused_kernels and (scaled := [key for key in SCALED if config.get(key) not in (None, 1)]):
        problem = f"'{where}.model.use_fused_kernels': verl's kernels ignore '{scaled[0]}' of models of type '{kind}'"
        yield f"{problem}: set {where}.model.use_fused_kernels=false"


@check
def check_lengths(resolved: DictConfig) -> Iterator[str]:
    """MarlError where prompt and response exceed `rollout.max_model_len`."""
    for name, section in resolved.policies.items():
        rollout, where = section.actor_rollout_ref.rollout, f"marl.policies.{name}.rollout.max_model_len"
        prompt, response, limit = int(rollout.prompt_length), int(rollout.response_length), rollout.max_model_len
        if limit is not None and limit < prompt + response:
            row = f"prompt {prompt} + response {response} = {prompt + response} tokens (data.max_prompt_length, "
            yield f"'{where}' is {limit}, but a turn may have {row}data.max_response_length): raise it"
