"""The process of an evaluation, `python -m marl_verl.evaluation.run FOLDER`: a greedy and a sampled pass."""

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl.evaluation.request import MODELS, RESULT, Request
from marl_verl.evaluation.statistics import agent_metrics, counts, sampled_scores
from marl_verl.events import emit
from marl_verl.extensions import extension
from marl_verl.files import write_json
from marl_verl.run.checkpoint import folders
from marl_verl.run.checkpoint.export import export
from marl_verl.tasks.base import side_statistics, wilson
from marl_verl.trainer import run
from marl_verl.trainer.metrics import by_set, means, play

if TYPE_CHECKING:
    from marl_verl.backend.protocol import Report
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
        edited = extension("league", "edit").play if request.rows else play_all
        write_json(folder / RESULT, (play_pairings if request.pairings else edited)(trainer, request))
    emit("evaluated")


def play_all(trainer: "Trainer", request: Request) -> dict[str, Any]:
    """Run the greedy pass and, if `episodes` > 0, the sampled pass. Returns the content of result.json."""
    start = time.monotonic()
    greedy = played(trainer, request, sampled=False)
    sampled = played(trainer, request, sampled=True) if request.episodes else []
    seconds, reports = time.monotonic() - start, greedy + sampled
    trainer.records.episodes(request.step, [line for report in reports for line in report.lines])
    trainer.records.check_failures(reports)
    counted = counts(reports)
    again = by_set(sampled)
    sets = {name: _scores(of_set, again.get(name, []), request) for name, of_set in by_set(greedy).items()}
    answers = [answer for report in reports for answer in report.answer_seconds]
    return {
        "step": request.step,
        **_scores(greedy, sampled, request),
        **({"sets": sets} if sets else {}),
        "agents": {
            agent: {"policy": used.source, "weights": used.describe(), **agent_metrics(greedy, agent)}
            for agent, used in request.assignments.items()
        },
        "attempts": sum(report.attempts for report in reports),
        **counted,
        "tokens_per_second": counted["tokens"] / seconds if seconds else None,
        "answer_seconds": sum(answers) / len(answers) if answers else None,
    }


def play_pairings(trainer: "Trainer", request: Request) -> dict[str, Any]:
    """Run a sampled pass for each pairing of a cross-play, on the same tasks. Returns the content of result.json.

    Pairings of sides are independent samples, with seeds of their own; those of a partner have the same seeds.
    """
    all_reports: list[list[Report]] = []
    for number, pairing in enumerate(request.pairings):
        trainer.rollouts.assign(pairing.policies)
        all_reports.append(played(trainer, request, sampled=True, pairing=number))
        trainer.records.check_failures(all_reports[-1])
    return {
        "sides": list(request.sides),
        "eval_tasks": len(trainer.data.held_out),
        "episodes": request.episodes,
        **extension("league", "cross-play").result(request, all_reports),
        **counts([report for reports in all_reports for report in reports]),
    }


def played(trainer: "Trainer", request: Request, sampled: bool, pairing: int | None = None) -> "list[Report]":
    """Play a greedy or a sampled pass over the held-out tasks; `pairing` is the number of that of a cross-play."""
    marl, held_out = trainer.config.marl, trainer.data.held_out
    stored = 0 if sampled else int(marl.rollout.keep_episodes)
    at_once = max(1, request.at_once // (int(marl.validation.options.episodes) if sampled else 1))
    step = pairing if pairing is not None and request.sides else trainer.step  # in the seeds
    batches = play(held_out, trainer.rollouts, step, sampled, keep=stored, at_once=at_once)
    before, tasks = (pairing or 0) * len(held_out), max(1, len(request.pairings)) * len(held_out)
    reports: list[Report] = []
    for batch in itertools.chain([[]], batches):
        reports += batch
        emit("playing", sampled=sampled, done=before + len(reports), tasks=tasks)
    return reports


def _scores(greedy: "Sequence[Report]", sampled: "Sequence[Report]", request: Request) -> dict[str, Any]:
    """The team's scores on some tasks, of sides with Wilson's interval over tasks; a failed attempt is unsolved."""
    solved = [any(report.successes) for report in greedy]
    scores: dict[str, Any] = {
        "eval_tasks": len(solved),
        "success": sum(solved) / len(solved),
        "success_interval": wilson(sum(solved), len(solved)),
        "score": sum(score for report in greedy for score in report.scores) / len(solved),
        "episodes": request.episodes,
    }
    if request.episodes:
        times = [sum(report.successes) for report in sampled]
        scores.update(sampled_scores(times, request.episodes, request.ks, request.seed))
    for suffix, reports in (("", greedy), ("_sampled", sampled)):
        measures = means([row for report in reports for row in report.measures or [{}]], "")
        scores |= {f"answer{suffix}": measures} if measures else {}
        if sides := side_statistics([outcome for report in reports for outcome in report.outcomes]):
            for values in sides.values():
                values["wins_interval"] = wilson(values["wins"] * len(reports), len(reports))
            scores[f"sides{suffix}"] = sides
    return scores


if __name__ == "__main__":
    sys.exit(run.main(Path(sys.argv[1]), evaluate))
