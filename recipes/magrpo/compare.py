"""Compare evaluations in one table: success, score, speed and time of an answer.

    python recipes/magrpo/compare.py runs/small runs/large

An argument is a run, whose newest evaluation is shown, or one of the JSON files in its `evaluations/`. The table
is Markdown.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEADER = ("evaluation", "tasks", "success, greedy", "95 % interval", "score", "tokens/s", "s an answer", "tokens")


def newest(path: Path) -> Path | None:
    """The file of a run's newest evaluation, or the file itself; None without one."""
    if path.is_dir():
        files = [file for file in (path / "evaluations").glob("*.json") if file.name != "cross-play.json"]
        return max(files, key=lambda file: file.stat().st_mtime, default=None)
    return path if path.is_file() else None


def cells(result: dict[str, Any]) -> list[str]:
    """The columns of an evaluation, in the order of `HEADER`."""
    low, high = result["success_interval"]
    numbers = [(result["score"], ".2f"), (result["tokens_per_second"], ",.0f"), (result["answer_seconds"], ".2f")]
    return [
        f"{result['settings']['run']}, step {result['step']}",
        str(result["eval_tasks"]),
        f"{result['success']:.1%}",
        f"{low:.1%} to {high:.1%}",
        *("-" if value is None else format(value, form) for value, form in numbers),
        f"{result['tokens']:,}",
    ]


def main(paths: Sequence[str]) -> int:
    """Print the table. Exit code 2 and an error message for a path without an evaluation."""
    rows = [HEADER, ["---"] * len(HEADER)]
    for path in paths:
        if (file := newest(Path(path))) is None:
            print(f"compare: '{path}' has no evaluation: run marl-verl eval {path}", file=sys.stderr)
            return 2
        rows.append(cells(json.loads(file.read_text(encoding="utf-8"))))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
