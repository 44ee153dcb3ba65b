"""docs/plugins.md has every method of the registry, and its examples do what they say; commands of all pages exist."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from marl_verl_testing import ScriptedPolicy, check_algorithm, check_credit, check_sampler, check_workflow, row_of
from marl_verl_testing.rows import row
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.algo.advantage import Advantage, RowTable
from marl_verl.algo.algorithms.losses import Loss
from marl_verl.cli.main import COMMANDS, _parse, main, registered
from marl_verl.plugins import KINDS, Plugins, Registry
from marl_verl.run.describe import describe
from marl_verl.run.prepare import plan_run
from marl_verl.tasks import Task

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"

HERE = {"python": ("plugins.md", "sampling.md"), "yaml": ("plugins.md",), "yml": ("algorithms.md",)}
HERE |= {"json": ("explain.md",)}
"""Language -> pages whose blocks are run below."""


TYPED = ("", "bash", "sh", "console")
"""Blocks in which lines are commands, or what these print."""


class Block(NamedTuple):
    """A code block: the page, the hook whose section it is in ("" for none), its number in the page, and what it is."""

    page: str
    section: str
    number: int
    language: str
    code: str


def blocks(path: Path) -> Iterator[Block]:
    section, number = "", 0
    for heading, language, code in re.findall(
        r"^(#+ [^\n]*)$|^```(\w*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if heading:
            section = heading.removeprefix("### ") if re.match(r"### (marl_|registry\.)", heading) else ""
        else:
            number += 1
            place = path.relative_to(ROOT)
            yield Block(str(place) if len(place.parts) > 2 else path.name, section, number, language, code)


BLOCKS = [block for path in PAGES for block in blocks(path)]
PLUGINS = [block for block in BLOCKS if block.page == "plugins.md"]


def here(language: str, *pages: str) -> Any:
    """Parametrize by the blocks of a language."""
    chosen = [block for block in BLOCKS if block.language == language and block.page in (pages or HERE[language])]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"{block.page}-{block.number}")


# Every hook and every method has its section

METHODS_OF_REGISTRY = [f"registry.{name}" for name in vars(Registry) if not name.startswith("_") and name != "entries"]
SECTIONS = sorted([*METHODS_OF_REGISTRY, *plugins.HOOKS - {"marl_register"}])
SHOWN_ABOVE = ("registry.task", "registry.workflow")  # whose names the first recipe of the page has


def test_every_method_and_observer_has_a_section() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### ((?:marl_|registry\.)\w+)$", text, re.MULTILINE)) == SECTIONS
    assert len(METHODS_OF_REGISTRY) == len(KINDS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_an_example_and_a_recipe(section: str) -> None:
    mine = [block for block in PLUGINS if block.section == section]
    assert mine[0].language == "python"
    assert (section if section.startswith("registry") else f"def {section}") in mine[0].code
    if section.startswith("registry.") and section not in (*SHOWN_ABOVE, "registry.command"):
        assert any(block.language == "yaml" for block in mine), "how does a recipe use it?"


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[str, types.ModuleType]]:
    """Python blocks of docs/plugins.md as modules: "section-1", ...; one sees the names of those above it there."""
    found: dict[str, types.ModuleType] = {}
    above: dict[str, dict[str, Any]] = {}
    for block in PLUGINS:
        if block.language != "python":
            continue
        number = sum(name.startswith(f"{block.section}-") for name in found) + 1
        module = types.ModuleType(f"docs_plugins_{block.number}")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        vars(module).update(above.get(block.section, {}))
        exec(compile(block.code, f"plugins.md, block {block.number}", "exec"), vars(module))
        above[block.section] = {n: v for n, v in vars(module).items() if not n.startswith(("_", "marl_", "test_"))}
        found[f"{block.section}-{number}"] = module
    yield found
    for module in found.values():
        del sys.modules[module.__name__]


@pytest.fixture(scope="module")
def known(shown: dict[str, types.ModuleType]) -> Plugins:
    """All of them at once, each a plugin, beside what is installed: no two examples have one name."""
    given = {name: module for name, module in shown.items() if any(hook.startswith("marl_") for hook in vars(module))}
    return plugins.assemble(given, None)


# Every hook has a test: what its example registers does what the page says

TASK = Task("3+4", "3 + 4", {"sum": 7})
ROWS = [
    {**row(uid, session, index, index // 2, "ab"[index % 2], team=float(session % 3), role=float(index)), "policy": "p"}
    for uid, sessions in (("u", 4), ("v", 1))
    for session in range(sessions)
    for index in range(2 + 2 * (session % 2))
]
VALUE, GROUP = np.array([2.0, 5.0, 1.0]), np.array([0, 1, 0])


def team(known: Plugins) -> tuple[Any, ScriptedPolicy]:
    """The workflow of the page, and agents whose attempts differ: in session 2 they are right at once."""

    def say(act: Any, session: int, candidate: Any) -> str:
        return "7" if session == 2 or act.turn else f"{session}{act.agent[0]}"

    return known.get("workflows", "second-opinion")(), ScriptedPolicy(dict.fromkeys(("solver", "checker"), say))


def parts_of(known: Plugins, name: str, rows: Any = None, reach: Any = "group") -> tuple[Any, Any]:
    """(an algorithm of the page, its result on rows)."""
    method = known.get("algorithms", name)
    return method, None if rows is None else check_algorithm(method, rows, reach=reach)


def tasks(known: Plugins) -> None:
    sums = known.get("tasks", "easy-sums")(largest=20)
    train, test = ({task.id for task in sums.generate(split, 20, 0)} for split in ("train", "test"))
    assert len(train) == len(test) == 20
    assert not train & test
    assert [sums.score(TASK, answer) for answer in (" 7", "8", None)] == [1.0, 0.0, 0.0]
    for seen, answer in sums.demonstrations("solver", 20, 0, good=1.0):
        assert sum(map(int, seen.split()[2:])) == int(answer)
        assert {*seen.split(), answer} <= set(sums.vocabulary())


def workflows(known: Plugins) -> None:
    workflow, policy = team(known)
    assert check_workflow(workflow, TASK, policy).answer == "7"


def rewards(known: Plugins) -> None:
    short = known.get("rewards", "short")
    assert [short(None, SimpleNamespace(action=SimpleNamespace(length=n)), None) for n in (32, 33)] == [1.0, 0.0]


def samplers(known: Plugins) -> None:
    workflow, policy = team(known)
    sums = known.get("tasks", "sums")()
    sample = check_sampler(known.get("samplers", "until")(episodes=4), workflow, TASK, policy, tasks=sums)
    assert len(sample.episodes) == 1, "the first episode came to 7 in its second round"
    # no token is certain, all others have log-probability -1: the checker's turn is the most uncertain
    unsure = ScriptedPolicy({"solver": "", "checker": lambda act, session, candidate: f"{candidate}"})
    first, *others = check_sampler(known.get("samplers", "resample")(leaves=3), workflow, TASK, unsure).episodes
    assert len(others) == 2
    for episode in others:
        assert episode.turns[0].action is first.turns[0].action
        assert episode.turns[1].action.text != first.turns[1].action.text
    once = type(workflow)(rounds=1)
    policy = ScriptedPolicy({"solver": policy.replies["solver"], "checker": "none"})
    sample = check_sampler(
        known.get("samplers", "until")(episodes=4),
        type(once)(rounds=2),
        Task("0+0", "0 + 0", {"sum": 9}),
        policy,
        tasks=sums,
    )
    assert len(sample.episodes) == 4, "no agent ever answers 9"


def credits(known: Plugins) -> None:
    [per_token] = parts_of(known, "per-token")[0].credit
    table = RowTable.from_rows([{**ROWS[0], "rewards": {"team": 3.0}, "length": 4}])
    assert per_token.compute(table).tolist() == [0.75]
    workflow, policy = team(known)
    for credit in parts_of(known, "progress")[0].credit:
        episode, *_ = check_credit(credit, workflow, TASK, policy, known.get("tasks", "sums")())
        assert [turn.rewards[credit.component] for turn in episode.turns] == [0.0, 0.0, 1.0]


def mixes_and_returns(known: Plugins) -> None:
    rows = [{**ROWS[0], "index": i, "length": i, "rewards": {"team": 2.0, "role": 1.0 * i}} for i in range(2)]
    method, result = parts_of(known, "gated", rows)
    assert result.reward.tolist() == [0.0, 2.0]
    assert result.ret[1] == 2.0 * method.advantage.returns.gamma


def advantages(known: Plugins) -> None:
    method, result = parts_of(known, "above-worst", ROWS)
    assert method.advantage.baseline.compute(VALUE, GROUP).tolist() == [1.0, 5.0, 1.0]
    assert method.advantage.std.compute(VALUE, GROUP).tolist() == [1.0, 0.0]
    assert result.group_by == ("uid", "policy")
    assert result.advantage.min() == 0.0
    assert parts_of(known, "centred", ROWS, "batch")[1].advantage.sum() == pytest.approx(0)


def losses(known: Plugins) -> None:
    loss = known.get("losses", "reinforce-sum")
    assert isinstance(loss, Loss)
    assert loss.one_update
    known.entry("losses", "smooth-clip")  # `test_my_loss` of the page is run below


def metrics_and_columns(known: Plugins) -> None:
    method = known.get("algorithms", "entropy-weighted")
    [opinions], [function] = method.metrics, method.columns
    answers = SimpleNamespace(episodes=[SimpleNamespace(answer=a) for a in "aab"])
    assert opinions.of_sample(answers) == {"team/opinions": 2.0}
    workflow, policy = team(known)
    sample = check_sampler(known.get("samplers", "until")(episodes=2), workflow, TASK, policy)
    rows = []
    for turn in sample.turns:
        turn.action = replace(turn.action, log_probs=[-1.0 - turn.index] * turn.length)
        turn.columns, turn.team_reward = function(turn, None), float(turn.index)
        rows.append(row_of(turn))
    plain = check_algorithm(Advantage(), rows, reach="batch")
    weighted = check_algorithm(method, rows, reach="batch")
    nll = np.array([1.0 + turn.index for turn in sample.turns])
    assert weighted.advantage.tolist() == pytest.approx((plain.advantage * nll / nll.mean()).tolist())
    assert plain.advantage.any()
    rows = [{**row, "columns": {"token-nll": [0.1, 0.9, 0.2, 0.3, 0.1]}, "length": 5} for row in rows]
    forked = parts_of(known, "forking-tokens", rows)[1]
    assert [forked.of_tokens(0, 5).tolist()] == [[0.0, forked.advantage[0], 0.0, 0.0, 0.0]]


def scripts(known: Plugins) -> None:
    said = {known.get("scripts", "sometimes")([{"role": "user", "content": "yes"}], Random(seed)) for seed in range(9)}
    assert said == {"yes", "no"}


def algorithms(known: Plugins) -> None:
    result = check_algorithm(known.get("algorithms", "role-grpo"), ROWS)
    assert result.reward.tolist() == [r["rewards"]["team"] + r["rewards"]["role"] / 2 for r in ROWS]
    assert [credit.name for credit in known.get("algorithms", "step-grpo").credit] == ["step-groups"]
    for check in (credits, mixes_and_returns, advantages, metrics_and_columns):
        check(known)
    assert check_algorithm(known.get("algorithms", "brief-grpo"), ROWS).group_by == ("uid", "agent")


def episode_finished(known: Plugins) -> None:
    known.hook.marl_episode_finished(episode=SimpleNamespace(turns=[1, 2]))


def step_finished(known: Plugins) -> None:
    known.hook.marl_step_finished(step=7, metrics={"train/success": 0.5})


def a_command(known: Plugins) -> None:
    parser = argparse.ArgumentParser()
    known.get("commands", "size").add_arguments(parser)
    assert known.get("commands", "size").run(parser.parse_args([str(ROOT / "recipes" / "quickstart")])) == 0


USES: dict[str, Callable[[Plugins], None]] = {
    "marl_episode_finished": episode_finished,
    "marl_step_finished": step_finished,
    "registry.task": tasks,
    "registry.workflow": workflows,
    "registry.reward": rewards,
    "registry.sampler": samplers,
    "registry.loss": losses,
    "registry.script": scripts,
    "registry.algorithm": algorithms,
    "registry.command": a_command,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_does_what_it_says(section: str, known: Plugins) -> None:
    USES[section](known)


def test_the_observers_saw_it(shown: dict[str, types.ModuleType], known: Plugins) -> None:
    episode_finished(known)
    step_finished(known)
    assert shown["marl_episode_finished-1"].lengths[-1] == 2
    assert shown["marl_step_finished-1"].curve[-1] == (7, 0.5)


def test_the_tests_that_are_shown_pass(shown: dict[str, types.ModuleType]) -> None:
    ran = 0
    for module in shown.values():
        for name, test in list(vars(module).items()):
            if name.startswith("test_"):
                test()
                ran += 1
    assert ran == 5


# The other blocks


@pytest.mark.slow
@here("yaml")
def test_a_part_of_a_recipe_composes(
    block: Block, known: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose(block, known, tmp_path, monkeypatch)


@pytest.mark.slow
@here("yml")
def test_another_part_of_a_recipe_composes(
    block: Block, known: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose(block, known, tmp_path, monkeypatch)


def compose(block: Block, known: Plugins, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the quickstart recipe the block makes a run that can start."""
    monkeypatch.setattr(plugins, "load", lambda: known)
    recipe: Any = OmegaConf.load(INVENTORY)
    part: Any = OmegaConf.create(block.code)
    if "policies" in part.marl:  # another team: not these two besides
        del recipe.marl.agents, recipe.marl.policies
    OmegaConf.save(OmegaConf.merge(recipe, part), folder / "shown.yaml")
    described = describe(plan_run(folder / "shown.yaml", ["marl.task.train_size=40", "marl.task.test_size=5"]))
    for name in re.findall(r"name: ([\w-]+)", block.code):
        assert name in described


