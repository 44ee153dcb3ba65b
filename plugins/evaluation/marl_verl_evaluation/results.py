"""The output of an evaluation: scores of team, sides and agents; of a cross-play, a partner or an edit its pairs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl_inspect.text import line
from rich.table import Column, Table

from marl_verl.run.progress import Display


def results(document: dict[str, Any], display: Display) -> None:
    """Print the scores of team, sides and agents, of a cross-play its matrix and ratings; and totals."""
    if "pairings" not in document:
        _print_scores(document, display)
    elif document["sides"]:
        _print_sides(document, display)
    elif edit := document["settings"].get("edit"):
        title = f"{edit[1]} of episode {edit[0]} says {line(edit[2], 60)}: step {document['step']} continues"
        _print_differences(document["pairings"], title, "", display)
    else:
        *_, last = document["pairings"]
        title = f"rewards in {last['row']} beside {last['column']}, and minus those beside earlier partners"
        _print_differences(document["pairings"], title, "beside ", display)
    failed = "".join(f", {count} {reason}" for reason, count in document["failed_reasons"].items())
    display.print(
        f"{document['failed']} of {document['attempts']} attempts failed{failed}; "
        f"{document['tokens']:,} tokens ({document['tokens_per_second'] or 0:,.0f} tokens/s, "
        f"{document['answer_seconds'] or 0:.2f} s an answer), {document['seconds']:.0f} s in total"
    )


def _print_scores(document: dict[str, Any], display: Display) -> None:
    """Print the scores of the team, of sides and of agents."""
    display.console.print(_scores(document))
    for name in ("sides", "sides_sampled"):
        for side, scores in document.get(name, {}).items():
            low, high = scores["wins_interval"]
            wins = f"wins {scores['wins']:.1%} ({low:.1%} to {high:.1%}), mean outcome {scores['outcome']:.3f}"
            display.print(f"{name.replace('_', ', ')}: {side} {wins}")
    for agent, numbers in document["agents"].items():
        measures = {f"reward {name}": value for name, value in numbers["rewards"].items()}
        names = ("turns", "response_length", "read_length", "invalid", "cut_off")
        measures |= {name: numbers[name] for name in names}
        known = (f"{name} {value:.3g}" for name, value in measures.items() if value is not None)
        display.print(f"agent {agent}, greedy: {', '.join(known)}")


def _scores(document: dict[str, Any]) -> Table:
    """A row for each score, in a column of each public set and of all tasks."""
    title = f"step {document['step']}, {document['eval_tasks']} held-out tasks, 95 % intervals"
    columns = {f"{name}, {scores['eval_tasks']} tasks": scores for name, scores in document.get("sets", {}).items()}
    columns["team"] = document
    table = Table(Column("", no_wrap=True), *(Column(name, justify="right") for name in columns), title=title)
    for name in (name.removesuffix("_interval") for name in document if name.endswith("_interval")):
        cells = []
        for scores in columns.values():
            low, high = scores[f"{name}_interval"]
            cells.append(f"{scores[name]:.1%} ({100 * low:.1f} to {100 * high:.1f})")
        table.add_row("success, greedy" if name == "success" else name, *cells)
    for name in document.get("answer", {}):
        table.add_row(name, *(f"{scores.get('answer', {}).get(name, 0.0):.3f}" for scores in columns.values()))
    return table


def _print_differences(pairings: Sequence[Mapping[str, Any]], title: str, beside: str, display: Display) -> None:
    """A row for each agent and component: its mean in the last pairing, and the differences to earlier ones."""
    *earlier, last = pairings
    names = "agent, component", last["column"], *(f"minus {beside}{pairing['column']}" for pairing in earlier)
    table = Table(*(Column(name, overflow="fold") for name in names), title=title)
    for name, value in last["rewards"].items():
        gains = [pairing["difference"].get(name, {}) for pairing in earlier]
        table.add_row(name, f"{value:.3f}", *(_number(gain.get("mean"), gain.get("interval")) for gain in gains))
    display.console.print(table)


def _print_sides(document: Mapping[str, Any], display: Display) -> None:
    (rows, columns), pairings = document["sides"], document["pairings"]
    title = f"mean outcome of side {rows}, {document['eval_tasks'] * document['episodes']} games a pair"
    names = dict.fromkeys(pairing["column"] for pairing in pairings)
    others = (Column(name, justify="right", overflow="fold") for name in names)
    table = Table(Column(f"{rows} \\ {columns}", no_wrap=True), *others, title=title)
    for name, row in itertools.groupby(pairings, lambda pairing: pairing["row"]):
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
