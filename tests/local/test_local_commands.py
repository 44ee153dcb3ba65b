"""The commands that read a run directory, on one that was trained in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from marl_verl_testing.real import Finished

from marl_verl import MarlError, evaluate, load_run
from marl_verl.cli.main import main
from marl_verl.episode import Episode
from tests.local.training import INVENTORY, train
from tests.served import answers

pytest.importorskip("verl")
pytestmark = pytest.mark.slow


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
    with pytest.raises(MarlError, match="tasks= has no effect on an edited act"):
        evaluate(run.folder, edit=(stored.id, f"{agent}:{slot}", "no"), tasks=2)


def _acts(episode: Episode) -> list[tuple[tuple[str, str], str]]:
    return [(record.act.key, record.action.text) for record in episode.journal.acts()]


def test_eval_and_export(run: Finished, command: Callable[..., str], tmp_path: Path) -> None:
    """Exported models say in transformers what the policies of that step say in an evaluation."""
    command("eval", run.folder, "--step", "1", "--tasks", "3", "--episodes", "2")
    numbers = json.loads((run.folder / "evaluations" / "step_1.json").read_text())
    assert (numbers["step"], numbers["eval_tasks"], numbers["episodes"]) == (1, 3, 2)
    stored = (run.folder / "evaluations" / "step_1.jsonl").read_text().splitlines()[1:]
    acts = [act for episode in map(json.loads, stored) for act in episode["journal"]["records"]]
    for policy in ("holder", "asker"):
        folder = tmp_path / policy
        options = ("--policy", policy, "--step", "1", "--output", folder)
        assert "of step 1 as a full model" in command("export", run.folder, *options)
        own = [act for act in acts if act["agent"] == policy]
        assert len(own) >= 3
        assert answers(folder, own) == [act["action"]["text"] for act in own]


def test_distil(run: Finished, command: Callable[..., str], tmp_path: Path) -> None:
    """A team becomes a single agent: its training episodes are imitated, then it learns by reward."""
    into, few = "{tiny: {agents: [asker], steps: 30, batch_size: 16}}", ("--stored", "--threshold", "0")
    words = ("distil", run.folder, "--into", into, "--dir", tmp_path / "one", *few, "--epochs", "1")
    printed = command(*words, "--then-reward", "1", "data.train_batch_size=8", "actor_rollout_ref.actor.optim.lr=1e-3")
    assert f"marl-verl train {tmp_path}/one/reward.yaml data.train_batch_size=8" in printed
    numbers = json.loads((tmp_path / "one" / "distil.json").read_text())
    assert [*numbers] == ["team, untrained", "team", "student, untrained", "after imitation", "after reward"]
    assert all(row["eval_tasks"] == 4 and row["tokens_per_task"] > 0 for row in numbers.values())
    (loss,) = load_run(tmp_path / "one" / "imitation").metrics[-1:]
    assert loss["policy/student/pg_loss"] > 0  # a mean of -log pi
    # what is imitated are the answers of the episodes of both steps
    episodes = [episode for step in (1, 2) for episode in load_run(run.folder).episodes[step]]
    said = {(episode.task.prompt, episode.answer.strip()) for episode in episodes}
    rows = pyarrow.parquet.read_table(tmp_path / "one" / "conversations.parquet").to_pylist()
    assert {tuple(message["content"] for message in row["messages"]) for row in rows} == said
    assert (tmp_path / "one" / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stored", "--threshold", "2"), "there is nothing to imitate"),
        (("--stored", "--step", "7"), "has no journals of step 7"),
        (("--step", "7"), "step 7"),
        (("--into", "./no-model"), "no model folder of policy 'student'"),
    ],
)
def test_a_refused_distillation_leaves_nothing(
    run: Finished, words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = ("--into", "{tiny: {agents: [asker], steps: 30, batch_size: 16}}", "--dir", str(tmp_path / "one"))
    assert main(["distil", str(run.folder), *into, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one").exists()