@here("json")
def test_rows_that_are_shown_can_be_explained(block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.json").write_text(block.code, encoding="utf-8")
    assert main(["explain", str(tmp_path / "rows.json"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(json.loads(block.code)["rows"])


@here("python", "sampling.md")
def test_a_piece_of_a_workflow_is_one(block: Block) -> None:
    """The line of the docs is inside `run`, where there are a task and a team."""
    code = "from marl_verl import Workflow\n\nclass Shown(Workflow):\n    async def run(self, task, team):\n"
    module: dict[str, Any] = {"__name__": "shown_piece"}
    exec(code + textwrap.indent(block.code, " " * 8) + " " * 8 + "return draft.text\n", module)
    run = check_workflow(module["Shown"](), TASK, ScriptedPolicy({"solver": "7"}))
    assert run.proposals == ["7"]


# The pages of the five methods and their recipes


OTHERS = sorted([*ROOT.glob("recipes/*/README.md"), *ROOT.glob("plugins/*/README.md")])
METHODS = [block for path in OTHERS for block in blocks(path)]


@pytest.mark.parametrize("block", [each for each in METHODS if each.language == "python"], ids=lambda b: b.page)
def test_what_a_method_shows_runs(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("shown_by_a_method")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(block.code, block.page, "exec"), vars(module))


@pytest.mark.slow
@pytest.mark.parametrize("block", [each for each in METHODS if each.language == "yaml"], ids=lambda b: b.page)
def test_what_a_method_shows_goes_over_its_recipe(block: Block, tmp_path: Path) -> None:
    (path,) = (ROOT / "recipes" / block.page.split("/")[1]).glob("*cpu.yaml")
    recipe = OmegaConf.load(path)
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(block.code)), tmp_path / "shown.yaml")
    room = ["data.max_prompt_length=80", "actor_rollout_ref.rollout.max_model_len=128"]  # what is shown may need more
    assert "policy  " in describe(plan_run(tmp_path / "shown.yaml", room))


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line that can be typed, without what explains it."""
    for block in [*BLOCKS, *METHODS]:
        for line in block.code.replace("\\\n", "").splitlines() if block.language in TYPED else ():
            typed = re.split(r"\s{2,}|\s#", re.sub(r"^\s*(\$ )?(\.venv/bin/)?", "", line))[0]
            if re.match(r"(marl-verl|make|python -m) ", typed):
                yield block.page, typed


@pytest.mark.parametrize(("page", "typed"), sorted(set(commands())))
def test_a_command_that_is_shown_is_one(page: str, typed: str) -> None:
    program, first, *more = shlex.split(typed)
    if program == "marl-verl":
        _parse([first, *more])  # MarlError for an option that there is not
    elif program == "make":
        assert re.search(rf"^{first}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif more[0] not in ("pip", "build", "twine", "pytest"):
        assert importlib.util.find_spec(more[0]), f"python -m {more[0]}"


def test_every_command_is_shown() -> None:
    assert {shlex.split(typed)[1] for _, typed in commands() if typed.startswith("marl-verl ")} == {
        *COMMANDS,
        *registered(),
    }
