"""A loss of its own and importance sampling in a real run: MARS2+'s GSPO, on rows that the real servers sampled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Finished, long, train

pytestmark = [pytest.mark.e2e, long]  # each update of verl's is tested in tests/test_losses.py, a run in test_mars2.py


@pytest.fixture(scope="module")
def mars2_plus(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "mars2-plus"
    done = train(
        folder,
        "marl.algorithm.name=mars2-plus",
        "marl.algorithm.options.overlong={L: 3, C: 2}",
        "marl.task.test_size=20",
        "trainer.total_training_steps=4",
        "trainer.save_freq=4",
        "trainer.test_freq=4",
    )
    assert done.code == 0, done.output
    return done


def test_every_policy_learned_with_weights_applied(mars2_plus: Finished) -> None:
    for policy in ("holder", "asker"):
        assert mars2_plus.summary["policies"][policy]["weight_change"] > 1e-4
        for line in mars2_plus.lines(f"policy/{policy}/grad_norm"):
            # servers and trainer hold the same weights: pi_old / pi_rollout is 1 up to the seventh digit
            assert line[f"policy/{policy}/rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-3)
            assert {f"policy/{policy}/{name}" for name in ("ppo_kl", "entropy", "pg_loss")} <= set(line)


def test_the_config_of_every_policy_has_the_loss(mars2_plus: Finished) -> None:
    config = yaml.safe_load((mars2_plus.folder / "config.yaml").read_text())
    for policy in config["policies"].values():
        assert policy["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] == "gspo"
    assert config["algorithm"]["rollout_correction"]["rollout_is"] == "token"


def test_the_penalty_shows_in_the_derivation(mars2_plus: Finished) -> None:
    records = explained(mars2_plus.folder, 4)
    assert all(list(record["group"]) == ["uid"] for record in records)
    long = [record for record in records if record["agent"] == "holder"]
    for record in long:
        steps = {each["name"]: each["value"] for each in record["transforms"]}
        assert steps["overlong"] == record["return"]
    assert any(each["return"] < each["reward"] for each in long)


def explained(folder: Path, step: int) -> list[dict]:
    command = [
        sys.executable,
        "-m",
        "marl_verl.cli.main",
        "explain",
        "--run",
        str(folder),
        "--step",
        str(step),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)
