"""HACPO: advantages by hand and by the reference, the loss by hand-written autograd, rows in another model's tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_hacpo.algorithm import CapabilityAware, hacpo
from marl_verl_hacpo.loss import HACPO, Objective
from marl_verl_hacpo.rollouts import SharedRollouts, in_tokens_of
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_loss, check_sampler
from marl_verl_testing.rows import Rows, algorithm, episodes, keep, row
from marl_verl_testing.workflows import number

from marl_verl import Task, Team, Workflow
from marl_verl.algo.advantage import RowTable
from marl_verl.episode import Act, Action, Turn
from tests.batches import compute

WORDS, TASK, BPE = ["one", "two", "three"], Task("t", "2 + 2?", {}), "make_bpe_tokenizer"


def of(policy: str, session: int, reward: float, uid: str = "q") -> dict[str, Any]:
    return {**row(uid, session, 0, 0, policy, team=reward), "policy": policy}


def test_advantages_by_hand() -> None:
    """Rewards a: 1, 0 and b: 1, 1. P_a = 1/2, P_b = 1, so that w(a, b) = 1/2 and w(b, a) = 2; the std is 1/2."""
    result = compute(algorithm("hacpo", eps=0.0), [of("a", 0, 1.0), of("b", 1, 1.0), of("a", 2, 0.0), of("b", 3, 1.0)])
    # equation 7: the baseline is (1 + 0 + 1/2 + 1/2) / 4 = 1/2 for a, and (2 + 0 + 1 + 1) / 4 = 1 for b
    np.testing.assert_allclose(result.baseline, [0.5, 1.0, 0.5, 1.0])
    np.testing.assert_allclose(result.advantage, [1.0, 0.0, -1.0, 0.0])
    # equation 10: a learns twice as much from b's rows, b half as much from a's
    np.testing.assert_allclose(result.shared["a"][[1, 3]], [2.0, 2.0])
    np.testing.assert_allclose(result.shared["b"][[0, 2]], [0.0, -1.0])


def test_a_capability_is_the_mean_of_the_last_steps() -> None:
    """Equation 9 with K = 2: a policy's means 1, 0, 1 give 1, 1/2, 1/2. One without rows keeps what it had."""
    estimator, memory, capabilities = CapabilityAware(window=2), dict[str, float](), []
    for mean in (1.0, 0.0, 1.0):
        table = RowTable.from_rows([of("a", 0, mean), of("a", 1, mean)])
        columns, memory = estimator.recall(table, table.rewards["team"], memory)
        capabilities.append(columns["capability"][0])
    assert capabilities == [1.0, 0.5, 0.5]
    table = RowTable.from_rows([of("b", 0, 1.0)])
    assert estimator.recall(table, table.rewards["team"], memory)[1] == {"a/0": 1.0, "a/1": 0.0, "b/0": 1.0}


@given(rows=episodes(turns=1), data=st.data())
def test_what_others_learn_is_the_reference(rows: Rows, data: st.DataObject) -> None:
    rows = [{**row, "policy": row["agent"]} for row in keep(rows, team="team")]
    order = data.draw(st.permutations(range(len(rows))))
    result = compute(algorithm("hacpo"), [rows[i] for i in order])
    np.testing.assert_allclose(result.advantage[np.argsort(order)], hacpo(rows), atol=1e-9)
    assert result.shared.keys() == {row["policy"] for row in rows}
    for learner, advantage in result.shared.items():
        np.testing.assert_allclose(advantage[np.argsort(order)], hacpo(rows, learner), atol=1e-9)


class Twice(Workflow):
    """The first agent acts twice; the second is never called."""

    async def run(self, task: Task, team: Team) -> str:
        first = await team[team.agents[0]].act(task.prompt)
        return (await team[team.agents[0]].act(first.text)).text


def test_agents_take_turns_with_whole_episodes() -> None:
    policy = ScriptedPolicy(dict.fromkeys(("a", "b"), lambda act: str(number(act, 9))))
    sample = check_sampler(SharedRollouts(episodes=2), Twice(), TASK, policy)
    assert [[turn.agent for turn in episode.turns] for episode in sample.episodes] == [["a"] * 2, ["b"] * 2] * 2
    assert {turn.policy for turn in sample.turns if turn.agent == "b"} == {"b"}


def client(kind: str, most: int = 100) -> Any:
    from marl_verl_tiny import factory

    from marl_verl.models.chat import Chat

    chat = Chat(getattr(factory, kind)(WORDS), {}, kind)

    limits = {"too_long": lambda messages, tools: "long" if len(chat.encode(messages)) > most else None}
    return SimpleNamespace(chat=chat, encode=chat.encode, response_length=16, **limits)


