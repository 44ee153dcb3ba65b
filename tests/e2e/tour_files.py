"""What the tour's run has stored, by stage, and how its plugin is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_verl.testing.real import LIMIT, Finished, command, explain, rows
from tests.sites import add_distribution, python_path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLUGIN = (HERE / "around_plugin.py").read_text(encoding="utf-8")
Row = dict[str, Any]


def install(site: Path, plugin: str = PLUGIN) -> dict[str, str]:
    """Install a text of `around_plugin` in the folder `site` only; the environment variables that add it."""
    add_distribution(site, "around-plugin", {"around": "around_plugin"})
    (site / "around_plugin.py").write_text(plugin)
    return python_path(site, ROOT)


@dataclass(frozen=True)
class Stage:
    """A stage of the run: numbers of its steps, its team's recipe with the loss mode of each of its policies."""

    run: Finished
    variables: dict[str, str]
    steps: list[int]
    marl: dict[str, Any]
    loss_modes: dict[str, str]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The metrics of each step."""
        return [line for line in self.run.lines("train/success") if line["step"] in self.steps]

    @property
    def rows(self) -> list[list[Row]]:
        """The rows of each step."""
        return [[row for row in rows(self.run.folder, step) if not row["padding"]] for step in self.steps]

    def explained(self, which: int = -1) -> list[dict[str, Any]]:
        """What `explain` prints for a step, the last by default."""
        return explain(self.run.folder, self.steps[which], self.variables)

    def found(self, which: int = -1) -> dict[str, Row]:
        """Key -> row of a step, with what `explain` prints for it."""
        stored = {f"{row['uid']}_{row['session']}_{row['index']}": row for row in self.rows[which]}
        printed = {record["key"]: record for record in self.explained(which) if not record["padding"]}
        assert stored.keys() == printed.keys()
        return {key: {**stored[key], **printed[key]} for key in stored}

    @property
    def validation(self) -> dict[str, Any]:
        """The metrics of the validation at its end."""
        (line,) = [line for line in self.run.lines("validation/success") if line["step"] == self.steps[-1]]
        return line

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """The sample episodes of the validation at its end, after their header."""
        path = self.run.folder / "episodes" / f"step_{self.steps[-1]:05d}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    @property
    def journals(self) -> Path:
        """The stored episodes of the last step."""
        return self.run.folder / "journals" / f"step_{self.steps[-1]:05d}.jsonl"


@dataclass(frozen=True)
class Tour:
    """The finished run."""

    run: Finished
    variables: dict[str, str]

    def stage(self, name: str) -> Stage:
        stages = json.loads((self.run.folder / "stages.json").read_text())
        its = next(each for each in stages if each["name"] == name)
        return Stage(self.run, self.variables, its["steps"], its["marl"], its["loss_modes"])

    def command(self, *arguments: str) -> str:
        return command(*arguments, variables=self.variables)


def go(place: Path) -> Tour:
    """Run the tour in a folder."""
    variables, folder = install(place / "site"), place / "runs" / "tour"
    folder.parent.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.tour", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **variables},
        cwd=ROOT,
    )
    log = folder / "train.log"
    message = done.stdout + done.stderr + (log.read_text(errors="replace")[-4000:] if log.is_file() else "")
    assert done.returncode == 0, message
    return Tour(Finished(folder, done.returncode, message), variables)
