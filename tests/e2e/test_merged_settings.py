"""Merged turns in real runs of several settings: the same seed gives the run of separate rows, up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_verl.testing.real import explain, rows
from tests.e2e.conftest import Finished, long, train

pytestmark = [pytest.mark.e2e, long]

POLICIES = ("holder", "asker")
STEPS, TASKS, EPISODES, ROUNDS = 3, 4, 4, 4
OPTIONS = (
    f"marl.plugins=[{Path(__file__).with_name('talk.py')}]",
    *("marl.workflow.name=talk", f"marl.workflow.options.rounds={ROUNDS}", "marl.task.test_size=4"),
    *(f"marl.sampler.options.episodes={EPISODES}", f"data.train_batch_size={TASKS}", "marl.run.seed=3"),
    *("data.max_prompt_length=192", "actor_rollout_ref.rollout.max_model_len=256"),
    *("actor_rollout_ref.rollout.temperature=1.5", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=600",  # several micro-batches an update
    *(f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}", f"trainer.save_freq={STEPS}"),
)
CASES = {
    # two updates a batch, an entropy bonus, importance weights
    "updates": (
        *("marl.algorithm.name=reinforce++", "marl.algorithm.options.loss=ppo-clip-tis"),
        *(f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS // 2}", "actor_rollout_ref.actor.entropy_coeff=0.01"),
    ),
    # adapters, whose reference is the base model, and the team's critic
    "adapters": (
        *("marl.algorithm.name=mappo", f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}"),
        *("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"),
        *("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.1"),
        "actor_rollout_ref.actor.optim.lr=1.0e-2",
    ),
}


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Finished]:
    found = {}
    for merged in (True, False):
        folder = tmp_path_factory.mktemp("runs") / f"{request.param}-{merged}"
        found[merged] = train(folder, *OPTIONS, *CASES[request.param], f"marl.run.merge_turns={merged}".lower())
        assert found[merged].code == 0, found[merged].output
    return found


def test_conversations_are_few_sequences(runs: dict[bool, Finished]) -> None:
    for policy in POLICIES:
        lines = {merged: run.lines(f"policy/{policy}/merge/rows_after") for merged, run in runs.items()}
        for line, plain in zip(lines[True], lines[False], strict=True):
            before, after, sampled, trained = (
                [each[f"policy/{policy}/{name}"] for each in (line, plain)]
                for name in ("merge/rows_before", "merge/rows_after", "tokens/sampled", "tokens/trained")
            )
            assert before == [TASKS * EPISODES * ROUNDS] * 2 == [before[0], after[1]]
            assert sampled[0] == sampled[1]
            # conversations of one task may begin alike, and one that was cut off by its length has another token there
            assert TASKS * EPISODES / 2 <= after[0] <= TASKS * EPISODES * 2
            assert trained[0] < 0.75 * trained[1]


def test_the_run_is_that_of_separate_rows(runs: dict[bool, Finished]) -> None:
    """The updates differ by rounding, which changes no sampled token here. (`ppo_kl` is a mean over micro-batches.)"""
    for step in range(1, STEPS + 1):
        one, other = (rows(runs[merged].folder, step) for merged in (True, False))
        assert [each["obs"] for each in one] == [each["obs"] for each in other]
        assert explain(runs[True].folder, step) == explain(runs[False].folder, step)
    for policy in POLICIES:
        for name in ("grad_norm", "loss", "pg_loss", "entropy"):
            metric = f"policy/{policy}/{name}"
            first, second = ([line[metric] for line in runs[merged].lines(metric)] for merged in (True, False))
            assert first == pytest.approx(second, rel=2e-4), metric
            if name == "grad_norm":
                assert min(first) > 1e-3
