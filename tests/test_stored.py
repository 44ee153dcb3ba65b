"""Stored episodes: deterministic files with all data that a replay needs."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import plugins
from marl_verl.algo.sampling import Failure, Independent, Sample
from marl_verl.algo.sampling.stored import sample_lines
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Act, Action, Episode, Journal, Team, Turn, Workflow, replay
from marl_verl.episode.codec import as_line, decode_journal, encode_episode, plain
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.inspect.replay import PLACEHOLDER, differences, rerun
from marl_verl.run import run_dir
from marl_verl.run.packing import unpacked
from marl_verl.run.records import header
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import AgentConfig, Named, PolicyConfig, TeamConfig

ROOT = Path(__file__).parents[1]
TASK = Task("t1", "say it", {"gold": "b", "of": ["ü", None, 1.5]})
TEAM = TeamConfig(
    {"solver": AgentConfig("solver", "p", "Solve."), "judge": AgentConfig("judge", "p", reward="valid-answer")},
    {"p": PolicyConfig("p")},
    Named("inventory", {"length": 3}),
    Named("inventory"),
    Named("grpo"),
)


class Lanes(Workflow):
    """The solver, two judges beside each other, each with a call, and the solver again."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)

        async def judge(slot: str) -> str:
            verdict = await team["judge"].act(draft.text, slot=slot)
            return str(await team["judge"].call(str.upper, verdict.text + slot))

        seen = await asyncio.gather(judge("x"), judge("y"))
        team.propose(draft.text)
        last = await team["solver"].act(" ".join(seen))
        if last.text != "b":
            team.invalid(last, "not b")
        return last.text


class Gold(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return float(answer == task.data["gold"])


POLICY = ScriptedPolicy(
    {"solver": lambda act, session, _: "ab"[session % 2], "judge": lambda act: f"{act.slot}\u2028é"}
)


def sampled(slow: str = "", episodes: int = 3) -> Sample:
    context = ScriptedContext(Lanes(), TASK, POLICY, tasks=Gold(), delay=lambda act, session: 9 * (act.slot == slow))
    return asyncio.run(Independent(episodes).sample(context))


def head(**changed: Any) -> str:
    made = header(TEAM, algorithm_named("grpo", {}, "o"), 12, "train", 7, Named("independent", {"episodes": 3}))
    return as_line({**made, **changed})


def content(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in (head(), *lines)).encode()


def without_clock(episode: Episode) -> Episode:
    """What can come back: no wall-clock time."""

    def still(action: Action) -> Action:
        return replace(action, seconds=0.0)

    records = [r._replace(action=still(r.action)) if hasattr(r, "action") else r for r in episode.journal]
    turns, others = ([replace(t, action=still(t.action)) for t in ts] for ts in (episode.turns, episode.off_path_turns))
    return replace(
        episode, seconds=0.0, turns=turns, off_path_turns=others, journal=Journal(tuple(records), episode.journal.seed)
    )


# The same bytes


def test_two_runs_give_the_same_bytes_in_any_arrival_order() -> None:
    one, other = sampled("x"), sampled("y")
    for sample, seconds in ((one, 1.5), (other, 0.25)):
        for episode in sample.episodes:
            episode.seconds = seconds
            records = [r._replace(action=replace(r.action, seconds=seconds)) if hasattr(r, "action") else r
                       for r in episode.journal]  # fmt: skip
            episode.journal = Journal(tuple(records), episode.journal.seed)
    for tokens in (False, True):
        lines = sample_lines(one, "u", TASK.id, tokens)
        assert lines == sample_lines(other, "u", TASK.id, tokens)
        assert "seconds" not in "".join(lines)


def test_components_and_failures_have_one_order() -> None:
    def lines(swap: bool) -> list[str]:
        sample = sampled(episodes=1)
        rewards = {"team": 1.0, "role": 0.5}
        sample.episodes[0].turns[0].rewards = dict(reversed(rewards.items())) if swap else rewards
        sample.failures = [Failure(n, "timeout", f"late: <Thing object at 0x7f{n + swap}>") for n in (2, 1)]
        sample.failures = sample.failures[::-1] if swap else sample.failures
        return sample_lines(sample, "u", TASK.id, False)

    assert lines(False) == lines(True)
    last = json.loads(lines(False)[-1])
    assert last == {"failure": "timeout", "detail": "late: <Thing object>", "session": 2, "uid": "u", "task": "t1"}
    assert list(last) == ["failure", "session", "detail", "uid", "task"]


def test_a_file_is_written_whole_and_the_same(tmp_path: Path) -> None:
    lines = [head(), *sample_lines(sampled(), "u", TASK.id, False)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).journals(12, lines)
        (path,) = (tmp_path / name / "journals").iterdir()  # nothing else is left there
        assert path.name == "step_00012.jsonl"
        assert path.read_bytes() == content(*lines[1:])


def test_a_long_file_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [head(), *sample_lines(sampled(), "u", TASK.id, False)]
    monkeypatch.setattr(run_dir, "PACKED", 100)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).episodes(12, lines)
        assert [path.name for path in (tmp_path / name / "episodes").iterdir()] == ["step_00012.jsonl.zst"]
    one, two = (RunDir(tmp_path / name).stored_episodes()[12].read_bytes() for name in ("one", "two"))
    assert one == two
    assert unpacked(one, "one") == content(*lines[1:])
    assert len(one) < len(gzip.compress(content(*lines[1:]), 1))


