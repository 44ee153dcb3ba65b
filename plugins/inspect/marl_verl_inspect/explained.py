"""How each advantage was computed, with the same code for a document, a file, a stored step of a run, and training.

A document is {"algorithm": name, "options": {...}, "rows": [...]}; its rows are those of `RowTable.from_rows`.
"""

import dataclasses
import inspect
import itertools
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np

from marl_verl import plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.credit import ReplayCredit, TableCredit
from marl_verl.config.parts import algorithm_named, with_flat
from marl_verl.episode.codec import decode
from marl_verl.errors import check_known, user_error
from marl_verl.options import Part
from marl_verl_inspect.text import cell, count, table

Record = dict[str, Any]
COLUMNS = ("key", "agent", "reward", "return", "baseline", "scale", "advantage")


class Document(msgspec.Struct):
    """See the module. A stored step also has the run's reward components, and advantages and teachers of training."""

    algorithm: str
    options: dict[str, Any]
    rows: list[dict[str, Any]]
    components: list[str] = []
    advantage: list[float] | None = None
    tokens: list[list[float]] | None = None
    teachers: list[str] = []


class ExplainedRows(list[Record]):
    """One record per row, in row order; docs/explain.md describes the keys.

    Attributes:
        source: the file of the rows; empty for a document.
        difference: how the advantages differ from those that training used; None if they are bitwise equal, and for
            rows that were not stored by a run.
    """

    def __init__(self, document: object, source: str = "") -> None:
        """Compute the advantages of a document. MarlError: it is invalid, or a plugin cannot be loaded."""
        plugins.load()  # an error in a plugin is not one of the document
        self.source = source
        with user_error(source):
            self.document = decode(Document, document, "the document")
            options, name = self.document.options, self.document.algorithm
            self.algorithm = with_flat(algorithm_named(name, {}, "options"), options, "options")
            self.table = RowTable.from_rows(self.document.rows, declared=self.document.components)
            self.result = self.algorithm.compute(self.table)
        super().__init__(self._records())
        self.difference = self._difference()

    def _records(self) -> list[Record]:
        """One record per row, with the keys of docs/explain.md; advantage = weight * (return - baseline) / scale."""
        result, keys, transforms = self.result, self.table.keys(), self._transforms()
        numbers = {"reward": result.reward, "return": result.ret, "baseline": result.baseline, "scale": result.scale}
        numbers["advantage"] = result.advantage
        if result.weight is not None:
            numbers["weight"] = result.weight
        groups = result.group.tolist()
        members: dict[int, list[str]] = defaultdict(list)
        for key, group in zip(keys, groups, strict=True):
            members[group].append(key)
        records: list[Record] = []
        for row, key in enumerate(keys):
            record: Record = {"key": key, "agent": self.table.agent.value(row)}
            columns = result.roles.get(str(self.table.value("agent", row)), result.group_by)
            record["group"] = {name: self.table.value(name, row) for name in columns}
            record["members"] = members[groups[row]]
            if computed := self.table.computed(row):
                record["columns"] = computed
            record |= {name: float(values[row]) for name, values in numbers.items()}
            if result.tokens is not None:
                record["tokens"] = result.tokens[row].tolist()
            records.append(record | {"transforms": transforms[row]})
        return records

    def _transforms(self) -> list[list[Record]]:
        """Each row's components (including the credit), their mix, and all intermediate values up to its return."""
        transforms: list[list[Record]] = [[] for _ in range(len(self.table))]
        rows = self.table.order()
        real = self.algorithm.credited(self.table.take(rows))
        for name in sorted(real.rewards):
            for at in np.flatnonzero(real.present[name]).tolist():
                value = float(real.rewards[name][at])
                transforms[int(rows[at])].append({"name": f"component: {name}", "value": value})
        stages = [(f"mix: {self.algorithm.rewards.name}", self.result.reward), *self.result.stages]
        if not np.array_equal(stages[-1][1], self.result.ret):
            stages.append(("return", self.result.ret))
        for row in rows.tolist():
            numbers = [(name, float(values[row])) for name, values in stages]
            transforms[row] += [{"name": name, "value": value} for name, value in numbers if not np.isnan(value)]
        return transforms

    @property
    def header(self) -> list[str]:
        """Options, formulas and groups of the algorithm, as lines."""
        algorithm, result = self.algorithm, self.result
        parts = [*_with_parts("rewards", algorithm.rewards), *_with_parts("advantage", algorithm.advantage)]
        parts = [*(("credit", credit) for credit in algorithm.credit), *parts]
        formulas = [[f"  {role}", part.name, _formula(part)] for role, part in parts]
        shared = f"rows of the same {', '.join(result.group_by)}" if result.group_by else "all rows of the batch"
        shared += "".join(f"; {role}: of the same {', '.join(names)}" for role, names in result.roles.items())
        groups = len(set(result.group.tolist()))
        compared = f"compared: {shared}; {count(len(self), 'row')} in {count(groups, 'group')}"
        described = f"{self.document.algorithm}: {algorithm.describe()}"
        return [described, *table([["", "", ""], *formulas])[1:], compared, *self.document.teachers]

    @property
    def credits(self) -> list[str]:
        """The reward components that the algorithm's credits add."""
        return [credit.component for credit in self.algorithm.credit if isinstance(credit, TableCredit | ReplayCredit)]

    def text(self, row: str | None = None) -> str:
        """What `marl-verl explain` prints: all rows, or how the advantage of the one with this key was computed."""
        if row is None:
            return "\n".join([*self.header, "", *self._table()])
        return "\n".join([*self.header, "", *self._derivation(self.place(row))])

    def place(self, row: str) -> int:
        """The position of the row with a key. MarlError: no such row."""
        keys = [record["key"] for record in self]
        with user_error(self.source):
            check_known("row", row, keys)
        return keys.index(row)

    def _table(self) -> list[str]:
        lines = [[*COLUMNS, "group"]]
        for record in self:
            group = f"{_group(record['group'])} ({count(len(record['members']), 'row')})"
            lines.append([*(cell(record[name]) for name in COLUMNS), group])
        return table(lines, right=COLUMNS[2:])

    def _derivation(self, at: int) -> list[str]:
        """How the advantage of one row was computed, with numbers."""
        record, result = self[at], self.result
        lines = [f"row {cell(record['key'])} of agent {cell(record['agent'])}"]
        steps = [(f"column: {name}", value) for name, value in record.get("columns", {}).items()]
        steps += [(transform["name"], transform["value"]) for transform in record["transforms"]]
        lines += table([["", "value"], *([f"  {name}", _values(value)] for name, value in steps)], ["value"])[1:]
        members = result.members(at).tolist()
        lines += ["", f"group {_group(record['group'])}: {count(len(members), 'row')}"]
        group = [["", "row", "return", "advantage"]]
        for row in members:
            values = [cell(self[row][name]) for name in ("return", "advantage")]
            group.append(["->" if row == at else "", self[row]["key"], *values])
        lines += [f"  {line}" for line in table(group, ["return", "advantage"])]
        ret, baseline, scale, advantage = (cell(record[name]) for name in COLUMNS[3:])
        formula, numbers = "(return - baseline) / scale", f"({ret} - {baseline}) / {scale}".replace("- -", "+ ")
        if "weight" in record:
            formula, numbers = f"weight * {formula}", f"{cell(record['weight'])} * {numbers}"
        lines += ["", f"advantage = {formula} = {numbers} = {advantage}"]
        if record.get("tokens"):
            lines += ["", f"advantages of the tokens, which the update uses: {_values(record['tokens'])}"]
        return lines

    def _difference(self) -> str | None:
        stored = self.document
        if stored.advantage is None:
            return None
        tokens: list[Any] = stored.tokens or [record.get("tokens") for record in self]
        with user_error(f"{self.source or 'the document'} lacks the advantage of each row", ValueError):
            before = list(zip(self, stored.advantage, tokens, strict=True))
        changed = [(row, old) for row, old, parts in before if (row["advantage"], row.get("tokens")) != (old, parts)]
        if not changed:
            return None
        (row, old), *_ = changed
        example = f"row '{row['key']}' had {old} and gets {row['advantage']} here"
        return (
            f"{self.source}: {len(changed)} of {len(self)} advantages are not what training used, e.g. {example}: "
            "a plugin or a version has changed (plugins.json in the run has those of training)"
        )


def _with_parts(role: str, part: Any) -> list[tuple[str, Part]]:
    """(role, part) of a part and its nested parts; the role of a nested part is its option."""
    nested = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    below = [_with_parts(name, value) for name, value in nested if isinstance(value, Part)]
    return [(role, part), *itertools.chain(*below)]


def _formula(part: Part) -> str:
    """The first paragraph of a part's docstring, which is its equation."""
    return " ".join((inspect.getdoc(type(part)) or "").split("\n\n")[0].split())


def _values(value: float | list[float]) -> str:
    """A number; of a number per token the least, mean and greatest."""
    if not isinstance(value, list):
        return cell(value)
    if not value:
        return "no token"
    least, mean, most = (cell(number) for number in (min(value), sum(value) / len(value), max(value)))
    return f"{least} to {most}, mean {mean} of {count(len(value), 'token')}"


def _group(values: dict[str, Any]) -> str:
    shown = (f"{column}={'none' if value is None else cell(value)}" for column, value in values.items())
    return " ".join(shown) or "the whole batch"
