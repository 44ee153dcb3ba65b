"""Checks of training settings that verl accepts, and that fail after start-up or give wrong numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.model_settings import model_folder
from marl_verl.errors import MarlError, nearest
from marl_verl.models.count import model_config, shapes
from marl_verl.team import TeamConfig

OPTIMISERS = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD")
"""Names in `torch.optim` (tests/test_platform.py compares them): importing torch takes seconds. LBFGS and Rprop have no
weight decay, which verl passes, and Muon takes matrices only."""
PRECISIONS = ("param_dtype", "reduce_dtype", "buffer_dtype")
MASKED = ("sdpa", "eager")
"""Attention implementations that separate packed rows by a mask, which transformers makes from the position ids."""
PACKED = (
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("phi3", "smollm3", "olmo2", "olmoe", "granite", "cohere", "glm", "glm4", "starcoder2", "gpt2", "gpt_neox"),
)
"""Model types whose packed rows were compared with separate ones (tests/test_packed.py)."""
SHAPE = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "num_experts", "tie_word_embeddings"),
)
"""Keys of a model's config that change the shape of its weights."""
COMPUTED = (
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rms_norm_eps", "layer_norm_eps"),
    *("hidden_act", "hidden_activation", "activation_function", "sliding_window", "use_sliding_window", "layer_types"),
    *("max_window_layers", "attention_bias", "mlp_bias", "query_pre_attn_scalar", "attn_logit_softcapping"),
    *("num_experts_per_tok", "norm_topk_prob", "residual_multiplier", "embedding_multiplier", "attention_multiplier"),
    *("final_logit_softcapping", "logit_scale", "logits_scaling"),
)
"""Keys of a model's config that change its log-probs."""
SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Keys of a model's config that change its logits after the output layer."""
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
    for past in team.opponents.values():
        part, where = resolved.policies[past.of].actor_rollout_ref, f"marl.policies.{past.of}"
        if part.model.get("lora_adapter_path"):
            what = f"'{where}.model.lora_adapter_path' is set, but opponents act with past versions of '{past.of}'"
            raise MarlError(f"{what}, which begin with its model alone: merge the adapter into the model first")
        if part.rollout.data_parallel_size > 1:
            what = f"'{where}.rollout.data_parallel_size' is {part.rollout.data_parallel_size}"
            raise MarlError(f"{what}: servers of opponents load snapshots in one shard only, set it to 1")
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part, where = resolved.policies[name].actor_rollout_ref, f"marl.policies.{name}"
        actor, rollout, attention = part.actor, part.rollout, part.model.override_config.get("attn_implementation")
        if actor.strategy not in ("fsdp", "fsdp2"):
            raise MarlError(f"'{where}.actor.strategy' must be fsdp2 or fsdp, got '{actor.strategy}'")
        check_optimiser(actor.optim, f"{where}.actor")
        check_precision(actor.fsdp_config.get("mixed_precision"), f"{where}.actor.fsdp_config")
        check_precision(part.ref.fsdp_config.get("mixed_precision"), f"{where}.ref.fsdp_config")
        if "model" not in actor.checkpoint.save_contents:
            raise MarlError(f"'{where}.actor.checkpoint.save_contents' lacks 'model', which resuming and export need")
        if actor.ulysses_sequence_parallel_size > 1 and attention not in (None, "flash_attention_2"):
            what = f"'{where}.actor.ulysses_sequence_parallel_size' is {actor.ulysses_sequence_parallel_size}"
            remedy = "install flash-attn and set model.override_config.attn_implementation=flash_attention_2"
            raise MarlError(f"{what}, which gives wrong log-probs with attention '{attention}': {remedy}")
        check_kernels(part.model, where, str(attention), resolved.trainer.device)
        check_model(part.model, where)
        check_quantisation(rollout, where)
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


def check_precision(given: DictConfig | None, where: str) -> None:
    """MarlError for a key of `mixed_precision` that verl does not read."""
    for key in map(str, given or {}):
        if key not in PRECISIONS:
            raise MarlError(f"unknown key '{where}.mixed_precision.{key}': {nearest(key, PRECISIONS)}")


