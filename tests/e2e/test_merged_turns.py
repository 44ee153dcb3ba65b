"""Conversations of several turns in real runs: trained as one sequence, they give the run of separate rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_verl.testing.real import rows
from tests.e2e.conftest import Finished, long, train

pytestmark = [pytest.mark.e2e, long]

STEPS, TASKS, EPISODES, ROUNDS = 3, 4, 4, 4
OPTIONS = (
    f"marl.plugins=[{Path(__file__).with_name('talk.py')}]",
    *("marl.workflow.name=talk", f"marl.workflow.options.rounds={ROUNDS}", "marl.task.test_size=4"),
    *("marl.agents.holder.reward=varied", "marl.agents.asker.reward=varied"),
    *("marl.algorithm.name=grpo", f"marl.sampler.options.episodes={EPISODES}"),
    *(f"data.train_batch_size={TASKS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}"),
    *("data.max_prompt_length=192", "actor_rollout_ref.rollout.max_model_len=256", "marl.run.seed=3"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    *(f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}", f"trainer.save_freq={STEPS}"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Finished]:
    found = {}
    for merged in (True, False):
        folder = tmp_path_factory.mktemp("runs") / f"merged-{merged}"
        found[merged] = train(folder, *OPTIONS, f"marl.run.merge_turns={merged}".lower())
        assert found[merged].code == 0, found[merged].output
    return found


def test_every_conversation_is_one_sequence(runs: dict[bool, Finished]) -> None:
    for policy in ("holder", "asker"):
        for line in runs[True].lines(f"policy/{policy}/merge/rows_after"):
            before, after = (line[f"policy/{policy}/merge/rows_{when}"] for when in ("before", "after"))
            assert before == TASKS * EPISODES * ROUNDS
            # conversations of one task may begin alike, and one that ends early is cut off by its length
            assert TASKS * EPISODES / 2 <= after <= TASKS * EPISODES * 2, line
            assert line[f"policy/{policy}/merge/mismatches"] == 0


def test_the_run_is_that_of_separate_rows(runs: dict[bool, Finished]) -> None:
    """The first step is sampled from the same weights; its update differs by rounding only."""
    one, other = (rows(runs[merged].folder, 1) for merged in (True, False))
    assert [each["obs"] for each in one] == [each["obs"] for each in other]
    for policy in ("holder", "asker"):
        for name in ("grad_norm", "pg_loss", "ppo_kl", "entropy"):
            metric = f"policy/{policy}/{name}"
            first, second = (runs[merged].lines(metric)[0][metric] for merged in (True, False))
            assert first == pytest.approx(second, rel=1e-3, abs=1e-5), metric
            assert first > 0 or name != "grad_norm"
    assert all(policy["weight_change"] > 0 for policy in runs[True].summary["policies"].values())
