"""Estimate of the memory that a run needs on a GPU or in one process, from its config and its models' configs.

A rank is one of the n GPUs that share a policy, or one copy of its weights (`fsdp_config.fsdp_size`). P are its model's
parameters, D the trained ones (all, or those of the adapter), w bytes a parameter (`fsdp_config.model_dtype`), a bytes
an activation (`mixed_precision.param_dtype`), T tokens of a micro-batch, L layers, h hidden size, m that of the MLP, V
vocabulary, c = 1 with gradient checkpointing, else L. Bytes on each rank:

    weights, gradients, optimiser   w P / n, w D / n, 2 w D / n      ZeRO, arXiv 1910.02054, section 3; Adam's moments
    gathered layers                 a (2 (P - ends) / L + ends)      FSDP, arXiv 2304.11277, section 3: two layers and
                                                                     ends; a P without `reshard_after_forward`
    activations                     a T (L h + c (8 h + 4 m))        a checkpoint of each layer (arXiv 1604.06174), and
                                                                     what autograd saves in a layer of Llama
    logits                          6 T V on a GPU if a = 2          padded rows: 5 T V, 26 T V with an entropy
                                    12 min(T, 512) V, fused kernels  20 min(T, 512) V with an entropy
                                    16 T V otherwise, 8.5 if a = 2   and 12 T V with an entropy
    the optimiser's step            w D / n, in place of the last three: Adam's temporary values on a GPU

The bytes of logits and of the step were measured, on one H200 without flash-attn (docs/gpu.md) and on a CPU.

Policies are updated one after another, so that only the largest update counts, with what is offloaded between updates.
Servers sleep meanwhile, or have their `gpu_memory_utilization`, which includes a CUDA context. When sleeping ones are
awake again, each has this, or while it gets new weights these and verl's bucket, beside what is not offloaded. What is
not known is left out: the estimate is rather too small. No weights are loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from omegaconf import DictConfig

from marl_verl.config.hardware import on_gpu, ray_address
from marl_verl.config.placement import Pool, pools_of, server_gpus
from marl_verl.config.stored import is_local, updates_per_batch
from marl_verl.errors import MarlError
from marl_verl.models.count import model_config, parameters, shapes
from marl_verl.models.sources import ModelToMake
from marl_verl.run.run_dir import gpus
from marl_verl.team import TeamConfig

# Layers that "all-linear" excludes, as in peft: embeddings, which are not linear layers, and the output layer.
ENDS = ("embed_tokens", "wte", "lm_head", "embed_out")
GIB = 1 << 30
ASSUMED_GPU = 80 * GIB
PROCESS = 0.8 * GIB  # of a run in one process, without its models
CONTEXT = 1.0 * GIB  # of each process on a GPU: CUDA, NCCL, graphs
OFFLOADS = {"weights": "param_offload", "optimiser": "optimizer_offload"}
"""What is in memory also while other policies are updated -> the option that moves it to host memory."""
FUSED = 512  # rows of logits that verl's fused kernels compute at a time
LARGEST = 3  # parts in a message
REMEDY = (
    "use more GPUs, lower actor.ppo_max_token_len_per_gpu, or set model.lora_rank or actor.fsdp_config.model_dtype=bf16"
)
AWAKE = "lower rollout.gpu_memory_utilization, or set actor.fsdp_config.param_offload and optimizer_offload"


@dataclass(frozen=True)
class Model:
    """The sizes of a model; `ends` are the parameters of embeddings and output layer, `adapter` is 0 without one."""

    parameters: int
    adapter: int
    ends: int
    layers: int
    hidden: int
    mlp: int
    vocabulary: int


@dataclass(frozen=True)
class Need:
    """What one GPU, or process, needs at one time, in bytes."""

    where: str
    parts: Mapping[str, float]
    room: float
    real: bool = True  # the device is one of this machine; otherwise the need is only printed
    remedy: str = REMEDY

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda part: -part[1])[:LARGEST]
        fit = "; does not fit" if self.total > self.room else ""
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
        parts += ", ..." * (len(self.parts) > LARGEST)
        return f"{self.where}: {self.total / GIB:.1f} of {self.room / GIB:.0f} GiB ({parts}){fit}"

    def check(self) -> None:
        """MarlError where the need is certainly more than this machine has."""
        if self.real and self.total > self.room:
            raise MarlError(f"memory of {self}: {self.remedy}")


def training(
    model: Model, part: DictConfig, fsdp: DictConfig, ranks: int, tokens: float, gpu: bool
) -> dict[str, float]:
    """Bytes on each rank while a model is trained; `part` is an `actor_rollout_ref` or `critic` section."""
    kept = 2 if fsdp.model_dtype in ("bf16", "bfloat16", "fp16", "float16") else 4
    mixed = (fsdp.get("mixed_precision") or {}).get("param_dtype", "bf16")
    width = 4 if mixed in ("fp32", "float32") else 2
    layers = 1 if part.model.enable_gradient_checkpointing else model.layers
    copy = fsdp.get("fsdp_size") or -1
    ranks = min(copy, ranks) if copy > 0 else ranks
    state, trained = (0 if fsdp.offload_policy else kept / ranks), model.adapter or model.parameters
    need = {
        "weights": state * model.parameters,
        "gradients": state * trained,
        "optimiser": 2 * state * trained,
    }
    update = {
        "activations": width * tokens * (model.layers * model.hidden + layers * (8 * model.hidden + 4 * model.mlp)),
    }
    if gpu:
        gathered = 2 * (model.parameters - model.ends) / model.layers + model.ends
        update["gathered layers"] = width * (gathered if fsdp.reshard_after_forward else model.parameters)
    actor = part.get("actor")
    if actor is not None:  # a critic has one value a token
        entropy = (actor.calculate_entropy or actor.entropy_coeff) and not fsdp.entropy_checkpointing
        if gpu and part.model.use_fused_kernels:
            update["logits"] = min(tokens, FUSED) * model.vocabulary * (20 if entropy else 12)
        elif gpu and width == 2:
            padded = 26 if entropy else 5
            update["logits"] = tokens * model.vocabulary * (6 if part.model.use_remove_padding else padded)
        elif not part.model.use_fused_kernels:
            update["logits"] = tokens * model.vocabulary * ((8.5 if width == 2 else 16) + (12 if entropy else 0))
    step = {"the optimiser's step": state * trained} if gpu else {}
    return need | max(update, step, key=lambda parts: sum(parts.values()))


def estimate(
    resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake], rows: Mapping[str, int]
) -> list[Need]:
    """The needs of a run with the policy's `rows` of a batch; models whose config cannot be read are left out."""
    local, gpu, memory = is_local(resolved), on_gpu(resolved), gpu_bytes()
    if not gpu and not local:
        return []
    parts = {name: section.actor_rollout_ref for name, section in resolved.policies.items()}
    models = {name: sizes(part.model, made.get(name)) for name, part in parts.items()}
    known = {name: model for name, model in models.items() if model is not None}
    here = not gpu or (memory is not None and ray_address(resolved) is None)
    room, needs = (memory or ASSUMED_GPU) if gpu else float(psutil.virtual_memory().available), []
    for pool in [Pool("the run", 1, 1, tuple(known), False)] if local else pools_of(resolved, team):
        contexts = CONTEXT * (pool.processes or len(pool.policies))  # of training workers, and as many of servers
        need: dict[str, float] = {"contexts": 2 * contexts} if gpu else {"process": PROCESS}
        awake: dict[str, float] = {}  # the needs of servers that sleep during updates
        updates: list[dict[str, float]] = [{}]  # the needs of one learner's update
        for name in [name for name in pool.policies if name in known and (local or team.alike(name)[0] == name)]:
            part, model, rollout = parts[name], known[name], parts[name].rollout
            served = (4 if rollout.dtype in ("float32", "fp32") else 2) * model.parameters
            if not local:
                sleeps = rollout.free_cache_engine and rollout.get("enable_sleep_mode", True)
                bucket = (rollout.checkpoint_engine.update_weights_bucket_megabytes or 0) << 20
                synced = served / server_gpus(rollout) + bucket if team.policies[name].trained else 0
                share = max(float(rollout.gpu_memory_utilization) * room, synced)
                (awake if sleeps else need)[f"share of {name}'s server"] = share
            learners: dict[str, tuple[DictConfig, dict[str, float]]] = {}
            if team.policies[name].trained:
                longest = int(rollout.prompt_length) + int(rollout.response_length)
                most = rows.get(name, 0) * longest / updates_per_batch(resolved, part.actor) / pool.size
                tokens = min(_tokens(part, longest), most or float("inf"))
                fsdp = part.actor.fsdp_config
                learners[name] = fsdp, training(model, part, fsdp, pool.size, tokens, gpu)
            elif local:
                need[f"weights of {name}"] = served
            for critic in [critic.critic for critic in resolved.critics.values() if critic.policy == name]:
                sized = sizes(critic.model) or model
                learners[f"{name}'s critic"] = critic.fsdp, training(sized, critic, critic.fsdp, pool.size, 0, gpu)
            for learner, (fsdp, labels) in learners.items():
                kept = [label for label, option in OFFLOADS.items() if not (gpu and fsdp[option])]
                need |= {f"{label} of {learner}": labels.pop(label) for label in kept}
                updates.append({f"{label} of {learner}": size for label, size in labels.items()})
        device = ("the GPU" if gpu else "this process") if local else f"each GPU of {pool.name}"
        if awake:
            beside = need | {"contexts": contexts} | awake
            needs.append(Need(f"{device}, servers awake", beside, room, here, AWAKE))
        need |= sorted(updates, key=lambda update: sum(update.values()))[-1]
        needs.append(Need(device, need, room, here))
    return needs


