"""The installed verl is used where the working directory is another checkout of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib.util, json, os, subprocess, sys
from marl_verl.config.recipe_file import verl_configs
from marl_verl.run.installed import use_installed_verl
def where():
    return importlib.util.find_spec("verl").origin
use_installed_verl()
environment = {**os.environ, "PYTHONPATH": sys.argv[1]}
child = subprocess.check_output([sys.executable, "-m", "child"], text=True, env=environment)
found = [where(), str(verl_configs()), child.strip()]
if "ray" in sys.argv:
    import ray
    from marl_verl.backend.verl.session import safe_job
    ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR", **safe_job())
    found.append(ray.get(ray.remote(where).remote()))
print(json.dumps(found))
"""
CHILD = "import importlib.util\nprint(importlib.util.find_spec('verl').origin)\n"


@pytest.mark.parametrize("more", [[], pytest.param(["ray"], marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_checkout_in_the_working_directory_is_not_used(more: list[str], tmp_path: Path) -> None:
    checkout, modules = tmp_path / "checkout", tmp_path / "modules"
    (checkout / "verl").mkdir(parents=True)
    (checkout / "verl" / "__init__.py").touch()
    (checkout / "program.py").write_text(PROGRAM)
    modules.mkdir()
    (modules / "child.py").write_text(CHILD)
    command = [sys.executable, "-m", "program", str(modules), *more]
    for paths in ("", f".{os.pathsep}{checkout}"):
        env = {**os.environ, "PYTHONPATH": paths} if paths else dict(os.environ)
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        origins = json.loads(done.stdout.splitlines()[-1])
        assert len(origins) == 3 + len(more)
        assert not [origin for origin in origins if origin.startswith(str(checkout))]


def test_a_checkout_that_is_the_only_verl_is_used(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    program = "import sys; from marl_verl.run import installed as here; before = [*sys.path]; "
    program += "here.PathFinder.find_spec = lambda name, path: None; here.use_installed_verl(); "
    command = [sys.executable, "-c", program + "assert sys.path == before"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
