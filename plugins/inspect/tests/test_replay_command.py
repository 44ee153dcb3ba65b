"""`marl-verl replay`: output for episodes and trees, and user errors."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_sandbox import current
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_tiny import grid
from marl_verl_tiny.split_plan_path import ScoutMover, SplitPlanPath

from marl_verl.algo.sampling import Failure, Independent, Sample
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Action, CallError, Episode, Team, Workflow
from marl_verl.episode.codec import as_line
from marl_verl.extensions import use_run_options
from marl_verl.run.records import header
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import AgentConfig, Named, PolicyConfig, TeamConfig
from tests.plain_workflows import Gold
from tests.sites import use_plugin

Command = Callable[..., str]
TASK = Task("t1", "2 + 2 = ?", {"gold": "4"})


def look_up(what: str) -> dict[str, Any]:
    if what == "?":
        raise LookupError("no such thing")
    return {"hits": len(what)}


class Review(Workflow):
    """The solver drafts, the judge looks it up and says yes or no."""

    rounds: int = 3

    async def run(self, task: Task, team: Team) -> str:
        asked = [{"role": "user", "content": task.prompt}]
        for _ in range(self.rounds):
            draft = await team["solver"].act(asked)
            if not draft.text.isdigit():
                team.invalid(draft, "no number")
            team.propose(draft.text)
            try:
                found = await team["judge"].call(look_up, draft.text)
            except CallError as error:
                found = str(error)
            verdict = await team["judge"].act(f"{draft.text}: {found}")
            if verdict.text == "yes":
                break
            asked = [*asked, {"role": "assistant", "content": draft.text}, {"role": "user", "content": verdict.text}]
        return draft.text


@pytest.fixture(autouse=True)
def since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change a part since the file was written."""
    monkeypatch.chdir(tmp_path)

    def change(review: Any = Review, sums: Any = Gold) -> None:
        def register(registry: Any) -> None:
            registry.workflow("review", review)
            registry.task("sums", sums)

        use_plugin(monkeypatch, register, only=None)

    change()
    return change


def write(sample: Sample) -> str:
    agents = {name: AgentConfig(name, "base", "Be brief." if name == "judge" else "") for name in ("solver", "judge")}
    team = TeamConfig(agents, {"base": PolicyConfig("base")}, Named("sums"), Named("review"), Named("at-grpo"))
    algorithm = algorithm_named("at-grpo", {}, "o")
    first = as_line(header(team, algorithm, 12, "train", 0, Named("greedy-tree", {"candidates": 3})))
    Path("f.jsonl").write_text("".join(f"{line}\n" for line in [first, *sample_lines(sample, "q", "t1", False)]))
    return "f.jsonl"


def play(solver: Any = ("?", "4"), judge: Any = ("no", "yes"), episodes: int = 1) -> Sample:
    context = ScriptedContext(Review(), TASK, ScriptedPolicy({"solver": solver, "judge": judge}), Gold())
    context.uid = "q"
    return asyncio.run(Independent(episodes).sample(context))


def test_an_episode_reads_as_a_conversation(command: Command) -> None:
    sample = play()
    sample.episodes[0].turns[3].rewards = {"team": 1.0, "role": -0.25}
    shown = command("replay", write(sample))
    for part in (
        "episode q_0, training step 12: workflow review, task set sums, algorithm at-grpo, sampler greedy-tree\n",
        "solver:0   row q_0_0, team 1\n  sees\n    2 + 2 = ?\n  says\n    ?\n  invalid: no number\n",
        'judge calls look_up("?") raises LookupError: no such thing\n',
        "  sees\n    (1 message as solver:0)\n    assistant: ?\n    user: no\n  says\n    4\n",
        *('judge calls look_up("4") -> {"hits": 1}\n', "judge:1   row q_0_3, role -0.25, team 1\n"),
    ):
        assert part in shown
    assert shown.endswith("answer 4\nscore 1, success\n")


def test_control_characters_cannot_reach_the_terminal(command: Command) -> None:
    shown = command("replay", write(play(solver=("\x1b[31mred\r\x9b", "4"))))
    assert "    \\x1b[31mred\\r\\x9b\n" in shown
    assert "\x1b" not in shown
    turned = "a\u202eb\u2066c\u2028d\u2029e"
    assert "    a\\u202eb\\u2066c\\u2028d\\u2029e\n" in command("replay", write(play(solver=(turned, "4"))))


