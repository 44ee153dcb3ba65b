"""`marl-verl selftest`: report, time limits and Ctrl-C with the checks of `selftest_checks.py`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.waiting import alive, wait_until

CODE = """
import sys, signal; signal.signal(signal.SIGINT, signal.default_int_handler)
from marl_verl_diagnose import selftest; from marl_verl.cli.main import main; from tests import selftest_checks
selftest.checks = selftest_checks; sys.exit(main(["selftest", *sys.argv[1:]]))
"""


def start(folder: Path, *only: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, "--output", str(folder), *(["--only", *only] if only else [])]
    env = {**os.environ, "PYTEST_ADDOPTS": ""}
    return subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True, env=env)


def reported(folder: Path) -> tuple[dict[str, ElementTree.Element], dict[str, Any]]:
    """The checks of a report by name, and the properties of the whole."""
    root = ElementTree.parse(folder / "report.xml").getroot()
    facts = {item.attrib["name"]: json.loads(item.attrib["value"]) for item in root.findall("./testsuite/properties/*")}
    return {case.attrib.get("name", ""): case for case in root.iter("testcase")}, facts


def test_a_failed_or_hanging_check_does_not_stop_the_others(tmp_path: Path) -> None:
    with start(tmp_path / "new") as process:
        out, _ = process.communicate(timeout=120)
    checked, facts = reported(tmp_path / "new")
    assert process.returncode == 1, out
    failures = {name: case.find("failure") for name, case in checked.items()}
    texts = {name: "" if failure is None else failure.attrib["message"] for name, failure in failures.items()}
    assert texts == {
        "test_passes": "",
        "test_fails": "ValueError: differs by 0.3",
        "test_hangs": "TimeoutError: not finished after 5 s",
        "test_later": "",
    }
    figures = {item.attrib["name"]: item.attrib["value"] for item in checked["test_passes"].iter("property")}
    assert figures == {"tokens per second": "12.3456789", "gpus": "1"}
    assert "line 99" in (checked["test_fails"].findtext("system-out") or "")
    wait_until(lambda: not alive(int((tmp_path / "new" / "work" / "hanging.pid").read_text())))
    assert {"verl", "torch"} <= set(facts["packages"])
    assert facts["machine"]["cpus"] == os.cpu_count()
    assert "differs by 0.3" in out


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    child = tmp_path / "new" / "work" / "hanging.pid"
    with start(tmp_path / "new", "passes", "hangs") as process:
        wait_until(lambda: process.poll() is not None or (child.is_file() and child.read_text()), 60)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    wait_until(lambda: not alive(int(child.read_text())))
    assert "test_passes" in reported(tmp_path / "new")[0]  # of what has been checked until then