def check_critic_rows(resolved: DictConfig) -> None:
    """MarlError where a critic's row, an observation and one token, may exceed its token limit of a micro-batch."""
    for name, settings in resolved.critics.items():
        check_optimiser(settings.critic.optim, "marl.critic")
        check_precision(settings.critic.fsdp.get("mixed_precision"), "marl.critic.fsdp")
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


def check_quantisation(rollout: DictConfig, where: str) -> None:
    """MarlError for a file that vLLM would look for after start-up."""
    file = rollout.quantization_config_file
    if file is not None and not Path(str(file)).expanduser().is_file():
        raise MarlError(f"'{where}.rollout.quantization_config_file' is '{file}', which is no file")
    if file is not None and rollout.quantization is None:
        raise MarlError(f"'{where}.rollout.quantization_config_file' has no effect without rollout.quantization")


def check_model(model: DictConfig, where: str) -> None:
    """MarlError for a change of a model's shape, which its servers would not have, and for code that is not installed.

    Also for names of `target_modules` that no matrix of the model has.
    """
    if changed := [key for key in model.override_config if key in SHAPE]:
        what = f"'{where}.model.override_config.{changed[0]}' changes the shape of the trained model only"
        raise MarlError(f"{what}, not that of its servers: set model.path to a model with this shape")
    if changed := [key for key in model.override_config if key in COMPUTED]:
        what = f"'{where}.model.override_config.{changed[0]}' changes the log-probs of the trained model only"
        raise MarlError(f"{what}, not those of its servers: set model.path to a model whose config.json has it")
    package = str(model.external_lib or "").partition(".")[0]
    if package and importlib.util.find_spec(package) is None:
        raise MarlError(f"'{where}.model.external_lib' is '{model.external_lib}', which is not installed")
    modules, found = model.target_modules, shapes(model_folder(str(model.path)))
    if not model.lora_rank or not found or isinstance(modules, str | None):
        return
    names = sorted({name.split(".")[-2] for name, shape in found.items() if len(shape) > 1 and "." in name})
    if unknown := [name for name in modules if str(name).split(".")[-1] not in names]:
        what = f"unknown module '{unknown[0]}' of '{where}.model.target_modules'"
        raise MarlError(f"{what}: {nearest(str(unknown[0]), names)}")
    if not modules:
        raise MarlError(f"'{where}.model.target_modules' is empty: leave it out, or name one of {', '.join(names)}")


def check_kernels(model: DictConfig, where: str, attention: str, device: str) -> None:
    """MarlError where packed rows or verl's fused kernels are known to give wrong log-probs, or to fail."""
    found = model_config(str(model.path))
    kind = str(found.get("model_type"))
    if model.use_remove_padding and found and attention in MASKED and kind not in PACKED:
        what = f"'{where}.model.use_remove_padding': models of type '{kind}' are not known to separate packed rows"
        raise MarlError(f"{what} with attention '{attention}': set {where}.model.use_remove_padding=false")
    if model.use_liger and (device == "cpu" or importlib.util.find_spec("liger_kernel") is None):
        why = "needs a GPU" if device == "cpu" else "needs the package liger-kernel"
        raise MarlError(f"'{where}.model.use_liger' {why}: set {where}.model.use_liger=false")
    if not model.use_fused_kernels:
        return
    backend, named = model.fused_kernel_options.impl_backend, f"'{where}.model.use_fused_kernels'"
    off = f"set {where}.model.use_fused_kernels=false"
    if backend not in ("torch", "triton") or (backend == "triton" and device == "cpu"):
        what = f"{named} supports fused_kernel_options.impl_backend=torch, or on a GPU triton, got '{backend}'"
        raise MarlError(f"{what}: set one of them")
    if scaled := [key for key in SCALED if found.get(key) not in (None, 1)]:
        raise MarlError(f"{named}: verl's kernels ignore '{scaled[0]}', which models of type '{kind}' have: {off}")
