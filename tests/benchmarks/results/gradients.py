"""What one mean and std for all agents does to each agent's gradient, on the same rows and weights.

With g_i the gradient of row i's log-probability and A_i its advantage, for the rows i of agent k

    moment = sum_i (A_i^global)^2 |g_i|^2 / sum_i (A_i^own)^2 |g_i|^2
    norm   = |G^global| / |G^own|,    cosine = of the angle between G^global and G^own,    G = sum_i A_i g_i

Dr. MAS's amplification predicts the moment if |g_i| does not depend on the reward. The run needs a checkpoint of step s
and the episodes of step s + 1 with their tokens, which the weights of that checkpoint sampled.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from marl_verl_testing.algorithm import row_of as row

from marl_verl.algo.advantage import FloatArray, RowTable
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Turn
from marl_verl.run.reading import Run

STEP = 10

Gradients = Callable[[Sequence[Turn]], FloatArray]
"""Turns of a policy -> the gradient of each one's log-probability, [n, parameters]."""


def ratio(what: str, agent: str, weights: Mapping[str, float] | None = None) -> Callable[[Run], float]:
    """The ratio `what` (moment, norm or cosine) of an agent's gradients; `weights` are other weights of the rewards."""

    def of_run(run: Run) -> float:
        turns, gradient = _gradients(run.folder, agent)
        options = run.config.marl.algorithm.options
        given = {"penalty": options.rewards.penalty, "weights": weights or dict(options.rewards.weights)}
        rows = [i for i, turn in enumerate(turns) if turn.agent == agent]
        own, everyone = advantages(turns, given)
        return ratios(own[rows], everyone[rows], gradient)[what]

    return of_run


@functools.lru_cache(maxsize=2)
def _gradients(folder: Path, agent: str) -> tuple[list[Turn], FloatArray]:
    """(turns of the step after the checkpoint, gradients of those of the agent)."""
    run = Run(folder)
    turns = [turn for episode in run.episodes[STEP + 1] for turn in episode.turns]
    own = [turn for turn in turns if turn.agent == agent]
    return turns, gradients(run.checkpoints[STEP] / "policies" / own[0].policy / "huggingface")(own)


def advantages(turns: Sequence[Turn], rewards: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """(advantage with the mean and std of each agent, with those of all rows of the task), [n] each.

    Args:
        rewards: the options penalty and weights of `dr-mas`.
    """
    table = RowTable.from_rows([row(turn) for turn in turns])
    own = algorithm_named("dr-mas", {"rewards": rewards}, "options").compute(table)
    everyone = algorithm_named(
        "grpo", {"rewards": {"name": "marl_verl_dr_mas.algorithm:PenaltyMix", **rewards}}, "options"
    ).compute(table)
    return own.advantage, everyone.advantage


def ratios(own: FloatArray, everyone: FloatArray, gradient: FloatArray) -> dict[str, float]:
    """moment, norm and cosine of an agent's rows: advantages [n], gradients [n, parameters]."""
    size = (gradient**2).sum(1)
    batch, other = own @ gradient, everyone @ gradient
    norm, shared = np.linalg.norm(batch), np.linalg.norm(other)
    return {
        "moment": float((everyone**2 * size).sum() / (own**2 * size).sum()),
        "norm": float(shared / norm),
        "cosine": float(batch @ other / (norm * shared)),
    }


def gradients(model: Path) -> Gradients:
    """The gradients of a model at temperature 1, by one backward pass per row."""
    import torch  # here: the page is written without it
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # 20 times faster for a tiny model on a busy machine
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    weights = [weight for weight in network.parameters() if weight.requires_grad]

    def of_turns(turns: Sequence[Turn]) -> FloatArray:
        found = []
        for turn in turns:
            prompt, answer = turn.action.prompt_ids, turn.action.response_ids
            logits = network(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.log_softmax(-1)[range(len(answer)), answer].sum()
            found.append(torch.cat([part.flatten() for part in torch.autograd.grad(chosen, weights)]).numpy())
        return np.stack(found)

    return of_turns
