"""Each loss through verl's real actor update, against its equation written here in plain autograd, in float64."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marl_verl.errors import MarlError
from tests.verl_actor import Actor, Row

pytestmark = pytest.mark.slow

TEMPERATURE = 0.8
# `moved` takes tokens and rows beyond each side of each clip, `gap` weights beyond 2; responses of 1 to 6 tokens
ROWS = (
    Row([3, 9], [12, 7, 20, 8], 1.0, [0.5, -0.5, 0.1, -0.1], [1.0, -0.5, 0.3, 0.0]),
    Row([4, 11, 22, 5], [25, 13, 6], -0.7, [1.5, -0.4, 0.0], [0.2, 2.0, -1.0]),
    Row([8, 8, 21], [14, 15, 16, 17, 18, 19], 0.4, [0.01] * 6, [0.1, 0.9, -0.2, 0.0, -0.4, 0.5]),
    Row([26, 10], [9], -1.2, [-0.05], [0.6]),
    Row([7, 7, 7, 12], [23, 3], 0.0, [0.0, 0.2], [0.3, -0.3]),
    Row([15, 6, 19], [5, 24, 10, 11, 3], 0.9, [-0.3, 0.1, 0.0, 0.05, -0.2], [-0.8, 0.05, 1.5, -0.05, 0.0]),
    Row([20, 14], [6, 26, 13], -0.5, [0.0002, 0.0, -0.0001], [0.0, 0.4, -0.6]),
)
TOKENS = sum(len(row.response) for row in ROWS)
Tensors = list[torch.Tensor]
Hand = Callable[[Tensors, Tensors, Sequence[Row], Tensors], torch.Tensor]
"""(log pi, log pi_old, rows, weights), a tensor per row -> the loss."""


@pytest.fixture(scope="module")
def learner(verl_model: Path) -> Callable[..., Actor]:
    """One actor for all losses, with its first weights."""
    actor = Actor(verl_model, "ppo-clip")
    initial = actor.weights()

    def learns_with(loss: str, *overrides: str) -> Actor:
        actor.learn_with(loss, *overrides)
        actor.set_weights(initial)
        actor.store.rows.clear()
        return actor

    return learns_with


@pytest.fixture
def model(verl_model: Path) -> Any:
    """The actor's model, in plain transformers and float64."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(verl_model).double()


def log_probs(model: Any, rows: Sequence[Row], temperature: float = TEMPERATURE) -> Tensors:
    """log pi of each row's response tokens, one row at a time, without padding."""
    found = []
    for row in rows:
        logits = model(torch.tensor([[*row.prompt, *row.response]])).logits[0, len(row.prompt) - 1 : -1] / temperature
        found.append(logits.log_softmax(-1).gather(-1, torch.tensor(row.response)[:, None])[:, 0])
    return found


def old_of(now: Tensors, rows: Sequence[Row]) -> Tensors:
    return [logp.detach() - torch.tensor(row.moved) for logp, row in zip(now, rows, strict=True)]


def weights_of(rows: Sequence[Row], times: int) -> Tensors:
    """min(pi_old / pi_rollout, 2) per token, applied so many times."""
    return [torch.tensor(row.gap, dtype=torch.float64).exp().clamp(max=2.0) ** times for row in rows]


def hand_ppo_clip(now: Tensors, old: Tensors, rows: Sequence[Row], weights: Tensors) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for logp, before, row, weight in zip(now, old, rows, weights, strict=True):
        for t in range(len(row.response)):
            ratio = (logp[t] - before[t]).exp()
            gain = torch.minimum(ratio * row.advantage, ratio.clamp(0.8, 1.2) * row.advantage)
            if row.advantage < 0:
                gain = gain.clamp(min=3.0 * row.advantage)
            total = total - weight[t] * gain
    return total / sum(len(row.response) for row in rows)


def hand_gspo(now: Tensors, old: Tensors, rows: Sequence[Row], weights: Tensors) -> torch.Tensor:
    """The paper's form, a ratio a row; a weight a token needs the form with a ratio a token, the same in value."""
    total = torch.zeros((), dtype=torch.float64)
    for logp, before, row, weight in zip(now, old, rows, weights, strict=True):
        ratio = (logp - before).mean().exp()
        if (weight != 1).any():
            ratio = ratio.detach() * (logp - logp.detach()).exp()
        gain = torch.minimum(ratio * row.advantage, ratio.clamp(1 - 0.0003, 1 + 0.0004) * row.advantage)
        total = total - (weight * gain).mean()
    return total / len(rows)


