"""verl is imported while Ray starts: it must not change the tables of its usage that Ray is going through."""

from __future__ import annotations

import json
import subprocess
import sys

from marl_verl.trainer.run import NOTED_BY_RAY

LOOK = """
import importlib, json, sys
from ray._common.usage import usage_lib
def noted():
    return [sorted(usage_lib._recorded_library_usages), sorted(usage_lib._recorded_extra_usage_tags.items())]
before = noted()
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps([before, noted()]))
"""


def _noted(first: list[str], then: list[str]) -> tuple[list, list]:
    """Ray's tables before and after `then` is imported, in a process that has imported `first`."""
    source = "".join(f"import {module}\n" for module in first) + LOOK
    command = [sys.executable, "-c", source, *then]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    before, after = json.loads(done.stdout.splitlines()[-1])
    return before, after


def test_importing_verl_while_ray_starts_changes_no_table_of_rays():
    before, after = _noted(["ray", NOTED_BY_RAY], ["verl.trainer.ppo.v1"])
    assert after == before, (
        "verl imports more of Ray than before that Ray takes down (ray._common.usage): name it in NOTED_BY_RAY, "
        "or ray.init, which runs at the same time, can fail with 'dictionary changed size during iteration'"
    )


def test_what_is_imported_first_is_what_changes_them():
    before, after = _noted(["ray"], [NOTED_BY_RAY])
    assert after != before, f"{NOTED_BY_RAY} is not taken down by Ray any more: no need to import it first"
