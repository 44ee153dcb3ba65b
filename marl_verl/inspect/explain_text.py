"""What `marl-verl explain` prints of rows: a table of all, or the derivation of one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_verl.advantage.part import Part, flat
from marl_verl.credit import Credit
from marl_verl.inspect.explain import Explanation
from marl_verl.inspect.texts import cell, columns, count

COLUMNS = ("key", "agent", "reward", "return", "baseline", "scale", "advantage")


def table_text(explanation: Explanation, width: int | None) -> str:
    """All rows, one a line, under what the algorithm does.

    Args:
        width: of the terminal, at which lines are cut (the group comes last); None cuts nothing.
    """
    sizes = np.bincount(explanation.result.group[explanation.result.group >= 0])
    lines = []
    for row, record in enumerate(explanation.records()):
        group = "padding"
        if record["group"] is not None:
            group = f"{_group(record['group'])} ({count(int(sizes[explanation.result.group[row]]), 'row')})"
        lines.append([*(cell(record[name]) for name in COLUMNS), group])
    return "\n".join([*_header(explanation), "", *columns([*COLUMNS, "group"], lines, width)])


def row_text(explanation: Explanation, key: str, width: int | None) -> str:
    """How one row came by its advantage, with the numbers filled in. MarlError for an unknown key (nearest offered)."""
    at = explanation.row(key)
    record = explanation.records()[at]
    lines = [*_header(explanation), "", f"row {cell(key)} of agent {cell(record['agent'])}"]
    if record["padding"]:
        return "\n".join([*lines, "  padding: it only fills a batch, enters no statistic, and has advantage 0"])
    result, table = explanation.result, explanation.table
    lines += _way(explanation, record["transforms"], width)
    members = result.members(at).tolist()
    samples = len(set(result.sample[members].tolist()))
    counted = "" if samples == len(members) else f", which count as {count(samples, 'sample')}"
    lines += ["", f"group {_group(record['group'])}: {count(len(members), 'row')}{counted}"]
    beside = [
        ["->" if row == at else "", table.key(row), *(cell(float(v[row])) for v in (result.ret, result.advantage))]
        for row in members
    ]
    lines += ["  " + line for line in columns(["", "row", "return", "advantage"], beside, width and width - 2)]
    for what, keys in record.get("also", {}).items():
        lines += ["", f"{what}: {count(len(keys), 'row')}", *(f"  {key}" for key in keys)]
    ret, baseline, scale, advantage = (cell(record[name]) for name in COLUMNS[3:])
    filled = f"({ret} - {baseline}) / {scale}".replace("- -", "+ ")
    lines += ["", f"baseline  {baseline}", f"scale     {scale}"]
    return "\n".join([*lines, f"advantage = (return - baseline) / scale = {filled} = {advantage}"])


def _way(explanation: Explanation, transforms: Sequence[dict[str, Any]], width: int | None) -> list[str]:
    """From the components to the return; the mix with its options."""
    options = ", ".join(f"{name} {value}" for name, value in flat(explanation.algorithm.rewards).items())
    cells = []
    for transform in transforms:
        mixed = options and transform["name"].startswith("mix: ")
        cells.append([f"  {transform['name']}" + (f" ({options})" if mixed else ""), cell(transform["value"])])
    return columns(["", "value"], cells, width)[1:]


def _header(explanation: Explanation) -> list[str]:
    """What is compared with what, by which formulas, in how many groups."""
    algorithm, result = explanation.algorithm, explanation.result
    parts = [("rewards", algorithm.rewards), *_parts_of("rewards", algorithm.rewards)]
    if isinstance(algorithm.credit, Credit) and algorithm.credit.name != "none":
        parts.insert(0, ("credit", algorithm.credit))
    parts += [("advantage", algorithm.advantage), *_parts_of("advantage", algorithm.advantage)]
    scaled = bool((result.scale != 1).any())
    formulas = [[f"  {role}", part.name, _formula(part)] for role, part in parts if part.kind != "scales" or scaled]
    padding = int(explanation.table.padding.sum())
    groups = _returns_by_group(explanation)
    alone = sum(samples == 1 for samples, _ in groups)
    flat = sum(samples > 1 and returns == 1 for samples, returns in groups)
    shared = f"rows of the same {', '.join(result.group_by)}" if result.group_by else "all rows of the batch"
    return [
        f"{explanation.name}: {algorithm.describe()}",
        *columns(["", "", "what"], formulas, None)[1:],
        f"compared: {shared}; {count(len(explanation.table) - padding, 'row')} in {count(len(groups), 'group')}, of "
        f"which {alone} of one sample and {flat} without variance{f'; {padding} of padding' if padding else ''}",
    ]


def _returns_by_group(explanation: Explanation) -> list[tuple[int, int]]:
    """(samples, different returns) of each group."""
    result = explanation.result
    found: dict[int, tuple[set[int], set[float]]] = {}
    for row in np.flatnonzero(result.group >= 0).tolist():
        samples, returns = found.setdefault(int(result.group[row]), (set(), set()))
        samples.add(int(result.sample[row]))
        returns.add(float(result.ret[row]))
    return [(len(samples), len(returns)) for samples, returns in found.values()]


def _parts_of(role: str, part: Any) -> list[tuple[str, Part]]:
    """The parts that a part is made of, by the options that name them."""
    found = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return [(name, value) for name, value in found if isinstance(value, Part)]


def _formula(part: Part) -> str:
    """The first sentence of a part's documentation, which is its equation."""
    said = inspect.getdoc(type(part)) or ""
    if said.startswith(f"{type(part).__name__}("):  # written by dataclass, for want of one
        return ""
    return " ".join(said.split("\n\n")[0].split())


def _group(values: dict[str, Any]) -> str:
    shown = (f"{column}={'none' if value is None else cell(value)}" for column, value in values.items())
    return " ".join(shown) or "the whole batch"
