"""An evaluation on the terminal: what is compared, and the results."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from marl_verl.evaluation.plan import Plan
from marl_verl.process.progress import Display

SHARES = {"invalid": "invalid", "cut_off": "cut off"}


def heading(plan: Plan) -> str:
    """What is going to be played, in a few lines."""
    request = plan.request
    lines = [f"evaluation of run {plan.run}, step {request.step}"]
    for agent, part in request.parts.items():
        lines.append(f"  agent   {agent} acts with policy {part.source}, {part.describe(request.step)}")
    sampled = f"{request.sessions} sampled sessions each" if request.sessions else "no sampled sessions"
    return "\n".join(
        [*lines, f"  test    {len(plan.tasks)} held-out tasks, greedily, and {sampled}, seed {request.seed}"]
    )


def results(document: dict[str, Any], display: Display) -> None:
    """Print the team's scores and a row for each agent."""
    display.console.print(_scores(document))
    display.console.print(_agents(document))
    failed = ", ".join(f"{count} {reason}" for reason, count in document["failed_reasons"].items())
    display.print(
        f"{document['failed']} of {document['attempts']} attempts failed{f' ({failed})' if failed else ''}, "
        f"{document['tokens']:,} tokens, {document['seconds']:.0f} s in all"
    )


def _scores(document: dict[str, Any]) -> Table:
    table = Table(title=f"step {document['step']}, {document['eval_tasks']} held-out tasks")
    for column in ("team", "", "95 % interval"):
        table.add_column(column, justify="right" if not column else "left", no_wrap=True)
    names = {"success": "success, greedy"}
    names |= {name: name for name in document if name.startswith(("avg@", "pass@")) and not name.endswith("_interval")}
    for name, shown in names.items():
        low, high = document[f"{name}_interval"]
        table.add_row(shown, f"{document[name]:.1%}", f"{low:.1%} to {high:.1%}")
    return table


def _agents(document: dict[str, Any]) -> Table:
    table = Table(title="agents, played greedily")
    components = sorted({name for agent in document["agents"].values() for name in agent["rewards"]})
    rewards = [f"reward: {name}" for name in components]
    columns = ["agent", "policy", "weights", *rewards, "turns", "tokens a turn", *SHARES.values()]
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 3 else "right")
    for name, agent in document["agents"].items():
        values = [(agent["rewards"].get(component), ".3f") for component in components]
        values += [(agent["turns"], ".1f"), (agent["response_length"], ".1f")]
        values += [(agent[share], ".1%") for share in SHARES]
        numbers = ["-" if value is None else format(value, form) for value, form in values]
        table.add_row(name, agent["policy"], agent["weights"], *numbers)
    return table