def hand_reinforce(now: Tensors, old: Tensors, rows: Sequence[Row], weights: Tensors) -> torch.Tensor:
    terms = [row.advantage * (weight * logp).sum() for logp, row, weight in zip(now, rows, weights, strict=True)]
    return -torch.stack(terms).mean()


def hand_imitation(now: Tensors, old: Tensors, rows: Sequence[Row], weights: Tensors) -> torch.Tensor:
    terms = [row.advantage * (weight * logp).sum() for logp, row, weight in zip(now, rows, weights, strict=True)]
    return -torch.stack(terms).sum() / sum(len(row.response) for row in rows)


HANDS: dict[str, tuple[Hand, int]] = {
    **{"ppo-clip": (hand_ppo_clip, 0), "ppo-clip-tis": (hand_ppo_clip, 1), "gspo": (hand_gspo, 0)},
    **{"gspo-tis": (hand_gspo, 1), "reinforce": (hand_reinforce, 0), "imitation": (hand_imitation, 0)},
}


def gradient(model: Any, hand: Hand, weights: Tensors, rows: Sequence[Row] = ROWS) -> tuple[dict[str, Any], float]:
    """The gradient by name and the loss."""
    model.zero_grad()
    now = log_probs(model, rows)
    loss = hand(now, old_of(now, rows), rows, weights)
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}, loss.item()


def sampled(model: Any) -> Tensors:
    with torch.no_grad():
        return log_probs(model, ROWS)


def close(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> bool:
    """Whether every weight's gradient is the same, up to float32."""
    assert found.keys() == expected.keys()
    size = max(value.abs().max() for value in expected.values())
    assert size > 1e-3  # there is a gradient to compare
    return all(torch.allclose(found[name], expected[name], rtol=0, atol=float(tolerance * size)) for name in found)


@pytest.mark.parametrize("loss", HANDS)
def test_verls_update_follows_the_gradient_of_the_equation(loss: str, learner: Any, model: Any) -> None:
    hand, times = HANDS[loss]
    found, metrics = learner(loss).update(ROWS, sampled(model))
    expected, value = gradient(model, hand, weights_of(ROWS, times))
    assert close(found, expected)
    assert metrics["pg_loss"] == pytest.approx(value, rel=1e-5)
    norm = math.sqrt(sum(float(part.square().sum()) for part in expected.values()))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    # the weight is in it as often as it should be, and cut off at 2
    assert not any(close(found, gradient(model, hand, weights_of(ROWS, n))[0], 1e-3) for n in {0, 1, 2} - {times})
    if times:
        uncut = [torch.tensor(row.gap, dtype=torch.float64).exp() for row in ROWS]
        assert not close(found, gradient(model, hand, uncut)[0], 1e-3)
        assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(2.0)
        beyond = sum(gap > math.log(2) for row in ROWS for gap in row.gap)
        assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(beyond / TOKENS)
    else:
        assert not any(name.startswith("rollout_corr") for name in metrics)


def test_three_steps_without_a_finite_gradient_are_an_error(learner: Any, model: Any) -> None:
    rows = [replace(ROWS[0], advantage=math.nan), *ROWS[1:]]
    assert math.isnan(learner("gspo").update(rows, sampled(model), updates=2)[1]["grad_norm"])  # verl skips the first
    actor = learner("gspo")
    for step_rows in (rows, ROWS, rows, rows):  # a finite one begins the count again
        actor.update(step_rows, sampled(model))
    with pytest.raises(MarlError, match=r"policy 'one': the gradient of loss 'gspo' was not finite \(nan\) in any"):
        actor.update(rows, sampled(model))


@pytest.mark.parametrize(("loss", "free", "clipped"), [("ppo-clip", 19, 3), ("gspo", 15, 7)])
def test_the_rows_clip_some_tokens_and_not_others(loss: str, free: int, clipped: int, model: Any) -> None:
    """Or the comparison above would say nothing about the clip. Tokens with advantage 0 are neither."""
    now = [logp.detach().requires_grad_() for logp in log_probs(model, ROWS)]
    HANDS[loss][0](now, old_of(now, ROWS), ROWS, weights_of(ROWS, 0)).backward()
    counts = [
        (int((logp.grad != 0).sum()), int((logp.grad == 0).sum()))
        for logp, row in zip(now, ROWS, strict=True)
        if row.advantage and logp.grad is not None
    ]
    assert (sum(one for one, _ in counts), sum(other for _, other in counts)) == (free, clipped)


@pytest.mark.parametrize(
    "overrides",
    [
        ("actor_rollout_ref.actor.clip_ratio_low=0.001", "actor_rollout_ref.actor.clip_ratio_high=0.001"),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=false",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        ),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=false",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        ),
    ],
    ids=["clip", "a micro-batch a row", "a last micro-batch of fewer rows"],
)
def test_reinforce_ignores_clip_and_micro_batches(overrides: tuple[str, ...], verl_model: Path, model: Any) -> None:
    actor = Actor(verl_model, "reinforce", *overrides)
    found, _ = actor.update(ROWS, sampled(model))
    assert close(found, gradient(model, hand_reinforce, weights_of(ROWS, 0))[0])
    assert actor.calls == ["compute_log_prob", "update_actor"]


