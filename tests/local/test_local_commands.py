"""The commands that read a run directory, on one that was trained in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from marl_verl_testing.real import Finished

from marl_verl import evaluate, load_run
from marl_verl.episode import Episode
from tests.local.training import INVENTORY, train
from tests.served import answers

pytest.importorskip("verl")
pytestmark = pytest.mark.slow

POLICIES = ("holder", "asker")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return train(tmp_path_factory.mktemp("runs") / "run", INVENTORY, "trainer.save_freq=1", steps=2)


def test_an_act_edited_to_its_own_text_changes_nothing(run: Finished) -> None:
    """From every act of a greedy episode. Another text changes nothing before it."""
    stored = load_run(run.folder).validations[2][0]
    for at, ((agent, slot), text) in enumerate(_acts(stored)):
        done = evaluate(run.folder, edit=(stored.id, f"{agent}:{slot}", text), progress=False)
        for episode in done.episodes():
            assert (_acts(episode), episode.answer, episode.score) == (_acts(stored), stored.answer, stored.score)
        assert {row["mean"] for row in done.numbers["pairings"][0]["difference"].values()} == {0.0}
        done = evaluate(run.folder, edit=(stored.id, f"{agent}:{slot}", "no"), episodes=3, progress=False)
        edited = [_acts(episode)[: at + 1] for episode in done.episodes() if episode.uid == "edited"]
        assert edited == [[*_acts(stored)[:at], ((agent, slot), "no")]] * 3


def _acts(episode: Episode) -> list[tuple[tuple[str, str], str]]:
    return [(record.act.key, record.action.text) for record in episode.journal.acts()]


def test_eval_and_export(run: Finished, command: Callable[..., str], tmp_path: Path) -> None:
    """Exported models say in transformers what the policies of that step say in an evaluation."""
    command("eval", run.folder, "--step", "1", "--tasks", "3", "--episodes", "2")
    numbers = json.loads((run.folder / "evaluations" / "step_1.json").read_text())
    assert (numbers["step"], numbers["eval_tasks"], numbers["episodes"]) == (1, 3, 2)
    stored = (run.folder / "evaluations" / "step_1.jsonl").read_text().splitlines()[1:]
    acts = [act for episode in map(json.loads, stored) for act in episode["journal"]["records"]]
    for policy in POLICIES:
        folder = tmp_path / policy
        options = ("--policy", policy, "--step", "1", "--output", folder)
        assert "of step 1 as a full model" in command("export", run.folder, *options)
        own = [act for act in acts if act["agent"] == policy]
        assert len(own) >= 3
        assert answers(folder, own) == [act["action"]["text"] for act in own]
