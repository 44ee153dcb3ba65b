"""`marl-verl replay RUN --episode ID --edit ACT TEXT`: what if an agent had acted otherwise?

Per agent and reward component, and for score and success of the team, difference = mean over sessions of (edited
continuation - recorded continuation), with the same seeds.
"""

from typing import Any

from marl_verl.evaluation.request import Pairing, Request
from marl_verl.evaluation.statistics import counts
from marl_verl.trainer.loop import Trainer
from marl_verl_leagues.partner import differences

ARMS = ("recorded", "edited")


def play(trainer: Trainer, request: Request) -> dict[str, Any]:
    """Run the continuations. Returns the content of result.json; sessions that failed in either arm do not count."""
    done = trainer.rollouts.sample(request.rows, request.step, validate=True)
    reports = sorted((report for share in done for report in share.reports), key=lambda report: ARMS.index(report.uid))
    trainer.records.episodes(request.step, [line for report in reports for line in report.lines])
    trainer.records.check_failures(reports)
    rewards: list[list[list[Any]]] = []
    for report in reports:
        failed, sessions = {failure.session for failure in report.failures}, range(report.attempts)
        played = zip(report.scores, report.successes, report.rewards, strict=True)
        values = ({"team": {"score": score, "success": float(done)}} | agents for score, done, agents in played)
        rewards.append([[] if session in failed else [next(values)] for session in sessions])
    numbers = {"sides": [], "eval_tasks": 1, "episodes": max(1, request.episodes)}
    pairings = [Pairing("", arm, {}) for arm in ARMS]
    return {"step": request.step, **numbers, **differences(pairings, rewards), **counts(reports)}
