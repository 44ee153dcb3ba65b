"""A plugin in one file: loaded from its contents in every process, copied into the run, and compared on resume."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from marl_verl_tiny.model import TinyModel, ensure_all
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.cli.main import main
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.inspect.run_files import run_of, use_plugin_files
from marl_verl.options import build
from marl_verl.plugins import one_file as plugin_files
from marl_verl.run import prepare
from marl_verl.run.checkpoint.team import describe
from marl_verl.run.progress import Display

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart"
PLUGIN = '''
from __future__ import annotations
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


@pytest.fixture(autouse=True)
def _no_files() -> Iterator[None]:
    """No plugin file is in use before and after a test."""
    plugins.use_files([])
    yield
    plugins.use_files([])
    os.environ.pop(plugin_files.FILES_VARIABLE, None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a plugin file that registers "NAME"."""

    def put(name: str = "ones", file: str = "ones.py", code: str = PLUGIN) -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code.replace("NAME", name), encoding="utf-8")
        return path

    return put


def test_the_page_names_the_file_as_the_recipe_does() -> None:
    page = (Path(__file__).parents[1] / "docs" / "one-file-plugins.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    shown: Any = OmegaConf.create(block)
    recipe: Any = OmegaConf.load(QUICKSTART / "my_team.yaml")
    assert shown.marl.plugins == recipe.marl.plugins == ["my_team.py"]


def used(*paths: Path) -> plugins.Plugins:
    plugins.use_files(plugins.read_files(paths))
    return plugins.load()


def test_a_file_registers_several_kinds(write: Write) -> None:
    path = write()
    known, (file,) = used(path), plugins.read_files([path])
    assert known.get("tasks", "ones") is known.get("tasks", "ones-lazy")
    assert known.get("rewards", "ones-reward").__name__ == "is_one"
    entry = known.entry("tasks", "ones")
    assert (entry.distribution, entry.version) == ("ones.py", file.version)
    assert f"ones.py=={file.version}:ones" in known.fingerprint()
    assert plugins.load() is known
    assert "ones" not in used().names("tasks")


def test_a_file_is_a_module_of_its_own(write: Write) -> None:
    path = write()
    task_set = used(path).get("tasks", "ones")
    assert build(task_set, {"length": 3}, "marl.task.options").length == 3  # its type hints are text
    module = sys.modules[task_set.__module__]
    assert pickle.loads(pickle.dumps(module.Pair(2))) == module.Pair(2)
    path.unlink()
    assert inspect.getsource(module.is_one).startswith("def is_one(task, turn, episode):\n    return float(")


PARTS = """
from dataclasses import dataclass
from marl_verl.algo.algorithms import Algorithm, Metric
from marl_verl.plugins import hookimpl

@dataclass(frozen=True)
class Opinions(Metric):
    factor: float = 1.0

def length(turn, episode):
    return {"length": turn.length}

@hookimpl
def marl_register(registry):
    registry.algorithm("plain", Algorithm())
"""


def test_parts_of_the_file_of_an_algorithm_have_short_names(write: Write) -> None:
    used(write(code=PARTS))
    options = {"metrics": [{"name": "opinions", "factor": 2}], "columns": ["length"]}
    algorithm: Any = algorithm_named("plain", options, "o")
    assert (algorithm.metrics[0].factor, algorithm.columns[0].__name__) == (2, "length")
    assert algorithm_named("plain", algorithm.options(), "o") == algorithm


def test_two_files_of_one_name_both_work(write: Write) -> None:
    first, second = write("one", "a/my.py"), write("two", "b/my.py")
    known = used(first, second, first)
    assert known.entry("tasks", "one").distribution == "my.py"
    assert known.entry("tasks", "two").distribution == "2/my.py"
    assert known.get("tasks", "one") is not known.get("tasks", "two")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ndef f(:\n", r"plugin file '.*ones\.py', line 2: syntax error: .*"),
        ("import json\nimport nowhere\n", r"'.*ones\.py', line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("\n\n1 / 0\n", r"'.*ones\.py', line 3: ZeroDivisionError: division by zero"),
        ("x = 1\n", r"ones\.py [0-9a-f]{12} \(plugin 'ones'\) implements no hook"),
        ("def marl_registre(registry): ...\n", r"unknown hook 'marl_registre': did you mean 'marl_register'\?"),
        (
            "from marl_verl.plugins import hookimpl\n@hookimpl\nasync def marl_register(registry): ...\n",
            "never awaited",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error(write: Write, code: str, message: str) -> None:
    with pytest.raises(MarlError, match=message):
        used(write(code=code))


def test_a_path_that_is_no_plugin_file_is_an_error(write: Write, tmp_path: Path) -> None:
    path = write()
    with pytest.raises(MarlError, match=r"no plugin file '.*onse\.py': did you mean '.*ones\.py'\?"):
        plugins.read_files([path.with_name("onse.py")])
    with pytest.raises(MarlError, match=r"'.*' does not end in \.py\. Give a Python file"):
        plugins.read_files([tmp_path])
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MarlError, match="is not UTF-8 text"):
        plugins.read_files([path])


def test_files_that_are_too_large_are_an_error(write: Write) -> None:
    noise = "".join(f"# {os.urandom(30).hex()}\n" for _ in range(3000))
    with pytest.raises(MarlError, match=r"plugin files ones\.py take .* bytes packed, but the limit is 65,536"):
        used(write(code=noise))


# other processes


def fingerprint_elsewhere() -> tuple[str, ...]:
    """What a new process has, which is given nothing but the environment."""
    code = "import json; from marl_verl import plugins; print(json.dumps(plugins.load().fingerprint()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return tuple(json.loads(done.stdout))


def test_another_process_needs_no_file_and_a_changed_one_is_noticed(write: Write) -> None:
    path = write()
    mine = used(path).fingerprint()
    path.unlink()  # as on a node that does not see the run directory
    theirs = fingerprint_elsewhere()
    assert theirs == mine
    plugins.check_same(mine, theirs, "rollout worker 0")

    changed = used(write(code=PLUGIN + "# changed\n")).fingerprint()
    with pytest.raises(MarlError, match=r"only the driver has ones\.py==[0-9a-f]{12}:ones, only rollout worker 0 has"):
        plugins.check_same(changed, theirs, "rollout worker 0")


@pytest.mark.slow
def test_a_cluster_gets_the_contents_and_the_network_settings(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.backend.verl import session

    given: dict[str, Any] = {}
    monkeypatch.setattr(session, "connect", lambda address, **options: given.update(options))
    monkeypatch.setattr(session, "check_slots", lambda config: None)
    monkeypatch.setattr(session, "endpoints", lambda config: {})
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth2")
    used(write())
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {"address": "auto"}}, "transfer_queue": {"enable": True}})
    session.start_ray(config)
    shipped = given["runtime_env"]["env_vars"][plugin_files.FILES_VARIABLE]
    assert shipped == os.environ[plugin_files.FILES_VARIABLE] != ""
    interfaces = [given["runtime_env"]["env_vars"][f"{library}_SOCKET_IFNAME"] for library in ("NCCL", "GLOO")]
    assert interfaces == ["eth1", "eth2"]


@pytest.mark.slow
def test_tiny_models_are_made_from_a_file(tmp_path: Path) -> None:
    used(QUICKSTART / "my_team.py")
    spec = TinyModel(task="largest-digit", agents=["sender"], steps=1, batch_size=2)
    (folder,) = ensure_all([spec], tmp_path)
    assert (folder / "model.safetensors").is_file()


# a run


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """README's two files in one folder, used from another folder."""
    place = tmp_path / "mine"
    place.mkdir()
    for name in ("my_team.py", "my_team.yaml"):
        (place / name).write_bytes((QUICKSTART / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "marl_verl_tiny.model.ensure_all", lambda specs, progress: [Path("/cache") / s.agents[0] for s in specs]
    )
    return place / "my_team.yaml"


@pytest.fixture
def run(recipe: Path) -> Path:
    """The run directory of the pair, with a checkpoint at step 10."""
    folder = prepare.make_run_directory(prepare.plan_run(recipe, ["marl.task.train_size=40"]), Display())
    saved = folder / "checkpoints" / "step_10"
    saved.mkdir(parents=True)
    config: Any = OmegaConf.load(folder / "config.yaml")
    (saved / "team.json").write_text(json.dumps({**describe(config, 10), "files": {}}))
    plugins.use_files([])
    return folder


slow = pytest.mark.slow


@slow
def test_dry_run_shows_the_file(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(recipe), "--dry-run"]) == 0
    assert "  plugin  my_team.py (content " in capsys.readouterr().out


@slow
def test_a_file_may_be_given_on_the_command_line(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(recipe.read_text().replace("  plugins: [my_team.py]\n", ""))
    assert main(["train", str(recipe), "--dry-run"]) == 2
    assert "unknown algorithm 'my-rloo'" in capsys.readouterr().err
    assert main(["train", str(recipe), "--dry-run", "--plugin", "mine/my_team.py"]) == 0
    assert main(["plugins", "--plugin", "mine/my_team.py"]) == 0
    assert "largest-digit" in capsys.readouterr().out


@slow
@pytest.mark.parametrize("given", ["my_team.py", "[1]", "[nothing.py]"])
def test_a_wrong_list_of_files_is_an_error(recipe: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(recipe), "--dry-run", f"marl.plugins={given}"]) == 2
    assert "plugin" in capsys.readouterr().err


@slow
def test_the_run_has_a_copy_which_every_process_loads(recipe: Path, run: Path) -> None:
    copy = run / "plugins" / "my_team.py"
    assert copy.read_bytes() == recipe.with_name("my_team.py").read_bytes()
    (file,) = plugins.files_of_run(run)
    described = json.loads((run / "plugins.json").read_text())
    assert file.version in [each["version"] for each in described if each["distribution"] == "my_team.py"]
    for name in ("journals/step_00001.jsonl", "rows/step_00001.json.gz", "evaluations/step_20.jsonl"):
        use_plugin_files(run_of(run / name), [])
        assert "largest-digit" in plugins.load().names("tasks")
        use_plugin_files(run_of("elsewhere.jsonl"), [])
        assert "largest-digit" not in plugins.load().names("tasks")
    recipe.with_name("my_team.py").write_text("x = 1\n")
    with pytest.raises(MarlError, match=r"differs from '.*plugins/my_team\.py' \(content .*, which run"):
        plugins.files_of_run(run, [recipe.with_name("my_team.py")])


@slow
def test_a_continued_run_uses_its_copy(recipe: Path, run: Path) -> None:
    recipe.with_name("my_team.py").unlink()
    plan = prepare.continue_run(run, [])
    assert plan.notes == ()
    prepare.make_run_directory(plan, Display())
    assert [file.path for file in plugins.files_in_use()] == [str(run.resolve() / "plugins" / "my_team.py")]

    recipe.with_name("my_team.py").write_text("x = 1\n")
    (note,) = prepare.continue_run(run, []).notes
    assert "has changed since the run began. The run continues with its copy" in note
    assert note.endswith(f"marl-verl train {recipe}")


@slow
def test_a_changed_copy_is_noticed_on_resume(run: Path) -> None:
    copy = run / "plugins" / "my_team.py"
    text = copy.read_text()
    (file,) = plugins.files_of_run(run)
    copy.write_text(text + "# changed\n")
    (changed,) = plugins.files_of_run(run)
    message = (
        rf"plugin 'my_team\.py' \({file.version} -> {changed.version}\)\. Restore these settings to resume the run"
    )
    with pytest.raises(MarlError, match=message):
        prepare.continue_run(run, [])
    copy.unlink()
    with pytest.raises(MarlError, match=rf"{file.version} -> not installed"):
        prepare.continue_run(run, [])
    copy.write_text(text)
    (run / "plugins" / "more.py").write_text(text)
    with pytest.raises(MarlError, match=r"plugin 'more\.py' \(not installed -> "):
        prepare.continue_run(run, [])


@slow
def test_other_files_need_a_new_run(recipe: Path, run: Path) -> None:
    with pytest.raises(MarlError, match=r"'marl\.plugins' cannot be changed in a continued run"):
        prepare.continue_run(run, ["marl.plugins=[]"])
    other = recipe.with_name("other.py")
    other.write_text((run / "plugins" / "my_team.py").read_text())
    with pytest.raises(MarlError, match=r"plugin 'other\.py' \(not installed -> "):
        prepare.continue_run(run, [], [other])
