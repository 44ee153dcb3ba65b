"""Explained rows of a document, a file or a stored step of a run, and the output of `marl-verl explain`."""

import dataclasses
import inspect
import json
from typing import Any

import numpy as np

from marl_verl import plugins
from marl_verl.algo.credit.base import ReplayCredit, TableCredit
from marl_verl.episode.codec import decode
from marl_verl.errors import MarlError, nearest, user_error
from marl_verl.inspect.episodes import holds_episodes
from marl_verl.inspect.explain import Document, Explanation, Record, derive
from marl_verl.inspect.texts import cell, columns, count
from marl_verl.options import Part
from marl_verl.run.run_dir import unpacked

COLUMNS = ("key", "agent", "reward", "return", "baseline", "scale", "advantage")


class ExplainedRows(list[Record]):
    """One record per row, in row order; docs/explain.md describes the keys.

    Attributes:
        source: origin of the rows, e.g. "run 'runs/inventory-1', step 12"; empty for a document.
        difference: how the advantages differ from those that training used; None if they are bitwise equal, and for
            rows that were not stored by a run.
    """

    def __init__(self, document: object, source: str = "", stored: bool = False) -> None:
        """Compute the advantages of a document; a `stored` one contains those that training used.

        MarlError: the document is invalid, or a plugin cannot be loaded.
        """
        plugins.load()  # an error in a plugin is not one of the document
        self.source, self.difference = source, None
        with user_error(source):
            self._derived = derive(document)
            super().__init__(self._derived.records())
            if stored:
                self.difference = self._difference(decode(Document, document, "the document"))

    @classmethod
    def parse(cls, source: str, content: bytes, stored: bool = False) -> "ExplainedRows":
        """Parse the content of a file: JSON, optionally compressed with gzip."""
        content = unpacked(content, source)
        if holds_episodes(content):
            raise MarlError(f"{source} holds episodes, which `marl-verl replay` shows; rows are in rows/ of a run")
        with user_error(f"{source} is not JSON", ValueError, RecursionError):
            document = json.loads(content)
        return cls(document, source, stored)

    @property
    def header(self) -> list[str]:
        """Options, formulas and groups of the algorithm, as lines."""
        return _header(self._derived)

    @property
    def credits(self) -> list[str]:
        """The reward components that the algorithm's credits add."""
        credits = self._derived.algorithm.credit
        return [credit.component for credit in credits if isinstance(credit, TableCredit | ReplayCredit)]

    def row(self, key: str) -> Record:
        """The record with a key, "{uid}_{session}_{index}". MarlError with the nearest key."""
        with user_error(self.source):
            return self[self._at(key)]

    def text(self, row: str | None = None, width: int | None = None) -> str:
        """What `marl-verl explain` prints, cut at `width`: all rows, or how the advantage of one was computed."""
        with user_error(self.source):
            at = None if row is None else self._at(row)
            lines = self._table(width) if at is None else self._derivation(self._derived, at, width)
            return "\n".join([*_header(self._derived), "", *lines])

    def _at(self, key: str) -> int:
        """The row with a key; padding only where no other row has it."""
        keys = [record["key"] for record in self]
        if key not in keys:
            hint = nearest(key, keys)
            if not hint.startswith("did"):  # `nearest` lists all keys if none is near
                hint = f"keys are like '{keys[0]}'"
            raise MarlError(f"unknown row '{key}': {hint}")
        return min((at for at, known in enumerate(keys) if known == key), key=lambda at: bool(self[at]["padding"]))

    def _table(self, width: int | None) -> list[str]:
        lines = []
        for record in self:
            size = count(len(record["members"]), "row")
            group = "padding" if record["group"] is None else f"{_group(record['group'])} ({size})"
            lines.append([*(cell(record[name]) for name in COLUMNS), group])
        return columns([*COLUMNS, "group"], lines, width)

    def _derivation(self, explanation: Explanation, at: int, width: int | None) -> list[str]:
        """How the advantage of one row was computed, with numbers."""
        record, result = self[at], explanation.result
        lines = [f"row {cell(record['key'])} of agent {cell(record['agent'])}"]
        if record["padding"]:
            return [*lines, "  padding: it only fills a batch, enters no statistic, and has advantage 0"]
        rewards = explanation.algorithm.rewards
        options = ", ".join(f"{field.name} {getattr(rewards, field.name)}" for field in dataclasses.fields(rewards))  # type: ignore[arg-type]
        way = [[f"  column: {name}", _values(value)] for name, value in record.get("columns", {}).items()]
        for transform in record["transforms"]:
            mixed = options and transform["name"].startswith("mix: ")
            way.append([f"  {transform['name']}" + (f" ({options})" if mixed else ""), cell(transform["value"])])
        lines += columns(["", "value"], way, width)[1:]
        members = result.members(at).tolist()
        samples = len(set(result.sample[members].tolist()))
        counted = "" if samples == len(members) else f", which count as {count(samples, 'sample')}"
        lines += ["", f"group {_group(record['group'])}: {count(len(members), 'row')}{counted}"]
        shown = [(row, self[row]["return"], self[row]["advantage"]) for row in members]
        beside = [["->" if row == at else "", self[row]["key"], cell(r), cell(a)] for row, r, a in shown]
        lines += ["  " + line for line in columns(["", "row", "return", "advantage"], beside, width and width - 2)]
        for label, keys in record.get("also", {}).items():
            lines += ["", f"{label}: {count(len(keys), 'row')}", *(f"  {key}" for key in keys)]
        ret, baseline, scale, advantage = (cell(record[name]) for name in COLUMNS[3:])
        formula, filled = "(return - baseline) / scale", f"({ret} - {baseline}) / {scale}".replace("- -", "+ ")
        lines += ["", f"baseline  {baseline}", f"scale     {scale}"]
        if "weight" in record:
            formula, filled = f"weight * {formula}", f"{cell(record['weight'])} * {filled}"
            lines.append(f"weight    {cell(record['weight'])}")
        lines.append(f"advantage = {formula} = {filled} = {advantage}")
        if "tokens" in record:
            lines += ["", f"advantages of the tokens, which the update uses: {_values(record['tokens'])}"]
        return lines

    def _difference(self, stored: Document) -> str | None:
        advantages, tokens = stored.advantage, stored.tokens
        if advantages is None or len(advantages) != len(self):
            raise MarlError("it lacks the advantage of each row, as training used it")
        changed = [
            row
            for row, record in enumerate(self)
            if record["advantage"] != advantages[row] or (tokens and record.get("tokens") != tokens[row])
        ]
        if not changed:
            return None
        first = self[changed[0]]
        example = f"row '{first['key']}' had {advantages[changed[0]]} and gets {first['advantage']} here"
        return (
            f"{self.source}: {len(changed)} of {len(self)} advantages are not what training used, e.g. {example}: "
            "a plugin or a version has changed (plugins.json in the run has those of training)"
        )