def test_padding_rows_change_nothing(verl_model: Path, model: Any) -> None:
    """Seven rows in two updates: rows 0 to 3, then 4, 5, 6 and a row of padding."""
    actor = Actor(verl_model, "gspo-tis")
    found, metrics = actor.update(ROWS, sampled(model), updates=2)
    padding = [key for key in actor.store.rows if key.startswith("pad")]
    assert [actor.store.rows[key]["rollout_is_weights"].tolist() for key in padding] == [[0.0]]
    first = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    old = old_of(log_probs(model, ROWS), ROWS)
    for chosen in ((0, 1, 2, 3), (4, 5, 6)):
        rows = [ROWS[i] for i in chosen]
        model.zero_grad()
        loss = hand_gspo(log_probs(model, rows), [old[i] for i in chosen], rows, weights_of(rows, 1))
        # verl divides by the rows of a whole batch that an update has on average
        (loss * len(rows) / 3.5).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= weight.grad
    assert close(found, {name: first[name] - weight.detach() for name, weight in model.named_parameters()})
    means = [float(weight.mean()) for weight in weights_of(ROWS, 1)]
    assert metrics["rollout_corr/rollout_is_seq_mean"] == pytest.approx(sum(means) / len(ROWS), rel=1e-5)


def sequence_weights(rows: Sequence[Row]) -> Tensors:
    """One weight a row, the product of its tokens' ratios, at most 3."""
    return [torch.full((len(row.gap),), min(math.exp(sum(row.gap)), 3.0), dtype=torch.float64) for row in rows]


def normalised_weights(rows: Sequence[Row]) -> Tensors:
    """Token weights whose mean over all tokens is 1."""
    mean = torch.cat(weights_of(rows, 1)).mean()
    return [weight / mean for weight in weights_of(rows, 1)]


def accepted(rows: Sequence[Row]) -> Tensors:
    """1 for a token with gap^2 / 2 <= 0.1, and 0."""
    return [(torch.tensor(row.gap, dtype=torch.float64) ** 2 / 2 <= 0.1).double() for row in rows]


@pytest.mark.parametrize(
    ("loss", "settings", "weights"),
    [
        ("ppo-clip", ("rollout_is=sequence", "rollout_is_threshold=3.0"), sequence_weights),
        ("ppo-clip-tis", ("rollout_is_batch_normalize=true",), normalised_weights),
        ("reinforce", ("rollout_rs=token_k2", "rollout_rs_threshold=0.1"), accepted),
    ],
    ids=["sequence", "normalised", "rejection"],
)
def test_verls_other_corrections_work_with_any_loss(
    loss: str, settings: tuple[str, ...], weights: Callable[[Sequence[Row]], Tensors], learner: Any, model: Any
) -> None:
    actor = learner(loss, *(f"algorithm.rollout_correction.{setting}" for setting in settings))
    found, metrics = actor.update(ROWS, sampled(model))
    hand, times = HANDS[loss]
    assert close(found, gradient(model, hand, weights(ROWS))[0])
    assert not close(found, gradient(model, hand, weights_of(ROWS, times))[0], 1e-3)
    assert "rollout_corr/kl" in metrics
    if "rollout_rs" in settings[0]:
        assert "rollout_is_weights" not in actor.store.rows["u_0_0"]
        left_out = sum(float((part == 0).sum()) for part in weights(ROWS))
        assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(left_out / TOKENS)


@pytest.mark.parametrize("loss", ["ppo-clip", "reinforce"])
def test_entropy_is_in_nats_a_token_whatever_the_loss_sums(loss: str, learner: Any, model: Any) -> None:
    _, metrics = learner(loss).update(ROWS, sampled(model))
    total = 0.0
    for row in ROWS:
        logits = model(torch.tensor([[*row.prompt, *row.response]])).logits[0, len(row.prompt) - 1 : -1] / TEMPERATURE
        total += torch.distributions.Categorical(logits=logits).entropy().sum().item()
    assert metrics["entropy"] == pytest.approx(total / TOKENS, rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("actor_rollout_ref.actor.entropy_coeff=0", {"entropy"}),
        ("actor_rollout_ref.actor.entropy_coeff=0.01", {"entropy", "entropy_loss"}),
        ("algorithm.rollout_correction.bypass_mode=true", set()),
    ],
)
def test_entropy_is_computed_where_asked_for(setting: str, names: set[str], verl_model: Path, model: Any) -> None:
    """With gradient it takes more memory than everything else of the logits."""
    _, metrics = Actor(verl_model, "ppo-clip", setting).update(ROWS, sampled(model))
    assert {name for name in metrics if name.startswith("entropy")} == names