def several() -> str:
    sample = play(solver=lambda act, session, _: "4" if session == 1 else "5", episodes=3)
    sample.failures = [Failure(3, "timeout", "workflow 'Review' on task 't1': the episode took longer than 5 s")]
    return write(sample)


def test_a_file_of_several_is_listed(command: Command) -> None:
    shown = command("replay", several())
    assert shown.splitlines()[1] == "3 episodes, 1 failed attempt"
    assert shown.splitlines()[2] == "1 solved, mean score 0.333"
    assert "q_1      1      4      solved  t1" in shown
    assert shown.endswith("q_3 failed: timeout\n  workflow 'Review' on task 't1': the episode took longer than 5 s\n")
    assert command("replay", "f.jsonl", "--episode", "q_1").startswith("episode q_1, ")


def test_a_run_and_its_steps(command: Command, refused: Command) -> None:
    lines = Path(several()).read_text().splitlines()
    for step in (10, 20, 30, 40, 41):
        RunDir(Path.cwd()).lines("journals", step, lines)
    (Path("journals") / ".writing-step_00050.jsonl").write_text("")  # of a run that was killed
    assert command("replay", ".", "--step", "20", "--episode", "q_2").startswith("episode q_2")
    assert "has no journals of step 3: the nearest are 10, 20, 30" in refused("replay", ".", "--step", "3")
    Path("other").mkdir()
    assert "no run in 'other': it has no config.yaml" in refused("replay", "other")
    Path("other/config.yaml").touch()
    assert "run 'other' has no stored journals: train it with marl.run.keep_journals=1" in refused("replay", "other")
    assert "the following arguments are required: RUN|FILE" in refused("replay")


def test_an_answer_is_scored_in_the_sandbox_of_the_run(command: Command, since: Callable[..., None]) -> None:
    RunDir(Path.cwd()).lines("journals", 1, Path(write(play())).read_text().splitlines())
    Path("config.yaml").write_text("marl: {run: {sandbox: limits}}")

    class InTier(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float(current().tier == "limits")

    since(sums=InTier)
    try:
        assert "score 1, success\n" in command("replay", ".")
    finally:
        use_run_options({})


def test_words_without_an_effect(refused: Command) -> None:
    file = several()
    for words in (("stray",), ("--continuations", "2"), ("--local",)):
        assert f"'{words[0]}' has no effect without --edit" in refused("replay", file, *words)
    assert "name it with --episode ID" in refused("replay", file, "--edit", "solver:0", "4")
    assert "--continuations: must be 1 or more, got 0" in refused("replay", file, "--continuations", "0")
    assert f"'{file}' is a file: leave it out" in refused("replay", file, "--step", "1")


def tree() -> Episode:
    """The path solver:0, judge:0 of a tree, taken partly by another agent, with two turns beside it."""
    context = ScriptedContext(Review(), TASK, ScriptedPolicy({"solver": "4", "judge": "no"}), tasks=Gold())
    context.uid = "q"

    async def go() -> Episode:
        async with context.start(0) as run:
            turns = []
            for node, parent, agent, says in (("n0", None, "judge", "4"), ("n3", "n0", None, "no")):
                (act,) = await run.run_until_blocked() or ()
                run.resolve(act, Action(says))
                place = {"index": len(turns), "node": node, "parent": parent, "agent": agent}
                turns.append(context.turn(act, Action(says), 0, **place))
                if node == "n0":
                    others = [context.turn(act, Action(f"text {n}\nof {n}"), 0, index=n, node=f"n{n}") for n in (1, 2)]
            await run.run_until_blocked()
            episode = await context.state(run, 0, turns, "4")
            await context.reward([*turns, *others], episode, run)
            episode.off_path_turns = others
            return episode

    return asyncio.run(go())


def test_an_unfinished_path_waits_at_the_end_of_its_journal(command: Command) -> None:
    shown = command("replay", write(Sample([tree()])), "--episode", "q_0_n3")
    assert "solver:0   row q_0_0, acted by judge, node n0 at the root, team 1\n" in shown
    assert "judge:0   row q_0_1, node n3 under n0, team 1\n" in shown
    assert "blocked at solver:1\nwould answer 4\nscore 1, success\n" in shown
    assert "sampled beside it: 2 turns\n" in shown
    assert "  solver:0   row q_0_1, node n1 at the root, team 1: text 1 of 1\n" in shown


def test_a_changed_workflow_raises_with_the_effect(refused: Command, since: Callable[..., None]) -> None:
    class Polite(Review):
        async def run(self, task: Task, team: Team) -> str:
            (await team["solver"].act(f"please: {task.prompt}"))
            return "4"

    class Broken(Review):
        async def run(self, task: Task, team: Team) -> str:
            raise KeyError("gone")

    path = write(play())
    for changed, message in (
        (Polite, "workflow 'Polite' on task 't1': act solver:0 is shown another observation on replay: recorded ..."),
        (Broken, "workflow 'Broken' on task 't1', before any act: KeyError: 'gone'"),
    ):
        since(review=changed)
        beginning = "episode 'q_0' cannot be replayed (--stored shows it without running it): "
        assert f"{beginning}{message}" in refused("replay", path)
    since()
    Path(path).write_text(Path(path).read_text().replace('"arguments":["4"]', '"arguments":["5"]'))
    assert "is not in the journal" in refused("replay", path)


def test_another_score_answer_or_mark_is_shown_and_reported(refused: Command, since: Callable[..., None]) -> None:
    class Strict(Gold):
        def score(self, task: Task, answer: Any) -> float:
            return 0.5

    class Verbose(Review):
        async def run(self, task: Task, team: Team) -> str:
            return f"it is {await super().run(task, team)}"

    path = write(play())
    for changed, message in (
        ({"sums": Strict}, "episode 'q_0' is not what is stored: the score is 0.5, stored is 1.0"),
        (
            {"review": Verbose},
            "the answer is 'it is 4', stored is '4'; the score is 0.0, stored is 1.0; success is False",
        ),
    ):
        since(**changed)
        assert message in refused("replay", path, prints=True)


def test_a_damaged_line_is_named(refused: Command) -> None:
    path = Path(several())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:-40])
    assert refused("replay", "f.jsonl").startswith("marl-verl: 'f.jsonl', line 4 is damaged: ")
    path.write_bytes(lines[0] + b"[]\n")
    assert "'f.jsonl', line 2: the journal: Expected `object`, got `null`" in refused("replay", "f.jsonl")


