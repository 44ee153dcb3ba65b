#!/usr/bin/env bash
# verl's GSM8K example with GRPO. `gsm8k.sh` trains one agent as verl does; `gsm8k.sh team` trains a solver and a
# verifier with separate policies. verl's examples/data_preprocess/gsm8k.py writes the rows. docs/from-verl.md
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
data="${DATA:-$HOME/data/gsm8k}"

team=()
if [[ "${1:-}" == team ]]; then
    shift
    team=(
        "marl.plugins=[$here/solver_verifier.py]"
        marl.workflow.name=solver-verifier
        marl.agents.solver.policy=solver
        marl.agents.verifier.policy=verifier
        +marl.policies.solver={}
        +marl.policies.verifier.rollout.prompt_length=2048   # problem and draft
    )
fi

python3 -m marl_verl.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-8B}" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    algorithm.use_kl_in_reward=False \
    trainer.critic_warmup=0 \
    trainer.logger='["console"]' \
    trainer.project_name='verl_grpo_example_gsm8k' \
    trainer.experiment_name='qwen3_8b_function_rm' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 "${team[@]}" "$@"
