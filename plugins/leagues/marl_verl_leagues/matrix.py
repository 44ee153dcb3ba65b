"""The output of a cross-play: its heading, the matrix of mean outcomes, and the ratings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from marl_verl.evaluation.request import Request
from marl_verl.inspect.texts import line
from marl_verl.run.progress import Display


def heading(run: Path, request: Request, tasks: int) -> str:
    """What a cross-play of `tasks` tasks will play."""
    lines = [f"cross-play of run {run}"]
    if not request.sides:
        partners = ", ".join(pairing.column for pairing in request.pairings)
        lines.append(f"  partner {request.pairings[0].row} acts beside each of {partners}, with the same seeds")
    rows, columns = (dict.fromkeys(names) for names in zip(*((p.row, p.column) for p in request.pairings), strict=True))
    for side, players in zip(request.sides, (rows, columns), strict=False):  # none with a partner
        lines.append(f"  side    {side}: {', '.join(players)}")
    games = f"{tasks * request.episodes} ({tasks} held-out tasks, {request.episodes} sampled episodes each)"
    lines.append(f"  games   {games} of each of {len(request.pairings)} pairs, seed {request.seed}")
    return "\n".join(lines)


def matrix(document: Mapping[str, Any], display: Display) -> None:
    """Print the numbers of a cross-play."""
    if document["sides"]:
        _sides(document, display)
    elif edit := document["settings"].get("edit"):
        title = f"{edit[1]} of episode {edit[0]} says {line(edit[2], 60)}: step {document['step']} continues"
        _differences(document["pairings"], title, "", display)
    else:
        *_, last = document["pairings"]
        title = f"rewards in {last['row']} beside {last['column']}, and minus those beside earlier partners"
        _differences(document["pairings"], title, "beside ", display)
    failed = "".join(f", {count} {reason}" for reason, count in document["failed_reasons"].items())
    games = len(document["pairings"]) * document["eval_tasks"] * document["episodes"]
    total = f"{document['tokens']:,} tokens, {document['seconds']:.0f} s in total"
    display.print(f"{document['failed']} of {games} games failed{failed}; {total}")


def _differences(pairings: Sequence[Mapping[str, Any]], title: str, beside: str, display: Display) -> None:
    """A row for each agent and component: its mean in the last pairing, and the differences to earlier ones."""
    *earlier, last = pairings
    table = Table(title=title)
    for column in ("agent, component", last["column"], *(f"minus {beside}{pairing['column']}" for pairing in earlier)):
        table.add_column(column, no_wrap=True)
    for name, value in last["rewards"].items():
        gains = [pairing["difference"].get(name, {}) for pairing in earlier]
        table.add_row(name, f"{value:.3f}", *(_number(gain.get("mean"), gain.get("interval")) for gain in gains))
    display.console.print(table)


def _sides(document: Mapping[str, Any], display: Display) -> None:
    (rows, columns), pairings = document["sides"], document["pairings"]
    table = Table(title=f"mean outcome of side {rows}, {document['eval_tasks'] * document['episodes']} games a pair")
    table.add_column(f"{rows} \\ {columns}", no_wrap=True)
    for name in dict.fromkeys(pairing["column"] for pairing in pairings):
        table.add_column(name, justify="right", no_wrap=True)
    for name in dict.fromkeys(pairing["row"] for pairing in pairings):
        row = [pairing for pairing in pairings if pairing["row"] == name]
        table.add_row(name, *(_number(own["outcome"][rows], own["outcome_interval"][rows]) for own in row))
    display.console.print(table)
    for name, own in document["elo"].items():
        display.print(f"Elo {own['rating']:+.0f} ({own['interval'][0]:+.0f} to {own['interval'][1]:+.0f})  {name}")
    if first := document.get("elo_first_side"):
        low, high = first["interval"]
        display.print(f"side {rows} is worth {first['rating']:+.0f} Elo ({low:+.0f} to {high:+.0f})")


def _number(value: float | None, interval: Sequence[float] | None) -> str:
    width = f" +-{(interval[1] - interval[0]) / 2:.3f}" if interval else ""
    return "-" if value is None else f"{value:+.3f}{width}"