@pytest.mark.slow
def test_an_action_in_the_tokens_of_another_model() -> None:
    words, pairs = client("make_tokenizer"), client(BPE)
    ids = [*words.chat.tokenizer.encode("two three one"), words.chat.tokenizer.eos_token_id]
    action = Action("two three one", [1], ids, [-0.5, -1.0, -1.5, 0.0], "stop")
    seen = [{"role": "user", "content": "one"}]
    other = in_tokens_of(pairs, seen, action, words)
    assert pairs.chat.tokenizer.decode(other.response_ids) == "two three one</s>"
    assert other.log_probs == pytest.approx([-3.0 / other.length] * other.length)
    assert in_tokens_of(words, seen, other, pairs).response_ids == ids  # and back
    cut = in_tokens_of(pairs, seen, replace(action, response_ids=ids[:2], stop_reason="length"), words)
    assert pairs.chat.tokenizer.decode(cut.response_ids) == "two three"

    context = ScriptedContext(Twice(), TASK, ScriptedPolicy({"a": "1", "b": "1"}))
    turn = Turn(Act("a", "0", 0, 0, tuple(seen)), action, "u", 0, "a")
    with_tools = replace(turn, act=replace(turn.act, parameters={"tools": []}))
    for shown, of_b, actions in ((turn, pairs, {"b": other}), (with_tools, pairs, {}), (turn, client(BPE, 3), {})):
        assert SharedRollouts().shared(context, shown, {"a": words, "b": of_b}) == actions


def test_the_objective_of_a_shared_row_by_hand() -> None:
    """A = 2, s = 1/2: J = 1/2 * 1/2 * 2. After two updates, bound 1 - 0.8 + 2 * 0.2: J = 0.6 * 0.6 * 2, no gradient."""
    import torch

    settings = SimpleNamespace(clip_ratio_low=3e-4, clip_ratio_high=4e-4, global_batch_info={})
    for update, value, slope in ((1.0, 0.5, 0.5), (3.0, 0.72, 0.0)):
        log_prob = torch.full((1, 2), 0.5).log().requires_grad_()
        batch = {"old_log_prob": torch.zeros(1, 2), "log_prob": log_prob, "advantages": torch.full((1, 2), 2.0)}
        batch |= {"response_mask": torch.ones(1, 2, dtype=torch.bool), "rollout_is_weights": torch.full((1, 2), update)}
        loss, _ = Objective(step=0.2)(**batch, config=settings, loss_agg_mode="seq-mean-token-mean")
        loss.backward()
        assert -loss.item() == pytest.approx(value)
        assert -log_prob.grad.sum().item() == pytest.approx(slope)


def by_hand(now: Sequence[Any], rows: Sequence[Any], sampled: Sequence[Any], update: int) -> Any:
    """Equations 47 to 52; odd rows are of another policy."""
    total = 0.0
    for i, (log_prob, one, old) in enumerate(zip(now, rows, sampled, strict=True)):
        s = (log_prob - old).mean().exp()
        if i % 2:
            clipped = s.clamp(1 - 0.8 + update * 0.025, 1.0)
            total += clipped * clipped.detach() * one.advantage
        else:
            total += min(s * one.advantage, s.clamp(1 - 3e-4, 1 + 4e-4) * one.advantage)
    return -total / len(rows)


@pytest.mark.slow
def test_two_updates_follow_the_gradient_of_the_equations(verl_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from tests.test_losses import ROWS, close, log_probs
    from tests.verl_actor import Actor, put

    check_loss(HACPO)
    actor, rows = Actor(verl_model, "hacpo"), [*ROWS, ROWS[0]]
    model = AutoModelForCausalLM.from_pretrained(verl_model).double()
    with torch.no_grad():
        sampled = [now - torch.tensor(one.gap) for now, one in zip(log_probs(model, rows), rows, strict=True)]
        for i, distance in ((1, 0.5), (3, 2.5), (5, 0.3), (7, -0.1)):  # the second is below the clip, the last above
            sampled[i] = torch.full_like(sampled[i], float(log_probs(model, rows)[i].mean()) + distance)
    batch = put(actor.store, rows, sampled)
    for tag in batch.tags[1::2]:
        tag["source"] = "another"
    before, first = actor.weights(), {name: weight.detach().clone() for name, weight in model.named_parameters()}
    actor.policy.update(batch, 2)
    for update, part in enumerate((slice(0, 4), slice(4, 8))):
        model.zero_grad()
        by_hand(log_probs(model, rows[part]), rows[part], sampled[part], update).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= weight.grad
    change = {name: before[name] - weight for name, weight in actor.weights().items()}
    assert close(change, {name: first[name] - weight.detach() for name, weight in model.named_parameters()})
    assert actor.calls == ["update_actor"]  # the old log-probs are those of sampling
