"""The recipes' own script, and the code that the READMEs show."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

PLUGIN = Path(__file__).parents[1]
RECIPES = PLUGIN.parents[1] / "recipes" / "dr_mas"


def made_run(folder: Path, norms: list[float]) -> Path:
    folder.mkdir()
    summary = {
        **{"steps": len(norms), "eval_tasks": 10, "policies": {"solver": {}, "fixed": {}}, "agents": {"solver": {}}},
        **{"success_before": 0.1, "success_after": 0.9, "success_after_interval": [0.6, 0.98]},
        **{"success_before_sampled": 0.2, "success_after_sampled": 0.8},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    lines: list[dict[str, Any]] = [{"step": 0, "validation/success": 0.1}]
    for step, norm in enumerate(norms, start=1):
        amplified = {"amplification": step, "amplification/spread": 0.5, "amplification/shift": step - 0.5}
        lines.append({"step": step, "train/success": 0.5, "policy/solver/grad_norm": norm})
        lines[-1] |= {f"agent/solver/{name}": value for name, value in {**amplified, "second_moment": 0.9}.items()}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_compare_prints_spikes_and_amplification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = runpy.run_path(str(RECIPES / "compare.py"))["main"]
    assert compare([str(made_run(tmp_path / "method", [1.0, 2.0, 8.0]))]) == 0
    printed = capsys.readouterr().out
    assert "greedy 10.0% -> 90.0% (60.0% to 98.0%), sampled 20.0% -> 80.0%" in printed
    assert "policy solver: gradient norm median 2.000, max 8.000, max/median 4.0" in printed
    assert "policy fixed" not in printed
    assert "agent solver: amplification 2.000 (spread 0.5000 + shift 1.500), A^2 0.900" in printed


def test_compare_of_another_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = runpy.run_path(str(RECIPES / "compare.py"))["main"]
    assert compare([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"compare: '{tmp_path}' is no run that has ended: it has no summary.json\n"


@pytest.mark.parametrize("readme", [PLUGIN / "README.md", RECIPES / "README.md"], ids=["plugin", "recipes"])
def test_python_in_a_readme_runs(readme: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{readme.name} {number}", "exec"), {})


@pytest.mark.slow
def test_yaml_in_the_readme_composes(tmp_path: Path) -> None:
    from marl_verl_testing.real import command
    from omegaconf import OmegaConf

    blocks = re.findall(r"```yaml\n(.*?)```", (PLUGIN / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        recipe = OmegaConf.merge(OmegaConf.load(RECIPES / "cpu.yaml"), OmegaConf.create(block))
        OmegaConf.save(recipe, tmp_path / "shown.yaml")
        assert "groups  rows with the same uid" in command("train", str(tmp_path / "shown.yaml"), "--dry-run")
