"""One check of `marl-verl selftest` on the real stack; all of them with MARL_VERL_LONG=1."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from marl_verl_diagnose.selftest import checks

from tests.e2e.conftest import left_behind, left_running, long

pytestmark = pytest.mark.e2e


@long
def test_all_checks(tmp_path: Path) -> None:
    before, folder = left_behind(), tmp_path / "new"
    command = [sys.executable, "-m", "marl_verl.cli.main", "selftest", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert left_running() == []
    assert left_behind() <= before
    cases = ElementTree.parse(folder / "report.xml").getroot().iter("testcase")
    assert [case.attrib["name"] for case in cases] == [name for name in vars(checks) if name.startswith("test_")]
