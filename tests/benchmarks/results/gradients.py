"""What one mean and std for all agents does to each agent's gradient, on the same rows and weights.

With g_i the gradient of row i's log-probability and A_i its advantage, for agent k

    moment ratio = sum_i (A_i^global)^2 |g_i|^2 / sum_i (A_i^own)^2 |g_i|^2
    norm ratio   = |sum_i A_i^global g_i| / |sum_i A_i^own g_i|

Dr. MAS's amplification predicts the moment ratio if |g_i| does not depend on the reward. The run needs a checkpoint of
step s and the episodes of step s + 1 with their tokens, which the weights of that checkpoint sampled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.advantage import FloatArray, RowTable
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Turn
from marl_verl.episode.row import row
from marl_verl.inspect.run_files import Run

STEP = 10

Gradients = Callable[[Sequence[Turn]], FloatArray]
"""Turns of a policy -> the gradient of each one's log-probability, [n, parameters]."""


def moment_ratio(agent: str) -> Callable[[Run], float]:
    return lambda run: _ratios(run.folder, agent)[0]


def norm_ratio(agent: str) -> Callable[[Run], float]:
    return lambda run: _ratios(run.folder, agent)[1]


@functools.lru_cache(maxsize=8)
def _ratios(folder: Path, agent: str) -> tuple[float, float]:
    run = Run(folder)
    turns = [turn for episode in run.episodes[STEP + 1] for turn in episode.turns]
    options = run.config.marl.algorithm.options
    own, everyone = advantages(turns, {name: options[name] for name in ("penalty", "weights")})
    rows = [i for i, turn in enumerate(turns) if turn.agent == agent]
    policy = run.checkpoints[STEP] / "policies" / turns[rows[0]].policy / "huggingface"
    return ratios(own[rows], everyone[rows], gradients(policy)([turns[i] for i in rows]))


def advantages(turns: Sequence[Turn], rewards: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """(advantage with the mean and std of each agent, with those of all rows of the task), [n] each.

    Args:
        rewards: the options penalty and weights of `dr-mas`.
    """
    table = RowTable.from_rows([row(turn) for turn in turns])
    own = algorithm_named("dr-mas", rewards, "options").compute(table)
    everyone = algorithm_named("grpo", {"rewards": "penalty", **rewards}, "options").compute(table)
    return own.advantage, everyone.advantage


def ratios(own: FloatArray, everyone: FloatArray, gradient: FloatArray) -> tuple[float, float]:
    """(moment ratio, norm ratio) of an agent's rows: advantages [n], gradients [n, parameters]."""
    size = (gradient**2).sum(1)
    norms = [np.linalg.norm(advantage @ gradient) for advantage in (everyone, own)]
    return float((everyone**2 * size).sum() / (own**2 * size).sum()), float(norms[0] / norms[1])


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
