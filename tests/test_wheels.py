"""All distributions as users get them: built wheels, installed into a fresh environment, and taken away.

The heavy packages are not installed twice: the fresh environment sees those of this one, all but marl-verl's own.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uv")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
EXTRAS = [path.parent.name.replace("_", "-") for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
OURS = ("marl_verl", "marl-verl", "__editable__", "_marl_verl", "_editable_impl")
BUILD = """
import os, sys
from hatchling.build import build_wheel
for project in sys.argv[2:]:
    os.chdir(project)
    build_wheel(sys.argv[1])
"""


class Fresh:
    """A virtual environment with everything that marl-verl needs and nothing of marl-verl."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder, self.wheels = folder, wheels
        run(sys.executable, "-m", "venv", "--without-pip", str(folder / "env"))
        self.python = folder / "env" / "bin" / "python"
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env"), "platbase": str(folder / "env")}))
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if path.name.lower().startswith(OURS) or path.suffix == ".pth":
                continue
            if path.suffix == ".dist-info":  # uv does not follow links
                shutil.copytree(path, site / path.name)
            else:
                (site / path.name).symlink_to(path)

    def pip(self, command: str, *words: str) -> str:
        """By uv: pip takes 20 seconds to read what is installed."""
        return run(sys.executable, "-m", "uv", "pip", command, "--python", self.python, *words, cwd=self.folder)

    def install(self, *wanted: str) -> None:
        """As `pip install` does it, all requirements checked, from our wheels alone."""
        self.pip("install", "--no-index", "--find-links", str(self.wheels), *wanted)

    def plugins(self) -> dict[str, dict[str, Any]]:
        program = "import json; from marl_verl import plugins; print(json.dumps(plugins.discover().describe()))"
        return {record["plugin"]: record for record in json.loads(run(self.python, "-c", program, cwd=self.folder))}


def run(*command: str | Path, cwd: Path | None = None, code: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    projects = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]
    run(sys.executable, "-c", BUILD, folder, *projects)  # as pip does in a process for each
    return folder


def test_there_is_a_wheel_of_each(wheels: Path) -> None:
    names = {path.name.split("-")[0] for path in wheels.glob("*.whl")}
    assert names == {"marl_verl", *(f"marl_verl_{extra.replace('-', '_')}" for extra in EXTRAS)}


def test_extras_install_plugins(wheels: Path, tmp_path: Path) -> None:
    fresh = Fresh(tmp_path, wheels)
    fresh.install("marl-verl")
    assert list(fresh.plugins()) == ["builtin"]
    place = run(fresh.python, "-c", "import marl_verl; print(marl_verl.__file__)", cwd=fresh.folder)
    assert place.startswith(str(fresh.folder))

    fresh.install("marl-verl[all]")
    everything = fresh.plugins()
    assert set(everything) == {"builtin", *EXTRAS}
    parts = []
    for extra in EXTRAS:
        parts += [(kind, name) for kind, names in everything[extra]["names"].items() for name in names]
    program = f"from marl_verl import plugins\nfor part in {parts!r}: plugins.load().get(*part)"
    run(fresh.python, "-c", program, cwd=fresh.folder)
    run(fresh.python, "-m", "marl_verl.cli.main", "recipes", "--copy", "mine", cwd=fresh.folder)
    variant = ("mine/sharp/cpu.yaml", "--variant", "shapley", "--dry-run")
    assert "shapley" in run(fresh.python, "-m", "marl_verl.cli.main", "train", *variant, cwd=fresh.folder)
