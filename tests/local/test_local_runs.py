"""Runs that are stopped and continued, opponents, evaluations and a whole run by the Python API, in this process."""

import json
import shutil
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from marl_verl_inspect.episodes import read_episodes
from marl_verl_inspect.replay import differences, replay
from marl_verl_report.watch import Server

import marl_verl
from marl_verl.threads import in_thread
from marl_verl.trainer.data import FILE
from tests.e2e.conftest import recorded
from tests.local.training import INVENTORY, RECIPES, Finished, check, episodes, resume, train
from tests.opponents import check_snapshots
from tests.weights import change

pytest.importorskip("verl")
pytestmark = pytest.mark.slow

NOTES = "++marl.run.memory.opening={bala red: bala red, kuti grey: kuti grey, satu: satu, bala tu: bala tu}"
CASES: dict[str, tuple[Path, tuple[str, ...]]] = {
    # what is sampled depends on scores; the filter draws more tasks, those that are not easy
    "tasks": (
        RECIPES / "quickstart" / "my_team.yaml",
        (
            *("marl.algorithm.options.sampler=greedy-tree", "marl.sampler.filter.refill=1"),
            *("marl.data.curriculum.weights.easy=0", "marl.task.train_size=24"),
        ),
    ),
    "memory": (RECIPES / "memory" / "shelves.yaml", (NOTES,)),
    "parts": (
        RECIPES / "teams" / "lora.yaml",
        ("marl.algorithm.name=mappo", *(f"marl.policies.{name}.base=shared" for name in ("holder", "asker"))),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_stopped_goes_on_as_if_it_was_not(case: str, tmp_path: Path) -> None:
    """Ctrl-C in step 4, or an error in it. What a person says and edits meanwhile is in no group, baseline or note."""
    recipe, overrides = CASES[case]
    options = (*overrides, "trainer.save_freq=2", "trainer.test_freq=2", "marl.run.journal_tokens=true")
    whole = train(tmp_path / "whole" / "run", recipe, *options, steps=4)
    check(whole)
    folder = tmp_path / "halved" / "run"
    shutil.copytree(whole.folder, folder)
    shutil.rmtree(folder / "checkpoints" / "step_4")

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            raise KeyboardInterrupt if case == "tasks" else OSError("no more")

    with pytest.raises((KeyboardInterrupt, OSError)):
        marl_verl.train(resume=folder, backend="local", progress=stop)
    if case != "parts":
        play(folder)
    done = resume(folder)
    assert recorded(done) == recorded(whole)
    if case == "memory":
        check_memory(done)
        notes = [run.folder / "checkpoints" / "step_4" / "memory" / "notes.json" for run in (done, whole)]
        assert notes[0].read_bytes() == notes[1].read_bytes()
    if case == "tasks":
        rates = [(run.folder / "checkpoints" / "step_4" / "curriculum" / FILE).read_text() for run in (done, whole)]
        assert rates[0] == rates[1]
        drawn = sum(line["filter/tasks"] for line in done.lines("filter/tasks"))
        assert 0 < len(json.loads(rates[0])["tasks"]) <= drawn


def play(folder: Path) -> None:
    """On the page of a run a person acts in a held-out task, and an act of a training episode is edited. Both are
    recorded like any other act; nothing changes but evaluations/ and the lock."""
    run = marl_verl.load_run(folder)
    stored, policy = run.episodes[3][0], next(iter(run.config.marl.policies))
    edit = [stored.id, ":".join(stored.journal.acts()[0].act.key), "south"]

    def files() -> dict[Path, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
        return {path: path.read_bytes() for path in paths if "evaluations" not in path.parts}

    def post(path: str, content: Any) -> Any:
        with urllib.request.urlopen(server.address + path, json.dumps(content).encode(), timeout=120) as reply:
            return json.load(reply)

    before = files()
    with Server(folder) as server:
        for work in (server.serve_forever, server.play_requests):
            in_thread("server", work)
        for asked, text, count in (({"person": policy}, "north", 1), ({"edit": edit, "number": 2}, "south", 4)):
            playing = in_thread("play", partial(post, "play", asked))
            while not playing.done():
                if (question := server.page.question) is not None:
                    post("answer", [question["number"], "north"])
                time.sleep(0.01)
            file = read_episodes(Path(playing.result()["file"]))
            played = [*file.episodes.values()]  # of an edit that with the recorded act, too, each twice
            assert text in [record.action.text for episode in played for record in episode.journal.acts()]
            assert [differences(episode, replay(file.header, episode)) for episode in played] == [[]] * count
        server.shutdown()
    assert files() == before


def check_memory(run: Finished) -> None:
    """Episodes of a step or an evaluation read the notes of the checkpoint before, whatever is written meanwhile."""
    at = {step: run.folder / "checkpoints" / f"step_{step}" / "memory" / "notes.json" for step in (2, 4)}
    before = {file: file.read_text() for file in at.values()}
    evaluation = marl_verl.evaluate(run.folder, step=2, episodes=1, backend="local", progress=False)
    stored = map(json.loads, evaluation.file.with_suffix(".jsonl").read_text().splitlines())
    notes = json.loads(before[at[2]])
    for episode in [*episodes(run, 3), *(line for line in stored if "journal" in line)]:
        read, item = episode["journal"]["records"][0], episode["task"]["prompt"]
        assert (read["arguments"], read["value"]) == ([item, 1], [note for note in notes if item in note][:1])
    assert {file: file.read_text() for file in at.values()} == before
    assert sum(line["memory/writes"] for line in run.lines("memory/writes")) > 0


def test_sampling_ahead_is_the_synchronous_run_so_many_updates_later(tmp_path: Path) -> None:
    moved, ages = {}, list[float | None]()
    for ahead in (None, 0, 2):
        mode = () if ahead is None else ("marl.schedule.mode=async", f"marl.schedule.ahead={ahead}")
        run = train(tmp_path / str(ahead), INVENTORY, "marl.algorithm.options.loss=ppo-clip-tis", *mode, steps=4)
        moved[ahead] = [change(run.folder, name) for name in ("holder", "asker")]
        ages += [line.get("policy/asker/staleness_mean") for line in run.lines("train/success")]
    assert moved[None] == pytest.approx(moved[0], rel=1e-6)
    assert moved[None] != pytest.approx(moved[2], rel=1e-6)
    assert ages == [None] * 4 + [None, 0, 0, 0] + [None, 0, 1, 2]


def test_opponents_are_what_the_policy_was(tmp_path: Path) -> None:
    """Adapters are merged for them. All agents of one version sample from the same distribution."""
    options = (
        "marl.policies.player={tiny: {steps: 50, good: 1.0, seed: 4}, model: {lora_rank: 8, lora_alpha: 64}}",
        *("actor_rollout_ref.actor.optim.lr=1e-2", "marl.run.journal_tokens=true", "trainer.save_freq=3"),
        *("marl.agents.second.opponent.every=1", "marl.agents.second.opponent.size=3", "data.train_batch_size=12"),
    )
    run = train(tmp_path / "run", "self_play/kuhn_pool_cpu", *options, steps=6)
    check_snapshots(run)
    assert not list((run.folder / "opponents").glob("**/model"))


def test_steps_of_self_play_play_each_other(tmp_path: Path) -> None:
    """Every pair plays all games, and a cross-play that is repeated has the same numbers."""
    run = train(tmp_path / "run", "self_play/kuhn_cpu", "marl.task.test_size=12", steps=2)
    evaluated = [
        marl_verl.evaluate(run.folder, cross_play=True, tasks=12, episodes=2, backend="local", progress=False).numbers
        for _ in range(2)
    ]
    players = ["player@0", "player@2"]
    pairings = evaluated[0]["pairings"]
    assert [(pairing["row"], pairing["column"]) for pairing in pairings] == [(a, b) for a in players for b in players]
    for pairing in pairings:
        assert pairing["games"] == pairing["wins"] + pairing["losses"] == 24  # Kuhn Poker has no draws
        assert pairing["outcome"]["first"] == pytest.approx(-pairing["outcome"]["second"])
    assert (list(evaluated[0]["elo"]), evaluated[1]["pairings"]) == (players, pairings)
