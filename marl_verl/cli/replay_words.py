"""What the list and the conversation of `marl-verl replay` have in common."""

from __future__ import annotations

from marl_verl.journals.read import EpisodeFile


def origin(file: EpisodeFile) -> str:
    """What the file is, e.g. "training step 12: workflow review, ..."."""
    header = file.header
    split = "training step" if header.split == "train" else "validation at step"
    return (
        f"{split} {header.step}: workflow {header.workflow.name}, task set {header.task.name}, "
        f"algorithm {header.algorithm}, sampler {header.sampler}"
    )


def line(text: str, width: int) -> str:
    """A text in one line of at most `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."


def indented(text: str, spaces: int) -> list[str]:
    return [f"{' ' * spaces}{each}".rstrip() for each in text.split("\n")]


def aligned(rows: list[list[str]]) -> list[str]:
    """Columns below each other; those that are empty below their title are left out."""
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    return ["  ".join(f"{row[column]:<{widths[column]}}" for column in columns).rstrip() for row in rows]


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
