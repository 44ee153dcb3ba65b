"""Programs of their own as agents, through the real stack: their requests are trained with the servers' tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_verl.testing.real import command, rows
from tests.e2e.conftest import long, train

pytestmark = [pytest.mark.e2e, long]

STEPS, TASKS, EPISODES = 2, 4, 3


def test_programs_are_trained(tmp_path: Path) -> None:
    done = train(
        tmp_path / "run",
        f"marl.plugins=[{Path(__file__).with_name('outside.py')}]",
        *("marl.workflow.name=programs", "marl.task.name=inventory-by-programs", "marl.task.test_size=4"),
        *("marl.agents.holder.reward=returned", "marl.agents.asker.reward=returned"),
        *(
            f"marl.sampler.options.episodes={EPISODES}",
            f"data.train_batch_size={TASKS}",
            "marl.run.journal_tokens=true",
        ),
        f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
        *(f"trainer.total_training_steps={STEPS}", "trainer.test_freq=2", "trainer.save_freq=2"),
    )
    assert done.code == 0, done.output
    assert all(policy["weight_change"] > 0 for policy in done.summary["policies"].values())
    for step in range(1, STEPS + 1):
        found = rows(done.folder, step)
        assert len(found) == TASKS * EPISODES * 2
        assert {each["rewards"]["role"] for each in found if each["agent"] == "asker"} == {0.25}
        text = (done.folder / "journals" / f"step_{step:05d}.jsonl").read_text()
        acts = [record["action"] for line in text.splitlines()[1:] for record in json.loads(line)["journal"]["records"]]
        assert len(acts) == len(found)
        assert all(act["response_ids"] and len(act["log_probs"]) == len(act["response_ids"]) for act in acts)
        assert {each["length"] for each in found} <= {len(act["response_ids"]) for act in acts}
    listed = command("replay", "--run", str(done.folder))
    assert "s2t00000_0" in listed
