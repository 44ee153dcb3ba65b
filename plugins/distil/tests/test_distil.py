"""Distillation: what is imitated, the rows of imitation, and its loss."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from marl_verl_distil.conversations import STUDENT, conversations, demonstrated, said
from marl_verl_distil.imitation import AfterReasoning, Demonstrations
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_tiny.factory import make_tokenizer
from marl_verl_tiny.inventory import HolderAsker, Inventory

from marl_verl import MarlError, Task, Workflow
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act, Episode
from marl_verl.episode.workflow import Single
from marl_verl.models.chat import Chat

TASKS = Inventory()
DRAWN = TASKS.generate("train", 6, seed=3)
RIGHT: dict[str, Callable[[Act], str]] = {
    "holder": lambda act: str(act.observation[0]["content"]).removeprefix("digits "),
    "asker": lambda act: "0",  # right by chance
}


def played(task: Task, **replies: Any) -> list[Episode]:
    context = ScriptedContext(HolderAsker(), task, ScriptedPolicy({**RIGHT, **replies}), tasks=TASKS)
    return asyncio.run(Independent(episodes=2).sample(context)).episodes


def asked(task: Task) -> str:
    return str(task.data["digits"][task.data["index"] - 1])


def made(episodes: list[Episode], workflow: Workflow | None = None, **options: Any) -> Any:
    settings = {"separator": None, "least": None, **options}
    return asyncio.run(conversations(episodes, workflow or Single(), TASKS, **settings))


def test_different_solved_episodes_become_conversations() -> None:
    """The student sees the whole task, and says the team's answer, or what led to it."""
    solved, other = DRAWN[:2]
    episodes = [*played(solved, asker=asked(solved)), *played(other, asker=("5" if asked(other) != "5" else "6"))]
    seen, answer = {"role": "user", "content": solved.prompt}, {"role": "assistant", "content": asked(solved)}
    assert made(episodes) == [(solved, [seen, answer])]  # both episodes of the task say the same
    assert [task for task, _ in made(episodes, least=0.0)] == [solved, other]
    assert said(episodes[0], "message") == "\n".join([" ".join(solved.data["digits"]), "message", asked(solved)])
    ((_, messages),) = made(episodes, AfterReasoning(separator="message"), separator="message")
    assert messages[1]["content"] == said(episodes[0], "message")


def test_nothing_to_imitate_is_an_error() -> None:
    task = DRAWN[0]
    episodes = played(task, asker=asked(task))
    with pytest.raises(MarlError, match="the team solved 2 of 2 episodes, and the student solves none"):
        made(episodes, separator="message")  # `single` takes the exchange for the answer
    with pytest.raises(MarlError, match="nothing to imitate"):
        made(episodes, least=2.0)


def test_demonstrations_are_rows_in_tokens() -> None:
    """As the model would have sampled them: after the prompt of its chat template, with the token that ends a turn."""
    tokenizer = make_tokenizer(TASKS.vocabulary())
    chat = Chat(tokenizer, {}, "policy 'student'")
    episodes = [episode for task in DRAWN for episode in played(task, asker=asked(task))]
    rows = demonstrated(made(episodes, AfterReasoning(separator="message"), separator="message"), chat)
    assert [row.id for row in rows] == [task.id for task in DRAWN]
    context = ScriptedContext(AfterReasoning(separator="message"), rows[0], ScriptedPolicy({STUDENT: "?"}), tasks=TASKS)
    (episode,) = asyncio.run(Demonstrations().sample(context)).episodes
    (turn,) = episode.turns
    assert (episode.success, context.asked) == (True, [])  # nothing was sampled
    assert turn.action.prompt_ids == chat.encode([{"role": "user", "content": DRAWN[0].prompt}])
    words = [*DRAWN[0].data["digits"], "message", asked(DRAWN[0]), tokenizer.eos_token]
    assert turn.action.response_ids == tokenizer.convert_tokens_to_ids(words)
    assert len(turn.action.log_probs) == len(words)
    with pytest.raises(MarlError, match="its tokenizer writes"):
        demonstrated(made(episodes, AfterReasoning(), separator="---"), chat)


@pytest.mark.slow
def test_the_loss_is_verls_loss_of_supervised_training() -> None:
    from types import SimpleNamespace

    from verl.trainer.ppo.core_algos import compute_policy_loss_gpg
    from verl.workers.utils.losses import sft_loss

    lengths, generator = ((3, 4), (2, 1), (4, 6)), torch.Generator().manual_seed(0)  # of prompts and responses
    rows = [torch.randn(sum(pair), generator=generator, requires_grad=True) for pair in lengths]
    masks = [torch.tensor([0] * prompt + [1] * response) for prompt, response in lengths]
    nested = {"layout": torch.jagged}
    data = {"loss_mask": torch.nested.nested_tensor(masks, **nested), "batch_num_tokens": 11, "dp_size": 1}
    expected, _ = sft_loss(SimpleNamespace(), {"log_probs": torch.nested.as_nested_tensor(rows, **nested)}, data)
    # log-probs of a token are at the token before
    answers = [row[prompt - 1 : -1] for row, (prompt, _) in zip(rows, lengths, strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(answers, True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(answer)) for answer in answers], True)
    config = SimpleNamespace(global_batch_info={"dp_size": 1, "batch_num_tokens": 11})
    loss, _ = compute_policy_loss_gpg(padded, padded, torch.ones_like(mask), mask, "token-mean", config)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for gradient, wanted in zip(*(torch.autograd.grad(value, rows) for value in (loss, expected)), strict=True):
        assert torch.allclose(gradient, wanted)
