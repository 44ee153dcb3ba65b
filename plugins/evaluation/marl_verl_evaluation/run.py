"""The process of an evaluation, `python -m marl_verl_evaluation.run FOLDER`: a greedy and a sampled pass.

With c of n sampled episodes of a task solved, at least one of k episodes drawn without replacement is solved with

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{i = n-c+1}^{n} (1 - k / i)        (Chen et al. 2021, eq. 1)

It is an unbiased estimate of 1 - (1 - p)^k. avg@n is c / n, which is pass@1. Both are means over tasks.
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from marl_verl_inspect.export import export

from marl_verl.backend.protocol import Report
from marl_verl.events import emit
from marl_verl.files import write_json
from marl_verl.run.checkpoint import folders
from marl_verl.tasks.base import side_statistics, wilson
from marl_verl.trainer import run
from marl_verl.trainer.metrics import averages, by_set, means, play
from marl_verl_evaluation.cross_play import result
from marl_verl_evaluation.elo import interval
from marl_verl_evaluation.request import MODELS, RESULT, Request

if TYPE_CHECKING:
    from marl_verl.trainer.loop import Trainer


def evaluate(folder: Path) -> None:
    """Start the servers, run all tasks, and write result.json and episodes/ to the folder."""
    request = Request.read(folder)
    for name, source in request.exports.items():
        emit("phase", name=f"exporting the model of policy '{source.policy}'")
        export(source, folder / MODELS / name, merge=True)
    with run.session(folder) as trainer:
        # part of seeds and episode ids: greedy episodes are equal to those of the run's validation at that step
        trainer.step = request.step
        for name, state in trainer.states.items() if request.step else ():
            state.load(folders.intact(folders.choose(folder.parents[1], request.step), f"{name}/") / name)
        write_json(folder / RESULT, (play_pairings if request.compares else play_all)(trainer, request))
    emit("evaluated")


def play_all(trainer: "Trainer", request: Request) -> dict[str, Any]:
    """Run the greedy pass and, if episodes are sampled, the sampled one. Returns the content of result.json."""
    start = time.monotonic()
    greedy = played(trainer, request, sampled=False)
    sampled = played(trainer, request, sampled=True) if request.options.sampled else []
    seconds, reports = time.monotonic() - start, greedy + sampled
    trainer.records.episodes(request.step, [line for report in reports for line in report.lines])
    trainer.records.check_failures(reports)
    again = by_set(sampled)
    sets = {name: _scores(of_set, again.get(name, []), request) for name, of_set in by_set(greedy).items()}
    return {
        "step": request.step,
        **_scores(greedy, sampled, request),
        **({"sets": sets} if sets else {}),
        "agents": {
            agent: {"policy": used.source, "weights": used.describe(), **agent_metrics(greedy, agent)}
            for agent, used in request.assignments.items()
        },
        **totals(reports, seconds),
    }


def play_pairings(trainer: "Trainer", request: Request) -> dict[str, Any]:
    """Run a sampled pass for each pairing of a cross-play, on the same tasks; or the continuations of an edit. Returns
    the content of result.json.

    Pairings of sides are independent samples, with seeds of their own; those of a partner and of an edit have the same.
    """
    start = time.monotonic()
    all_reports: list[list[Report]] = []
    if request.rows:
        by_arm = {report.uid: report for report in trainer.sample(request.rows, request.step, validate=True)}
        all_reports = [[by_arm[pairing.column]] for pairing in request.pairings]
        trainer.records.episodes(request.step, [line for (report,) in all_reports for line in report.lines])
        trainer.records.check_failures([report for (report,) in all_reports])
    for number, pairing in enumerate(request.pairings if not request.rows else ()):
        trainer.rollouts.assign({agent: used.policy for agent, used in pairing.assignments.items()})
        all_reports.append(played(trainer, request, sampled=True, pairing=number))
        trainer.records.check_failures(all_reports[-1])
    return {
        "step": request.step,
        "sides": list(request.sides),
        "eval_tasks": len(trainer.data.held_out),
        "episodes": max(1, request.options.sampled),
        **result(request, all_reports),
        **totals([report for reports in all_reports for report in reports], time.monotonic() - start),
    }


def played(trainer: "Trainer", request: Request, sampled: bool, pairing: int | None = None) -> list[Report]:
    """Play a greedy or a sampled pass over the held-out tasks; `pairing` is the number of that of a cross-play."""
    marl, held_out = trainer.config.marl, trainer.data.held_out
    stored = 0 if sampled else int(marl.rollout.keep_episodes)
    at_once = max(1, request.options.at_once // (int(marl.validation.options.episodes) if sampled else 1))
    step = pairing if pairing is not None and request.sides else trainer.step  # in the seeds
    batches = play(held_out, trainer.sample, step, sampled, keep=stored, at_once=at_once)
    before, tasks = (pairing or 0) * len(held_out), len(request.pairings) * len(held_out)
    reports: list[Report] = []
    for batch in itertools.chain([[]], batches):
        reports += batch
        emit("playing", sampled=sampled, done=before + len(reports), tasks=tasks)
    return reports


def _scores(greedy: Sequence[Report], sampled: Sequence[Report], request: Request) -> dict[str, Any]:
    """The team's scores on some tasks, of sides with Wilson's interval over tasks; a failed attempt is unsolved."""
    solved, episodes = [any(report.successes) for report in greedy], request.options.sampled
    scores: dict[str, Any] = {
        "eval_tasks": len(solved),
        "success": sum(solved) / len(solved),
        "success_interval": wilson(sum(solved), len(solved)),
        "score": sum(score for report in greedy for score in report.scores) / len(solved),
        "episodes": episodes,
    }
    if episodes:
        times = [sum(report.successes) for report in sampled]
        scores.update(sampled_scores(times, episodes, request.options.ks))
    for suffix, reports in (("", greedy), ("_sampled", sampled)):
        measures = means([row for report in reports for row in report.measured])
        scores |= {f"answer{suffix}": measures} if measures else {}
        if sides := side_statistics([outcome for report in reports for outcome in report.outcomes]):
            for values in sides.values():
                values["wins_interval"] = wilson(values["wins"] * len(reports), len(reports))
            scores[f"sides{suffix}"] = sides
    return scores


def pass_at_k(episodes: int, solved: int, k: int) -> float:
    """Unbiased estimate of pass@k in [0, 1] for one task with `solved` of `episodes` episodes solved (eq. 1)."""
    if episodes - solved < k:  # every draw contains a solved episode
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(episodes - solved + 1, episodes + 1)))


def share_interval(values: Sequence[float]) -> tuple[float, float]:
    """`interval` of the mean over tasks of values in [0, 1], within [0, 1]. Where all are equal it would be a point:
    then Wilson's of a proportion, whose variance is the largest of all variables in [0, 1] with that mean."""
    if len({*values}) < 2:
        return wilson(sum(values), len(values))
    low, high = interval(values) or (0.0, 1.0)
    return max(low, 0.0), min(high, 1.0)


