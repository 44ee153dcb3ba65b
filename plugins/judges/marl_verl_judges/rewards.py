"""Role rewards of judged agents and of judges, and metric `verdicts`.

    judge-score         act, episode: r_i = mean over judges j of s_j(x_i); in an episode x is the same for all acts
                        pair: r_i = mean over opponents k and judges j of (s_j(x_i, x_k) + 1 - s_j(x_k, x_i)) / 2
    judge-calibration   1 - (s - y)^2 of a judge; y = 1 if the task set counts the answer as solved, else 0

The second one is a proper scoring rule (Brier, 1950): its mean is highest for s = P(y = 1).
"""

import json
from collections.abc import Iterator
from itertools import combinations
from statistics import fmean
from typing import Any

from marl_verl import Episode, MarlError, Metric, Task, Turn
from marl_verl.algo.sampling import Sample
from marl_verl.tasks import quick
from marl_verl_judges.judged import recorded

UNPAIRED = 0.5  # of an act without an opponent: neither better nor worse


def judgements(episode: Episode) -> Iterator[tuple[list[str], list[dict[str, Any]], float]]:
    """The arguments of `recorded` in the journal of an episode."""
    function = f"{recorded.__module__}:{recorded.__qualname__}"
    return (json.loads(call.arguments) for call in episode.journal.calls() if call.function == function)


@quick
def judge_score(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `judge-score`, the mean score of an act. MarlError if no judge has judged it."""
    name = ":".join(turn.key)
    for acts, views, unparsed in judgements(episode):
        if name in acts:
            seen = [view for view in views if name in (*view["first"], *view["second"])]
            scores = [(score, name in view["first"]) for view in seen for score in view["verdicts"].values()]
            shares = [unparsed if score is None else score if first else 1 - score for score, first in scores]
            return fmean(shares) if shares else UNPAIRED
    remedy = "Name workflow 'judged', with this agent in 'agents'; a tree also needs 'early: true' and no joint moves."
    raise MarlError(f"role reward 'judge-score': no judge has judged act {name}. {remedy}")


@quick
def judge_calibration(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `judge-calibration` of a judge, 0 without a score. MarlError for a verdict on a pair."""
    name = ":".join(turn.key)
    for view in (view for _, views, _ in judgements(episode) for view in views):
        if name in view["verdicts"] and not view["second"]:
            score = view["verdicts"][name]
            return 0.0 if score is None else 1 - (score - episode.success) ** 2
    raise MarlError(f"role reward 'judge-calibration': {name} is no verdict on an act or an episode")


class Verdicts(Metric):
    """Means over verdicts with a score: `judge/score`; `judge/accuracy`, 1 - |s - y| on acts and episodes;
    `judge/agreement` of every two judges on one prompt, 1 - |s_j - s_k|; `judge/consistency` of a judge on the two
    orders of a pair, 1 - |s(a, b) + s(b, a) - 1|. With scores 0 and 1 they are shares of verdicts (Zheng et al.)."""

    def of_sample(self, sample: Sample) -> dict[str, float]:
        values: dict[str, list[float]] = {name: [] for name in ("score", "accuracy", "agreement", "consistency")}
        for episode in sample.episodes:
            for _, views, _ in judgements(episode):
                for view in views:
                    scores = [score for score in view["verdicts"].values() if score is not None]
                    values["score"] += scores
                    values["agreement"] += [1 - abs(one - two) for one, two in combinations(scores, 2)]
                    values["accuracy"] += [1 - abs(score - episode.success) for score in scores if not view["second"]]
                orders = [view["verdicts"] for view in views if view["second"]]
                for order, swapped in zip(orders[::2], orders[1::2], strict=True):
                    both = zip(order.values(), swapped.values(), strict=True) if order.keys() != swapped.keys() else ()
                    values["consistency"] += [1 - abs(one + two - 1) for one, two in both if None not in (one, two)]
        return {f"judge/{name}": fmean(numbers) for name, numbers in values.items() if numbers}
