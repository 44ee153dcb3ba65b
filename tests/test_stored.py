"""Stored episodes: deterministic files with all data that a replay needs."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_inspect.episodes import EpisodeFile
from marl_verl_inspect.replay import differences, rerun
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import plugins
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Act, Action, Episode, Journal, Team, Turn, Workflow
from marl_verl.episode.codec import as_line, encode_episode, plain
from marl_verl.run.records import header
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, Named, PolicyConfig, TeamConfig
from tests.plain_workflows import Gold

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
    [(("a", 1), ["a", 1]), (Move({"b", "a"}), {"cells": ["a", "b"]}), (Opaque(), "<tests.test_stored.Opaque object>")],
)
def test_an_answer_of_any_kind_is_stored(answer: Any, stored: Any) -> None:
    assert plain(answer) == stored


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
        run.lines("journals", step, [head()])
        run.lines("episodes", step, [head()])
    for path in tmp_path.glob("*/step_0000[13].jsonl"):
        path.rename(f"{path}.gz")
    names = ["step_00001.jsonl.gz", "step_00002.jsonl", "step_00003.jsonl.gz"]
    assert [path.name for path in run.stored("journals").values()] == names
    run.forget_after(2)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == sorted(2 * names[:2])


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
        assert differences(stored, asyncio.run(rerun(Lanes(), Public(), ["solver", "judge"], stored))) == []
