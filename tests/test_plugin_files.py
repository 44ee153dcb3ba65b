"""A plugin in one file: loaded from its contents in every process, copied into the run, and compared on resume."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_inspect.files import use_plugin_files

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.plugins import loading, one_file
from marl_verl.run import prepare
from marl_verl.run.progress import Display
from marl_verl.run.reading import run_of
from tests.run_folder import made_run

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart"
PLUGIN = '''
from dataclasses import dataclass
from typing import Optional
from marl_verl import Task, TaskSet, hookimpl

class Ones(TaskSet):
    """Every answer is 1."""
    length: Optional[int] = None
    def generate(self, split, count, seed):
        return [Task(f"{split} {i}", "one") for i in range(count)]
    def score(self, task, answer):
        return float(answer == "1")

@dataclass
class Pair:
    left: int = 1

def is_one(task, turn, episode):
    return float(turn.action.text == "1")

@hookimpl
def marl_register(registry):
    registry.task("NAME", Ones)
    registry.task("NAME-lazy", f"{__name__}:Ones")
    registry.reward("NAME-reward", is_one)
'''
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a plugin file that registers "NAME"."""

    def put(name: str = "ones", file: str = "ones.py", code: str = PLUGIN) -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code.replace("NAME", name), encoding="utf-8")
        return path

    return put


def used(*paths: Path) -> Any:
    plugins.use_files(one_file.read_files(paths))
    return plugins.load()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ndef f(:\n", r"ones\.py': SyntaxError: .*\(ones\.py, line 2\)"),
        ("import json\nimport nowhere\n", r"ModuleNotFoundError: No module named 'nowhere' \(.*ones\.py, line 2\)"),
        ("x = 1\n", r"ones\.py [0-9a-f]{12} \(plugin 'ones'\) cannot be loaded from .*: it implements no hook"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error(write: Write, code: str, message: str) -> None:
    with pytest.raises(MarlError, match=message):
        used(write(code=code))


def test_another_process_needs_no_file_and_a_changed_one_is_noticed(write: Write) -> None:
    path = write()
    mine = used(path).fingerprint()
    path.unlink()  # as on a node that does not see the run directory
    code = "import json; from marl_verl import plugins; print(json.dumps(plugins.load().fingerprint()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    theirs = tuple(json.loads(done.stdout))
    assert theirs == mine
    loading.check_same(mine, theirs, "rollout worker 0")

    changed = used(write(code=PLUGIN + "# changed\n")).fingerprint()
    with pytest.raises(MarlError, match=r"only one of the driver and rollout worker 0 has"):
        loading.check_same(changed, theirs, "rollout worker 0")


@pytest.fixture
def recipe(no_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """README's two files in one folder, used from another folder."""
    place = tmp_path / "mine"
    place.mkdir()
    for name in ("my_team.py", "my_team.yaml"):
        (place / name).write_bytes((QUICKSTART / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return place / "my_team.yaml"


@pytest.fixture
def run(recipe: Path) -> Path:
    """The run directory of the pair, with a checkpoint at step 10."""
    folder = made_run(recipe, 10, "marl.task.train_size=40")
    plugins.use_files([])
    return folder


@pytest.mark.slow
def test_the_run_has_a_copy_which_every_process_loads(recipe: Path, run: Path) -> None:
    assert (run / "plugins" / "my_team.py").read_bytes() == recipe.with_name("my_team.py").read_bytes()
    (file,) = one_file.files_of_run(run)
    described = json.loads((run / "plugins.json").read_text())
    assert file.source.version in [record["version"] for record in described if record["distribution"] == "my_team.py"]
    for name in ("journals/step_00001.jsonl", "rows/step_00001.json.gz", "evaluations/step_20.jsonl"):
        use_plugin_files(run_of(run / name), [])
        assert "largest-digit" in plugins.load().names("tasks")
        use_plugin_files(run_of(Path("elsewhere.jsonl")), [])
        assert "largest-digit" not in plugins.load().names("tasks")
    recipe.with_name("my_team.py").write_text("x = 1\n")
    with pytest.raises(MarlError, match=r"differs from '.*plugins/my_team\.py', which the run uses"):
        one_file.files_of_run(run, [recipe.with_name("my_team.py")])


@pytest.mark.slow
def test_a_continued_run_uses_its_copy(recipe: Path, run: Path) -> None:
    recipe.with_name("my_team.py").unlink()
    plan = prepare.continue_run(run, [])
    assert plan.notes == (f"plugin files are the run's copies in '{run / 'plugins'}'; a new run uses others",)
    prepare.make_run_directory(plan, Display())
    assert [file.path for file in one_file.files_in_use()] == [str(run.resolve() / "plugins" / "my_team.py")]


@pytest.mark.slow
def test_a_changed_copy_is_noticed_on_resume(run: Path) -> None:
    copy = run / "plugins" / "my_team.py"
    text = copy.read_text()
    (file,) = one_file.files_of_run(run)
    copy.write_text(text + "# changed\n")
    (changed,) = one_file.files_of_run(run)
    old, new = file.source.version, changed.source.version
    message = rf'plugin\.my_team\.py \("{old}" -> "{new}"\)\. Restore these settings to resume the run'
    with pytest.raises(MarlError, match=message):
        prepare.continue_run(run, [])
    copy.unlink()
    with pytest.raises(MarlError, match=rf'"{old}" -> nothing'):
        prepare.continue_run(run, [])
    copy.write_text(text)
    (run / "plugins" / "more.py").write_text(text)
    with pytest.raises(MarlError, match=r"plugin\.more\.py \(nothing -> "):
        prepare.continue_run(run, [])