def test_tokens_are_left_out_unless_wanted() -> None:
    episode = sampled(episodes=1).episodes[0]
    small, whole = (json.loads(as_line(encode_episode(episode, tokens))) for tokens in (False, True))
    actions = [record["action"] for record in small["journal"]["records"] if record["effect"] == "act"]
    assert all(set(action) == {"text", "stop_reason", "version", "tokens"} for action in actions)
    assert [action["tokens"] for action in actions] == [len(turn.action.response_ids) for turn in episode.turns]
    assert whole["journal"]["records"][0]["action"]["response_ids"] == list(b"a")
    assert decode_journal(whole["journal"]) == episode.journal


def test_a_text_that_utf8_cannot_hold_is_stored() -> None:
    episode = sampled(episodes=1).episodes[0]
    episode.answer = "half \ud83d of ü"
    line = as_line(encode_episode(episode, False))
    found = EpisodeFile.parse(content(line), "f").episode(episode.id)
    assert found.answer == episode.answer


# Everything comes back


def test_round_trip() -> None:
    sample = sampled()
    file = EpisodeFile.parse(content(*sample_lines(sample, "t1", TASK.id, True)), "f")
    assert list(file.episodes) == [episode.id for episode in sample.episodes] == ["t1_0", "t1_1", "t1_2"]
    for episode in sample.episodes:
        assert without_clock(file.episode(episode.id)) == without_clock(episode)
    assert file.header.agents["solver"].instructions == "Solve."
    assert (file.header.step, file.header.split, file.header.sampler.name) == (12, "train", "independent")
    assert (file.header.task.name, file.header.task.options) == ("inventory", {"length": 3})
    assert (file.damaged, file.failures) == ([], [])


words = st.text(max_size=6)


@given(
    node=st.none() | st.sampled_from(["n1", "n2"]),
    taker=st.sampled_from(["solver", "judge"]),
    rewards=st.dictionaries(st.sampled_from(["team", "role"]), st.floats(-2, 2)),
    invalid=st.none() | words,
    text=words,
    answer=st.none() | words | st.integers() | st.lists(st.floats(allow_nan=False), max_size=2),
    finished=st.booleans(),
)
@settings(max_examples=40)
def test_round_trip_of_paths_in_trees(
    node: str | None, taker: str, rewards: dict[str, float], invalid: str | None, text: str, answer: Any, finished: bool
) -> None:
    act = Act("solver", "0", 0, 0, ({"role": "user", "content": text},))
    journal = Journal().extended(act, Action(text, [1], [2], [-0.5], "stop", 3))
    turns = [Turn(act, Action(t, [1], [2], [-0.5], "stop", 3), "u", 4 + i, "p", taker, i, node)
             for i, t in enumerate([text, text + "!"])]  # fmt: skip
    for turn in turns:
        turn.rewards, turn.invalid = dict(rewards), invalid
    episode = Episode("u", 4, TASK, turns[:1], answer, True, journal, 0.0, 0.5, finished, turns[1:])
    file = EpisodeFile.parse(content(as_line(encode_episode(episode, True))), "f")
    assert file.episode(episode.id) == episode
    assert file.episode(episode.id).turns[0].key == ("solver", "0")


@dataclass
class Move:
    cells: set[str]


class Opaque:
    pass


@pytest.mark.parametrize(
    ("answer", "stored"),
    [
        (("a", 1), ["a", 1]),
        (Move({"b", "a"}), {"cells": ["a", "b"]}),
        ({"deep": [Move(set())]}, {"deep": [{"cells": []}]}),
        (Opaque(), "<tests.test_stored.Opaque object>"),
        ({(1, 2): "x"}, "{(1, 2): 'x'}"),
        (None, None),
    ],
)
def test_an_answer_of_any_kind_is_stored(answer: Any, stored: Any) -> None:
    assert plain(answer) == stored


# Run again


def rerun_of(sample: Sample, name: str, *masked: tuple[str, str]) -> Any:
    episode = EpisodeFile.parse(content(*sample_lines(sample, "t1", TASK.id, False)), "f").episode(name)
    return asyncio.run(rerun(Lanes(), Gold(), ["solver", "judge"], episode, masked))