def _header(explanation: Explanation) -> list[str]:
    """The algorithm's options, formulas and groups."""
    algorithm, result = explanation.algorithm, explanation.result
    parts = [*_with_parts("rewards", algorithm.rewards), *_with_parts("advantage", algorithm.advantage)]
    parts = [*(("credit", credit) for credit in algorithm.credit), *parts]
    scaled = bool((result.scale != 1).any())
    formulas = [[f"  {role}", part.name, _formula(part)] for role, part in parts if part.kind != "scale" or scaled]
    padding = int(explanation.table.padding.sum())
    groups: dict[int, tuple[set[int], set[float]]] = {}  # the samples and the returns in each
    for row in np.flatnonzero(result.group >= 0).tolist():
        samples, returns = groups.setdefault(int(result.group[row]), (set(), set()))
        samples.add(int(result.sample[row]))
        returns.add(float(result.ret[row]))
    alone = sum(len(samples) == 1 for samples, _ in groups.values())
    constant = sum(len(samples) > 1 and len(returns) == 1 for samples, returns in groups.values())
    shared = f"rows of the same {', '.join(result.group_by)}" if result.group_by else "all rows of the batch"
    return [
        f"{explanation.name}: {algorithm.describe()}",
        *columns(["", "", "what"], formulas, None)[1:],
        f"compared: {shared}; {count(len(explanation.table) - padding, 'row')} in {count(len(groups), 'group')}, of "
        f"which {alone} of one sample and {constant} without variance"
        f"{f'; {padding} of padding' if padding else ''}",
    ]


def _with_parts(role: str, part: Any) -> list[tuple[str, Part]]:
    """(role, part) of a part and its nested parts; the role of a nested part is its option."""
    inner = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return [(role, part), *((name, value) for name, value in inner if isinstance(value, Part))]


def _formula(part: Part) -> str:
    """The first paragraph of a part's docstring, which is its equation."""
    doc = inspect.getdoc(type(part)) or ""
    if doc.startswith(f"{type(part).__name__}("):  # generated by dataclass
        return ""
    return " ".join(doc.split("\n\n")[0].split())


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
