"""What README, docs, tutorials and notebooks show runs: Python, parts of recipes, rows, and commands."""

import importlib.util
import json
import re
import shlex
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.cli.main import _parse, main
from marl_verl.errors import MarlError
from marl_verl.plugins import Registry, loading
from marl_verl.plugins.registry import KINDS
from marl_verl.run.describe import describe
from marl_verl.run.prepare import plan_run
from tests.run_folder import run_folder

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "recipes" / "quickstart"
SMALL = ["marl.task.train_size=40", "marl.task.test_size=5"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIALS = ("tutorial-first-team.md", "tutorial-reward.md", "tutorial-tree.md", "tutorial-algorithm.md", "spawn.md")


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


BLOCKS = [block for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] for block in blocks(path)]
READMES = sorted([*ROOT.glob("recipes/*/README.md"), *ROOT.glob("plugins/*/README.md")])
METHODS = [block for path in READMES for block in blocks(path)]


def of(page: str, *languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.page == page and block.language in languages]


def cases(chosen: list[Block]) -> Any:
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"{block.page}-{block.number}")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the files of the quickstart, which can be imported there."""
    for name in ("my_team.py", "my_team.yaml"):
        shutil.copy(QUICKSTART / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_team", None)


def ran(codes: list[str], name: str) -> dict[str, Any]:
    """The names of a module that consists of all the codes; the tests in it pass."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    for code in codes:
        exec(compile(code, name, "exec"), vars(module))
    for key, test in list(vars(module).items()):
        if key.startswith("test_"):
            test()
    return vars(module)


def test_every_method_and_observer_has_a_section() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    methods = [f"registry.{name}" for name in vars(Registry) if not name.startswith("_") and name != "entries"]
    sections = re.findall(r"^### ((?:marl_|registry\.)\w+)$", text, re.MULTILINE)
    assert sorted(sections) == sorted([*methods, *loading.HOOKS - {"marl_register"}])


@pytest.fixture(scope="module")
def known() -> Any:
    """The examples of plugins.md and algorithms.md, each a plugin: no two have one name. One sees what is above it."""
    modules: dict[str, Any] = {}
    above: dict[str, dict[str, Any]] = {}
    for block in [*of("plugins.md", "python"), *of("algorithms.md", "python", "py")]:
        name = f"docs_{block.page.removesuffix('.md')}_{block.number}"
        module = types.ModuleType(name)
        sys.modules[name] = module
        cloudpickle.register_pickle_by_value(module)  # it has no file
        vars(module).update(above.get(block.section, {}) if block.section else {})
        exec(compile(block.code, name, "exec"), vars(module))
        above[block.section] = {n: v for n, v in vars(module).items() if not n.startswith(("_", "marl_", "test_"))}
        modules[name] = module
    found = {name: module for name, module in modules.items() if any(hook.startswith("marl_") for hook in vars(module))}
    return plugins.assemble(found, None)


def test_every_example_registers_what_can_be_used_and_its_tests_pass(known: Any) -> None:
    for kind in KINDS:
        for entry in known.entries(kind):
            if not str(entry.target).startswith("my_package"):  # the page says that it is the reader's
                known.get(kind, entry.name)
    tests = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("docs_plugins_")
        for key, value in vars(module).items()
        if key.startswith("test_")
    ]
    assert len(tests) >= 5
    for test in tests:
        test()


@pytest.mark.parametrize("page", TUTORIALS)
def test_the_python_of_a_tutorial_runs(page: str) -> None:
    names = ran([block.code for block in of(page, "python")], "tutorial")
    assert [name for name in names if name.startswith("test_")] or names.keys() & {"result", "sample"}


@cases([block for block in METHODS if block.language == "python"])
def test_what_a_method_shows_runs(block: Block) -> None:
    ran([block.code], "shown_by_a_method")


def cells(name: str, without: str = "") -> list[str]:
    """The code of a notebook, cell by cell, without those that have a tag."""
    notebook = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "clear its outputs"
    used = [cell for cell in notebook["cells"] if without not in cell["metadata"].get("tags", [])]
    return ["".join(cell["source"]) for cell in used if cell["cell_type"] == "code"]


def test_the_notebooks(tmp_path: Path) -> None:
    names = ran(cells("first_team.ipynb", without="trains"), "notebook")
    assert [episode.session for episode in names["sample"].episodes] == [0, 1, 2, 3]
    assert names["result"].advantage.std() > 0
    folder = run_folder(tmp_path / "runs" / "my_team-1")
    names = ran(cells("reading_a_run.ipynb"), "notebook")
    assert str(folder).endswith(names["FOLDER"])
    assert [step for step, _ in names["curve"]] == [1, 2, 3]


