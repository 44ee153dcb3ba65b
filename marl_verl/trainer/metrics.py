"""Metrics of a training step, of the team and of each agent; and validation on held-out tasks, greedily and sampled."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.columns import extremes
from marl_verl.algo.algorithms import Metric
from marl_verl.algo.algorithms.algorithm import add_metrics
from marl_verl.backend.protocol import Report
from marl_verl.tasks.base import side_statistics, winner


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over all rows; a row without it counts as 0."""
    names = sorted({name for row in rows for name in row})
    return {name: float(np.mean([row.get(name, 0.0) for row in rows])) for name in names}


def outcome_metrics(reports: Sequence[Report], measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each measure of answers and, if the task set scores sides, each side's mean outcome and the share of
    episodes that it won; and the share of draws, which none did."""
    outcomes = [outcome for report in reports for outcome in report.outcomes]
    values = {"draws": float(np.mean([winner(outcome) is None for outcome in outcomes]))} if outcomes else {}
    for side, statistics in side_statistics(outcomes).items():
        values |= {f"side/{side}/{name}": value for name, value in statistics.items()}
    return values | {f"answer/{name}": value for name, value in means(measures).items()}


def mean_read(reports: Sequence[Report]) -> dict[str, float]:
    """Agent -> mean tokens that an act of it reads from other agents."""
    return averages({turn.agent: turn.read} for report in reports for turn in report.turns)


def by_set(reports: Sequence[Report]) -> dict[str, list[Report]]:
    """Public set -> the reports of its tasks, in the order of the first ones; {} for tasks that name none."""
    names = dict.fromkeys(report.set for report in reports if report.set is not None)
    return {name: [report for report in reports if report.set == name] for name in names}


def team_metrics(
    table: RowTable, result: AdvantageResult, reports: list[Report], metrics: Sequence[Metric] = ()
) -> dict[str, float]:
    """Success of sampled episodes, outcomes of sides, measures, failures, agents' statistics, the algorithm's own."""
    scores = [score for report in reports for score in report.scores]
    measures = [row for report in reports for row in report.measures]
    reasons = Counter(failure.reason for report in reports for failure in report.failures)
    extra: Counter[str] = Counter()  # sampled tokens that are in no row
    for report in reports:
        extra.update(report.extra_tokens)
    values: dict[str, float] = {
        "train/success": float(np.mean([success for report in reports for success in report.successes] or [False])),
        **({"train/score": float(np.mean(scores))} if scores else {}),
        "train/episodes": float(sum(len(report.successes) for report in reports)),
        "train/attempts": float(sum(report.attempts for report in reports)),
        "train/failed_episodes": float(reasons.total()),
        **{f"train/{name}": value for name, value in outcome_metrics(reports, measures).items()},
        **{f"train/extra_tokens/{purpose}": float(count) for purpose, count in extra.items()},
        "train/tokens": float(table.length.sum()) + extra.total(),
        **{f"train/failed/{reason}": float(count) for reason, count in sorted(reasons.items())},
    }
    for agent, statistics in agent_statistics(table, result).items():
        values |= {f"agent/{agent}/{name}": value for name, value in statistics.items()}
    values |= {f"agent/{agent}/read_length": tokens for agent, tokens in mean_read(reports).items()}
    names = [f"'{metric.name}'" for metric in metrics]
    add_metrics(values, averages(report.metrics for report in reports), f"`of_sample` of metric {' or '.join(names)}")
    for metric in metrics:
        add_metrics(values, metric.of_rows(table, result), f"`of_rows` of metric '{metric.name}'")
    return values


def validation_metrics(greedy: Sequence[Report], sampled: Sequence[Report]) -> dict[str, float]:
    """Team success on the held-out tasks (0 if all episodes failed), also of each public set, outcomes of sides,
    measures of answers, and each agent's rewards in the greedy pass."""
    values = {
        "validation/success_any": float(np.mean([any(report.successes) for report in sampled])),
        "validation/failed_episodes": float(sum(len(report.failures) for report in (*greedy, *sampled))),
    }
    for suffix, reports in (("", greedy), ("_sampled", sampled)):
        outcomes = outcome_metrics(reports, [row for report in reports for row in report.measured])
        sets = {f"set/{name}/success": _success(members) for name, members in by_set(reports).items()}
        outcomes |= {"success": _success(reports), **sets}
        values |= {f"validation/{name}{suffix}": value for name, value in outcomes.items()}
    values |= {f"validation/agent/{agent}/read_length": tokens for agent, tokens in mean_read(greedy).items()}
    return values | averages(
        {f"validation/agent/{agent}/{component}": value for component, value in components.items()}
        for report in greedy
        for episode in report.rewards
        for agent, components in episode.items()
    )


def agent_statistics(table: RowTable, result: AdvantageResult) -> dict[str, dict[str, float]]:
    """Agent -> its metrics in a batch, whether or not agents share a policy, as docs/algorithms.md describes them;
    spawned agents are one with their role. Groups count with all of their rows, including those of other agents."""
    group, agent = result.group, table.role.codes
    low, high = extremes(result.ret, group)
    samples = np.bincount(group[np.unique(result.sample, return_index=True)[1]])
    single, flat = samples == 1, (samples > 1) & (low == high)
    statistics = {}
    for code in np.unique(agent):
        rows = np.flatnonzero(agent == code)
        groups = np.unique(group[rows])
        having = {name: rows[present[rows]] for name, present in table.present.items() if present[rows].any()}
        values = {
            "rows": len(rows),
            "groups": len(groups),
            "zero_variance": flat[groups].mean(),
            "singles": single[groups].mean(),
            "reward": result.reward[rows].mean(),
            **{f"reward/{name}": table.rewards[name][rows_of].mean() for name, rows_of in having.items()},
            "advantage_mean": result.advantage[rows].mean(),
            "advantage_std": result.advantage[rows].std(),
            "response_length": table.length[rows].mean(),
            "invalid": table.invalid[rows].mean(),
        }
        statistics[table.role.names[code]] = {name: float(value) for name, value in values.items()}
    return statistics


def averages(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over the rows that have it."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: float(np.mean(column)) for name, column in columns.items()}


def _success(reports: Sequence[Report]) -> float:
    """Mean share of each task's episodes that succeeded; 0 without episodes. Samplers return one chosen one, or k."""
    return float(np.mean([np.mean(report.successes or [False]) for report in reports]))


def play(
    tasks: Sequence[str], sample: Callable[..., list[Report]], step: int, sampled: bool, keep: int, at_once: int
) -> Iterator[list[Report]]:
    """Run every held-out task (as JSON), greedily or with the sampler of `marl.validation`, by `Trainer.sample`.

    The reports of the first `keep` tasks contain their episodes' lines; `step` is a part of uids and seeds; `at_once`
    tasks are in flight, whose reports are yielded together.
    """
    mode = "v" if sampled else "g"
    rows = [
        {"task": task, "uid": f"{mode}{step}t{number:05d}", "sampled": sampled, "keep": number < keep}
        for number, task in enumerate(tasks)
    ]
    for first in range(0, len(rows), at_once):
        yield sample(rows[first : first + at_once], step, validate=True)