def sampled_scores(solved: Sequence[int], episodes: int, ks: Sequence[int]) -> dict[str, object]:
    """avg@n and each pass@k with intervals, by their keys in a result; `solved` has the solved episodes per task."""
    scores = {f"avg@{episodes}": [count / episodes for count in solved]}
    scores.update({f"pass@{k}": [pass_at_k(episodes, count, k) for count in solved] for k in ks})
    result: dict[str, object] = {}
    for name, values in scores.items():
        result |= {name: float(np.mean(values)), f"{name}_interval": share_interval(values)}
    return result


def agent_metrics(reports: Sequence[Report], agent: str) -> dict[str, Any]:
    """Means of an agent: rewards, tokens and shares of its turns (None without turns), turns per episode."""
    turns = [turn for report in reports for turn in report.turns if turn.agent == agent]
    episodes = sum(len(report.successes) for report in reports)
    rewards = averages(episode.get(agent, {}) for report in reports for episode in report.rewards)
    fields = {"response_length": "tokens", "read_length": "read", "invalid": "invalid", "cut_off": "cut_off"}
    return {
        "rewards": dict(sorted(rewards.items())),
        **{name: _mean([getattr(turn, field) for turn in turns]) for name, field in fields.items()},
        "turns": len(turns) / episodes if episodes else None,
        "tokens": sum(turn.tokens for turn in turns),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def totals(reports: Sequence[Report], seconds: float) -> dict[str, Any]:
    """Attempts, the failed ones by reason, and the tokens sampled in all episodes; those of failed ones are unknown.
    `seconds`: the duration of all."""
    failures = Counter(failure.reason for report in reports for failure in report.failures)
    tokens = sum(turn.tokens for report in reports for turn in report.turns)
    return {
        "attempts": sum(report.attempts for report in reports),
        "failed": failures.total(),
        "failed_reasons": dict(sorted(failures.items())),
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else None,
        "answer_seconds": _mean([answer for report in reports for answer in report.answer_seconds]),
    }


if __name__ == "__main__":
    sys.exit(run.main(Path(sys.argv[1]), evaluate))
