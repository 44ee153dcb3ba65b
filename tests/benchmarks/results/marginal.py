"""How well rewards of SHARP's workers agree with their true marginal contribution, on three ledgers.

The planner's answer depends on the workers only by their reports, so that the expected effect of worker m in an episode
is, with the probabilities of the planner's model,

    truth_m = P(right answer | all reports) - P(right answer | report of m is "none")

Delta_m, the credit that training measures by one masked run, is one sample of it: both answers are sampled. The run
needs a checkpoint of step s and the episodes of step s + 1, which the weights of that checkpoint sampled.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from marl_verl_sharp.ledgers import DIGITS, NOTHING, PLANNER, READER, WORKERS

from marl_verl.episode import Episode
from marl_verl.models.chat import Chat
from marl_verl.run.reading import Run

STEP = 10

Probability = Callable[[str, str], float]
"""(the planner's observation, the right number) -> the probability that the planner answers it."""


def credit_correlation(run: Run) -> float:
    """Correlation of Delta with the truth, over the calls of the workers in a step."""
    return _correlations(run.folder)[0]


def broadcast_correlation(run: Run) -> float:
    """Correlation of the team's reward, which broadcast gives to every worker, with the truth."""
    return _correlations(run.folder)[1]


def correlation_gap(run: Run) -> float:
    return credit_correlation(run) - broadcast_correlation(run)


@functools.lru_cache(maxsize=1)
def _correlations(folder: Path) -> tuple[float, float]:
    run = Run(folder)
    probability = planner(run.checkpoints[STEP] / "policies" / "team" / "huggingface")
    return correlations(run.episodes[STEP + 1], probability)


def correlations(episodes: Iterable[Episode], probability: Probability) -> tuple[float, float]:
    """Correlation with the truth of (Delta, the team's reward), over the workers of the episodes."""
    rows = np.array(
        [
            (truth, credit, episode.score)
            for episode in episodes
            for truth, credit in zip(truths(episode, probability), credits(episode), strict=True)
        ]
    )
    return correlation(rows[:, 0], rows[:, 1]), correlation(rows[:, 0], rows[:, 2])


def truths(episode: Episode, probability: Probability) -> list[float]:
    """The true marginal contribution of each worker."""
    seen = str([turn for turn in episode.turns if turn.agent == PLANNER][-1].observation[-1]["content"])
    words = seen.split()
    right = episode.task.data["ledgers"][READER][episode.task.data["item"]]
    found = []
    for worker in WORKERS:
        masked = list(words)
        masked[words.index(worker) + 1] = NOTHING
        without = " ".join(masked)
        found.append(0.0 if without == seen else probability(seen, right) - probability(without, right))
    return found


def credits(episode: Episode) -> list[float]:
    """Delta of each worker, which all its turns have."""
    return [next(turn.rewards["mc"] for turn in episode.turns if turn.agent == worker) for worker in WORKERS]


def correlation(x: Sequence[float] | Any, y: Sequence[float] | Any) -> float:
    """Pearson's; 0 if one of them does not vary."""
    return float(np.corrcoef(x, y)[0, 1]) if np.std(x) and np.std(y) else 0.0


def planner(model: Path) -> Probability:
    """The probabilities of a model: that it answers one number and ends."""
    import torch  # here: the page is written without it
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # 20 times faster for a tiny model on a busy machine
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    chat = Chat.load({"path": str(model)}, {}, "policy 'team'")
    end = chat.tokenizer.eos_token_id
    token = {digit: chat.tokenizer.encode(digit, add_special_tokens=False) for digit in DIGITS}

    @functools.cache
    def probability(observation: str, right: str) -> float:
        prompt, answer = chat.encode([{"role": "user", "content": observation}]), [*token[right], end]
        with torch.no_grad():
            logits = network(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        return float(logits.log_softmax(-1)[range(len(answer)), answer].sum().exp())

    return probability
