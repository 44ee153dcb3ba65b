"""The recipe: it composes against verl's config, with every part found by its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[1] / "recipes" / "train.yaml"


@pytest.mark.slow
def test_the_recipe_is_right() -> None:
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(RECIPE), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sampler=my-method-saving" in done.stdout