@pytest.fixture
def documented() -> None:
    """The run that docs/replay.md shows: three attempts at one map, of which the second gets there."""
    tasks = SplitPlanPath()
    task = tasks.generate("train", 3, 0)[1]
    start, goal, walls = task.data["start"], task.data["goal"], frozenset(task.data["walls"])
    path = grid.walk(4, walls, start, goal)

    def scout(act: Any, session: int, _: Any) -> str:
        return "hm" if session == 0 and act.turn == 0 else str(goal)

    def mover(act: Any, session: int, _: Any) -> str:
        return " ".join(path) if session == 1 else path[0]

    context = ScriptedContext(ScoutMover(turns=2), task, ScriptedPolicy({"scout": scout, "mover": mover}), tasks)
    context.uid = "s12t00000"
    agents, name, options = ("scout", "mover"), Named("split-plan-path", {"turns": 2}), {"sampler": "independent"}
    policies = {agent: PolicyConfig(agent) for agent in agents}
    method = Named("at-grpo", options)
    team = TeamConfig({agent: AgentConfig(agent, agent) for agent in agents}, policies, Named(name.name), name, method)
    algorithm = algorithm_named("at-grpo", options, "o")
    first = header(team, algorithm, 12, "train", 0, Named("independent", {"episodes": 3}))
    folder = Path("runs/paths")
    folder.mkdir(parents=True)
    sample = asyncio.run(Independent(3).sample(context))
    RunDir(folder).lines("journals", 12, [as_line(first), *sample_lines(sample, "s12t00000", task.id, False)])


@pytest.mark.usefixtures("documented")
def test_what_the_page_shows_is_printed(command: Command, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "replay.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n\$ marl-verl replay ([^\n]*)\n(.*?)```", text, re.DOTALL)
    assert len(shown) == 2
    for words, output in shown:
        assert command("replay", *words.split()) == output
    monkeypatch.setattr("marl_verl_tiny.split_plan_path.NOTHING", "nothing")
    assert f"```\n{refused('replay', 'runs/paths', '--episode', 's12t00000_0')}```" in text


@pytest.mark.usefixtures("documented")
def test_an_episode_is_found_in_the_step_that_finished_it(command: Command) -> None:
    stored = Path("runs/paths/journals/step_00012.jsonl")
    lines = stored.rename(stored.with_name("step_00013.jsonl")).read_text().splitlines()
    RunDir(Path("runs/paths")).lines("journals", 12, lines[:1])
    assert command("replay", "runs/paths", "--episode", "s12t00000_0").startswith("episode s12t00000_0")