def planned(recipe: Path, part: str, *overrides: str) -> str:
    """The description of a run whose recipe has a shown part over it."""
    whole: Any = OmegaConf.load(recipe)
    shown: Any = OmegaConf.create(part)
    if "policies" in shown.marl and "agents" in shown.marl:  # another team: not these two besides
        del whole.marl.agents, whole.marl.policies
    whole.marl.plugins = [str(recipe.parent / name) for name in whole.marl.get("plugins", [])]
    OmegaConf.save(OmegaConf.merge(whole, shown), "shown.yaml")
    return describe(plan_run(Path("shown.yaml"), list(overrides)))


@pytest.mark.slow
@cases([*of("plugins.md", "yaml"), *of("algorithms.md", "yml"), *of("sampling.md", "yaml"), *of("teams.md", "yaml")])
def test_a_part_of_a_recipe_fits_the_quickstart(block: Block, known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load", lambda: known)
    described = planned(QUICKSTART / "inventory.yaml", block.code, *SMALL)
    for name in re.findall(r"name: ([\w-]+)", block.code):
        assert name in described


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS[:3])
def test_the_recipe_of_a_tutorial_composes(page: str) -> None:
    part = of(page, "yaml")[-1].code  # the first tutorial has its whole recipe before
    if "my_reward.py" in part:
        Path("my_reward.py").write_text(of(page, "python")[0].code, encoding="utf-8")
    described = planned(QUICKSTART / "my_team.yaml", part, *SMALL)
    for name in re.findall(r"name: ([\w-]+)", part):
        assert name in described


@pytest.mark.slow
@cases([block for block in METHODS if block.language == "yaml"])
def test_what_a_method_shows_goes_over_its_recipe(block: Block) -> None:
    (recipe,) = (ROOT / "recipes" / block.page.split("/")[1]).glob("*cpu.yaml")
    room = ["data.max_prompt_length=80", "actor_rollout_ref.rollout.max_model_len=128"]  # what is shown may need more
    assert "policy  " in planned(recipe, block.code, *room)


@pytest.mark.slow
def test_readme_and_the_first_tutorial_are_the_files_of_the_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    assert [block.code for block in of("README.md", "python")] == [(QUICKSTART / "first_team.py").read_text("utf-8")]
    first = [of(TUTORIALS[0], language)[0].code for language in ("python", "yaml")]
    assert first == [(QUICKSTART / f"my_team.{suffix}").read_text("utf-8") for suffix in ("py", "yaml")]
    shutil.copy(QUICKSTART / "first_team.py", "first_team.py")
    command = re.search(r"^marl-verl (train [^#]*)", README.replace("\\\n", ""), re.MULTILINE)
    assert command is not None
    Path("recipes").symlink_to(ROOT / "recipes")
    assert main([*shlex.split(command[1]), "--dry-run"]) == 0
    assert "role reward sends-all" in capsys.readouterr().out
    Path("team.yaml").write_text(of("gpu.md", "yaml")[0].code, encoding="utf-8")
    with pytest.raises(MarlError, match="no model folder of policy 'sender'"):
        plan_run(Path("team.yaml"), [])


@cases(of("explain.md", "json"))
def test_rows_that_are_shown_can_be_explained(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.json").write_text(block.code, encoding="utf-8")
    assert main(["explain", "rows.json", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(json.loads(block.code)["rows"])


def test_every_command_that_is_shown_is_one() -> None:
    shown = set()
    for block in [*BLOCKS, *METHODS]:
        for line in block.code.replace("\\\n", "").splitlines() if block.language in ("", "bash", "console") else ():
            typed = re.split(r"\s{2,}|\s#", re.sub(r"^\s*(\$ )?(\.venv/bin/)?", "", line))[0]
            if re.match(r"(marl-verl|make|python -m) ", typed):
                shown.add(typed)
    assert len(shown) > 50
    for typed in sorted(shown):
        program, first, *more = shlex.split(typed)
        if program == "marl-verl":
            _parse([first, *more])  # MarlError for an option that there is not
        elif program == "make":
            assert re.search(rf"^{first}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif more[0] not in ("pip", "build", "twine", "pytest"):
            assert importlib.util.find_spec(more[0]), f"python -m {more[0]}"