def test_a_stored_episode_runs_again_without_a_model() -> None:
    sample = sampled()
    for episode in sample.episodes:
        again = rerun_of(sample, episode.id)
        assert (again.finished, again.answer, again.score) == (True, episode.answer, episode.score)
        assert [str(record) for record in again.journal] == [str(record) for record in episode.journal]
        assert (again.changed, again.missed, again.waiting) == (set(), [], ())


def test_masking_keeps_the_other_texts_and_says_what_would_be_sampled_again() -> None:
    again = rerun_of(sampled(), "t1_1", ("solver", "1"))
    assert (again.answer, again.score, again.changed) == (PLACEHOLDER, 0.0, set())
    again = rerun_of(sampled(), "t1_1", ("solver", "0"))
    assert again.changed == {("judge", "x"), ("judge", "y")}  # their texts stay, so the calls and the last act do
    assert (again.answer, again.score) == ("b", 1.0)
    again = rerun_of(sampled(), "t1_1", ("judge", "x"))
    assert again.ended == 'judge calls str.upper("(no answer)x"), which was never made'
    assert again.score is None


def test_the_placeholder_is_that_of_the_credits() -> None:
    assert Counterfactual().placeholder == PLACEHOLDER


# In the run directory


def test_a_continued_run_forgets_later_episodes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (1, 2, 3):
        run.journals(step, [head()])
        run.episodes(step, [head()])
    run.forget_after(2)
    assert list(run.stored_journals()) == [1, 2]
    assert sorted(path.name for path in (tmp_path / "episodes").iterdir()) == ["step_00001.jsonl", "step_00002.jsonl"]


def test_a_continued_run_forgets_later_metrics_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (0, 1, 2, 2, 3):
        run.metrics(step, {"train/success": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + lines[0].rstrip("\n")[:9])
    run.forget_after(2)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:4])


def test_compressed_files_are_found_and_pruned(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (1, 2, 3):
        run.journals(step, [head()])
        run.episodes(step, [head()])
    for step, ending in ((1, "gz"), (3, "zst")):
        for path in tmp_path.glob(f"*/step_0000{step}.jsonl"):
            path.rename(f"{path}.{ending}")
    run.journals(3, [head()])  # beside the packed one: the newer counts
    assert [path.name for path in run.stored_journals().values()] == [
        "step_00001.jsonl.gz", "step_00002.jsonl", "step_00003.jsonl"
    ]  # fmt: skip
    assert run.stored_episodes()[3].name == "step_00003.jsonl.zst"
    run.forget_after(2)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [
        "step_00001.jsonl.gz", "step_00001.jsonl.gz", "step_00002.jsonl", "step_00002.jsonl"
    ]  # fmt: skip


@pytest.mark.parametrize("name", plugins.discover("").names("samplers"))
def test_what_a_sampler_makes_can_be_stored_and_run_again(name: str) -> None:
    class Public(Gold):
        def public_score(self, task: Task, answer: Any) -> float:
            return 0.5

    says = ScriptedPolicy({"solver": lambda act, s, c: "ab"[sum(map(ord, f"{s} {c}")) % 2], "judge": lambda act: "é"})
    context = ScriptedContext(Lanes(), TASK, says, tasks=Public())
    sample = asyncio.run(plugins.discover("").get("samplers", name)().sample(context))
    assert sample.episodes
    file = EpisodeFile.parse(content(*sample_lines(sample, "t1", TASK.id, True)), "f")
    episodes = [*sample.episodes, *([sample.greedy] if sample.greedy else [])]
    assert len(file.episodes) == len(episodes)
    for episode in episodes:
        stored = file.episode(episode.id)
        assert without_clock(stored) == without_clock(episode)
        again = asyncio.run(rerun(Lanes(), Public(), ["solver", "judge"], stored))
        assert differences(stored, again) == []


@pytest.mark.parametrize("ticks", range(0, 12, 2))
def test_equal_calls_of_concurrent_lanes_are_found_as_the_engine_finds_them(ticks: int) -> None:
    counter = iter(range(100))

    def clock() -> int:
        return next(counter)

    class Race(Workflow):
        """Which lane calls first depends on how many iterations of the loop each takes to get there."""

        async def run(self, task: Task, team: Team) -> str:
            async def long() -> int:
                for _ in range(3):
                    await team["solver"].act("go")
                return int(await team.call(clock))

            async def short() -> int:
                await team["judge"].act("go")
                for _ in range(ticks):
                    await asyncio.sleep(0)
                return int(await team.call(clock))

            return str(await asyncio.gather(long(), short()))

    async def go() -> None:
        context = ScriptedContext(Race(), TASK, POLICY, tasks=Gold())
        episode = (await Independent(1).sample(context)).episodes[0]
        again = await rerun(Race(), Gold(), ["solver", "judge"], episode)
        assert again.answer == (await replay(Race(), TASK, ["solver", "judge"], episode.journal)).answer

    asyncio.run(go())
