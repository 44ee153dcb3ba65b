"""What a run would refuse of its clients is refused by the testing kit and by a dry run."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow

from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import SamplingContext
from marl_verl.cli.main import main
from marl_verl.episode import Episode, Team, Workflow
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.run.prepare import plan_run
from marl_verl.run.rehearsal import rehearse_split
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import read_team

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "my_team.yaml"
TEAM = """
from marl_verl import Workflow, hookimpl
from marl_verl_agents import openai_client


class Sends(Workflow):
    async def run(self, task, team):
        first = await team["sender"].act(task.prompt)
        messages = [{"role": "user", "content": f"{task.prompt} {first.text}"}]
        tools = [{"type": "function", "function": {"name": "add"}}]
        client = openai_client(team, "answerer")
        reply = await client.chat.completions.create(model="m", messages=messages, tools=tools)
        return reply.choices[0].message.content


@hookimpl
def marl_register(registry):
    registry.workflow("sends", Sends)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("team") / "sends.py"
    path.write_text(TEAM)
    return path


@pytest.mark.slow
def test_a_request_that_a_run_refuses_ends_the_dry_run(plugin: Path) -> None:
    """Also by an agent that acts after another one."""
    own = ("marl.workflow.name=sends", "marl.task.train_size=40", "marl.task.test_size=10")
    with pytest.raises(MarlError, match="the chat template does not render tools") as error:
        plan_run(RECIPE, own, [plugin])
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_format_is_refused_by_the_local_backend(plugin: Path, tmp_path: Path) -> None:
    path = tmp_path / "formats.py"
    path.write_text(plugin.read_text().replace("tools=tools", 'response_format={"type": "json_object"}'))
    own = ("marl.workflow.name=sends", "marl.task.train_size=40", "marl.task.test_size=10", "marl.run.backend=local")
    with pytest.raises(MarlError, match=r"does not restrict sampling .*marl\.run\.backend=verl"):
        plan_run(RECIPE, own, [path])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("'good'", "role reward 'holds-it' of agent 'sender' must be a finite number, holds_it returned 'good'"),
        ("float(turn.observashun)", "role reward 'holds-it' of agent 'sender': AttributeError: 'Turn' object has no"),
        ("'123'.index(turn.action.text or 'nothing')", "warning: scoring, in a rehearsal: role reward 'holds-it' of"),
    ],
)
def test_role_rewards_are_tried(change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A role reward that is no number is refused before the start, as is one that fails for any action; one that may
    need real actions is a warning."""
    text = RECIPE.with_name("my_team.py").read_text(encoding="utf-8")
    right = "float(turn.action.text.strip() in task.data[turn.agent])"
    assert right in text
    (tmp_path / "my_team.py").write_text(text.replace(right, change))
    (tmp_path / "my_team.yaml").write_text(RECIPE.read_text(encoding="utf-8"))
    assert main(["train", str(tmp_path / "my_team.yaml"), "--dry-run"]) == (0 if "warning" in message else 2)
    assert " ".join(capsys.readouterr().err.split()).count(message) == 1


class Judged(TaskSet):
    quick = True

    def score(self, task: Task, answer: Any) -> float:
        if task.data.get("bad"):
            raise MarlError("task has no tests")
        return float(answer == "right")

    def reference(self, task: Task) -> Any:
        return task.data.get("solution")


class Acts(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        return (await team["solo"].act(task.prompt)).text


class Forgets(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        team["solo"].act(task.prompt)  # type: ignore[unused-coroutine]
        return (await team["solo"].act(task.prompt)).text


GOOD, BAD = Task("good", "?", {"solution": "right"}), Task("bad", "?", {"bad": True})
PARTS = {part: {"name": "acts"} for part in ("task", "workflow", "algorithm")}
SOLO = read_team({**PARTS, "agents": {"solo": {"policy": "solo"}}, "policies": {"solo": {}}})
WRONG = Task("wrong", "?", {"solution": "left"})


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ([BAD, GOOD], None),
        ([BAD, BAD], "none of the first 2 tasks can be judged: task has no tests"),
        ([WRONG, Task("without", "?")], "none of the reference solutions of the first tasks is right, e.g. of 'wrong'"),
    ],
)
def test_a_set_of_which_no_attempt_can_be_judged_is_refused(tasks: list[Task], why: str | None) -> None:
    with pytest.raises(MarlError, match=why) if why else nullcontext():
        assert len(rehearse_split(Acts(), tasks, SOLO, Judged())) == 1


def test_an_act_that_is_not_awaited_is_refused() -> None:
    why = "'Forgets' on task 'good': `await` is missing: coroutine 'Effects.act' was never awaited"
    with pytest.raises(MarlError, match=why):
        rehearse_split(Forgets(), [GOOD], SOLO, Judged())
    with pytest.raises(MarlError, match=why):
        check_workflow(Forgets(), GOOD, ScriptedPolicy({"solo": "right"}))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("answer = action.txt", r"AttributeError: 'Action' object has no attribute 'txt' \(late.py, line 5\)"),
        ("answer = acton.text", r"NameError: name 'acton' is not defined \(late.py, line 5\)"),
        ("answer = action", r"return action.text \(late.py, line 3\)"),
        ("answer = json.loads(action.text)['answer'] if action.text != '1' else 1", None),
        ("answer = re.search('answer: (.*)', action.text).group(1)", None),
        ("for answer in action.text: pass", None),
        ("return", None),
    ],
)
def test_an_error_that_no_answer_explains_ends_a_rehearsal(code: str, why: str | None) -> None:
    """After the first act, which a run would reach only once it has started."""
    body = ["action = await team['solo'].act(task.prompt)", code, *["return answer"] * ("return" not in code)]
    lines = ["import json, re", "class Late(Workflow):", " async def run(self, task, team):", *(f"  {b}" for b in body)]
    names: dict[str, Any] = {"Workflow": Workflow, "__name__": "late"}
    exec(compile("\n".join(lines), "late.py", "exec"), names)
    refused = pytest.raises(MarlError, match=rf"workflow 'Late' on task 'good'.*{why}") if why else nullcontext()
    warned = pytest.warns(MarlWarning, match=r"returned no answer \(None\) \(late.py, line 3\)")
    with warned if code == "return" else refused:
        rehearse_split(names["Late"](), [GOOD], SOLO, Judged())


@dataclass(frozen=True)
class Broken(ReplayCredit):
    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        return episode.scores  # type: ignore[attr-defined,no-any-return]


@dataclass(frozen=True)
class Silent(ReplayCredit):
    async def assign(self, context: SamplingContext, episode: Episode) -> int:  # type: ignore[empty-body]
        pass


@dataclass(frozen=True)
class Elsewhere(ReplayCredit):
    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        episode.turns[0].rewards["crdit"] = 1.0
        return 0


@pytest.mark.parametrize(
    ("credit", "why"),
    [
        (Broken(), "credit 'broken': AttributeError: 'Episode' object has no attribute 'scores'"),
        (Silent(), "`assign` of credit 'silent' must return its number of tokens, it returned None"),
        (Elsewhere(), "`assign` of credit 'elsewhere' must set component 'credit' of turns; it set crdit"),
    ],
)
def test_credits_by_replay_are_tried(credit: ReplayCredit, why: str) -> None:
    with pytest.raises(MarlError, match=why):
        rehearse_split(Acts(), [GOOD], SOLO, Judged(), Algorithm(credit=(credit,)))