@pytest.fixture(scope="module")
def teacher(verl_model: Path) -> Any:
    """A model near the actor's."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(verl_model)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * weight.std() * torch.randn(weight.shape, generator=draws)
    return model


def taught_by(learner: Any, teacher: Any, loss: str, form: str, *more: str) -> Actor:
    """The actor with a loss, and a teacher that this process reads."""
    settings = ",".join([f"policy: big, form: {form}, topk: 12, weight: 0.5", *more])
    big = f"+marl.policies.big={{frozen: true, model: {{path: {teacher.name_or_path}}}}}"
    actor: Actor = learner(loss, big, f"+marl.policies.one.teacher={{{settings}}}")
    actor.policy.teaching.runtime = SimpleNamespace(name="big", policy=SimpleNamespace(endpoint=None), model=teacher)
    return actor


def hand_teacher(form: str, teacher: Any, model: Any, now: Tensors, old: Tensors, weights: Tensors) -> torch.Tensor:
    """The mean of the tokens' losses (plugins/teacher/README.md)."""
    losses = []
    for row, logp, before, weight in zip(ROWS, now, old, weights, strict=True):
        tokens, first = torch.tensor([[*row.prompt, *row.response]]), len(row.prompt) - 1
        with torch.no_grad():
            taught = teacher(tokens).logits[0, first:-1].double().log_softmax(-1)
        gap = taught.gather(-1, torch.tensor(row.response)[:, None])[:, 0] - logp
        if form == "reverse-kl":
            gain, ratio = gap.detach(), (logp - before).exp()
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            losses.append(-weight * torch.where(gain < 0, clipped.maximum(3 * gain), clipped))
        elif form == "forward-topk":
            best, ids = taught.topk(12)
            student = (model(tokens).logits[0, first:-1] / TEMPERATURE).log_softmax(-1).gather(-1, ids)
            losses.append((best.exp() * (best - student)).sum(-1).clamp(min=0))
        else:
            losses.append({"k2": 0.5 * gap**2, "k3": gap.exp() - gap - 1}[form])
    return torch.cat(losses).mean()


@pytest.mark.parametrize("reward", [True, False])
@pytest.mark.parametrize("form", ["reverse-kl", "k2", "k3", "forward-topk"])
def test_a_teachers_loss_is_its_equation(form: str, reward: bool, learner: Any, model: Any, teacher: Any) -> None:
    actor = taught_by(learner, teacher, "ppo-clip-tis", form, f"reward: {str(reward).lower()}")
    found, metrics = actor.update(ROWS, sampled(model))

    def hand(now: Tensors, old: Tensors, rows: Sequence[Row], weights: Tensors) -> torch.Tensor:
        taught = hand_teacher(form, teacher, model, now, old, weights)
        return hand_ppo_clip(now, old, rows, weights) + 0.5 * taught if reward else taught

    expected, _ = gradient(model, hand, weights_of(ROWS, 1))
    assert close(found, expected, 1e-4)
    now = sampled(model)
    with torch.no_grad():
        value = hand_teacher(form, teacher, model, now, old_of(now, ROWS), weights_of(ROWS, 1))
    assert metrics["distillation/loss"] == pytest.approx(float(value), rel=1e-4)
    if form != "forward-topk":
        moved = torch.cat([torch.tensor(row.moved) + torch.tensor(row.gap) for row in ROWS])  # since it was sampled
        with torch.no_grad():
            theirs = torch.cat(log_probs(teacher, ROWS, 1.0))
        assert metrics["reverse_kl"] == pytest.approx(float((torch.cat(now) - moved - theirs).mean()), rel=1e-4)


@pytest.mark.parametrize("form", ["reverse-kl", "forward-topk"])
def test_a_teacher_does_not_change_padding_rows(form: str, learner: Any, model: Any, teacher: Any) -> None:
    """Seven rows in four updates, of two rows or one and padding, which may be a micro-batch of its own."""
    actor = taught_by(learner, teacher, "ppo-clip", form)
    _, metrics = actor.update(ROWS, sampled(model), updates=4)
    assert all(math.isfinite(value) for value in metrics.values())
    assert any(key.startswith("padding") for key in actor.store.rows)