def checked(
    resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake], rows: Mapping[str, int]
) -> list[Need]:
    """`estimate`. MarlError where a need is certainly more than this machine has."""
    needs = estimate(resolved, team, made, rows)
    for need in needs:
        need.check()
    return needs


def _tokens(part: DictConfig, longest: int) -> float:
    """The tokens of the largest micro-batch on a rank: its limit, else one row of the full length. A micro-batch of
    several rows has as many tokens as were sampled, which is not known."""
    actor = part.actor
    if actor.use_dynamic_bsz:
        return float(actor.ppo_max_token_len_per_gpu)
    return longest / actor.ulysses_sequence_parallel_size


def gpu_bytes() -> float | None:
    """The memory of this machine's smallest GPU, from NVIDIA's driver; None without one."""
    sizes = [size.removesuffix(" MiB") for size in (gpu["memory.total"] for gpu in gpus())]
    return min((float(size) * (1 << 20) for size in sizes if size.isdigit()), default=None)


def sizes(model: DictConfig, made: ModelToMake | None = None) -> Model | None:
    """The sizes of a model from a `model` section; None where its config cannot be read. Without its weights, those of
    a decoder with a gated MLP."""
    config = model_config(str(model.path)) if made is None else made.config()
    tensors = shapes(Path(str(model.path)).expanduser()) if made is None else {}
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
        mlp = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    except KeyError:
        return None
    ends = ["embed_tokens"] if config.get("tie_word_embeddings") else ["embed_tokens", "lm_head"]
    if not tensors:
        head = int(config.get("head_dim") or hidden // heads)
        queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
        layer = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
        layer["o_proj"] = (hidden, queries)
        for number in range(experts):
            layer |= {f"{number}.{name}_proj": (mlp, hidden) for name in ("gate", "up", "down")}
        tensors = {f"{number}.{name}.weight": shape for number in range(layers) for name, shape in layer.items()}
        tensors |= {f"{name}.weight": (vocabulary, hidden) for name in ends}
    return Model(
        parameters=parameters(tensors),
        adapter=adapter_parameters(tensors, int(model.lora_rank), model.target_modules) if model.lora_rank else 0,
        ends=len(ends) * vocabulary * hidden,
        layers=layers,
        hidden=hidden,
        mlp=mlp * int(config.get("num_experts_per_tok") or 1),
        vocabulary=vocabulary,
    )


def adapter_parameters(tensors: Mapping[str, tuple[int, ...]], rank: int, targets: str | Sequence[str]) -> int:
    """Parameters of an adapter: each W [out, in] has B [out, rank] and A [rank, in] (LoRA, arXiv 2106.09685, section
    4.1). `targets`: "all-linear", or the last components of layer names."""
    named = [targets] if isinstance(targets, str) else targets
    total = 0
    for name, shape in tensors.items():
        layer = name.removesuffix(".weight").rpartition(".")[2]
        if len(shape) == 2 and (layer not in ENDS if targets == "all-linear" else layer in named):
            total += rank * sum(shape)
    return total
