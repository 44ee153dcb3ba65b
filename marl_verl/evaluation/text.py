"""An evaluation on the terminal: what is compared, how far it is, and the numbers."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from marl_verl.evaluation.plan import Plan
from marl_verl.process.progress import Display

SHARES = {"invalid": "invalid", "cut_off": "cut off"}


def heading(plan: Plan) -> str:
    """What is going to be played, in a few lines."""
    lines = []
    for agent, part in plan.request.parts.items():
        lines.append(f"  agent   {agent} acts with policy {part.source}, {part.describe(plan.request.step)}")
    sampled = f"{plan.request.sessions} sampled sessions each" if plan.request.sessions else "no sampled sessions"
    lines.append(f"  test    {len(plan.tasks)} held-out tasks, greedily, and {sampled}, seed {plan.request.seed}")
    return "\n".join([f"evaluation of run {plan.run}, step {plan.request.step}", *lines])


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
    """The greedy pass, agent by agent: means a turn, and rewards as in a validation."""
    table = Table(title="agents, played greedily")
    components = sorted({name for agent in document["agents"].values() for name in agent["rewards"]})
    rewards = [f"reward: {name}" for name in components]
    columns = ["agent", "policy", "weights", *rewards, "turns", "tokens a turn", *SHARES.values()]
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 3 else "right")
    for name, agent in document["agents"].items():
        earned = [_number(agent["rewards"].get(component), ".3f") for component in components]
        means = [_number(agent["turns"], ".1f"), _number(agent["response_length"], ".1f")]
        shares = [_number(agent[share], ".1%") for share in SHARES]
        table.add_row(name, agent["policy"], agent["weights"], *earned, *means, *shares)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
