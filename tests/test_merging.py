"""Turns merged into one sequence: which rows, in which order, and the gradient of separate rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

pytest.importorskip("verl")
import itertools

from tensordict import TensorDict

from marl_verl.backend.learning.arrangement import arranged
from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.learning.merging import SEGMENTS, chains_of, loss_of_rows, rows_of, segments_of, sequences_of
from marl_verl.backend.learning.policy import correct
from marl_verl.backend.local.policies import MemoryStore
from marl_verl.backend.rollout.rows import UPDATE_FIELDS
from tests.test_losses import HANDS, TEMPERATURE, Row, close, gradient, log_probs, old_of, weights_of
from tests.verl_actor import RECIPE, SETTINGS, Actor, continued, cpu_verl, make_model, put, tokens

FIRST = Row([3, 9], [12, 7, 20, 8], 1.0, [0.5, -0.5, 0.1, -0.1], [1.0, -0.5, 0.3, 0.0])
SECOND = Row([*FIRST.prompt, *FIRST.response, 5, 5], [25, 13, 6], -0.7, [1.5, -0.4, 0.0], [0.2, 2.0, -1.0])
THIRD = Row([*SECOND.prompt, *SECOND.response, 4], [14, 15], 0.4, [0.01, 0.3], [0.1, 0.9])
TALK = (
    FIRST,
    SECOND,
    THIRD,
    Row(SECOND.prompt, [25, 13, 7, 9], 0.9, [0.0002, 0.0, -0.3, 0.1], [0.0, 0.4, -0.6, 1.5]),  # a sibling of SECOND
    Row([*SECOND.prompt, *SECOND.response, 11], [9], -1.2, [-0.05], [0.6]),  # a second branch below SECOND
    Row(FIRST.prompt, FIRST.response, -0.5, [0.2, 0.0, 0.1, 0.4], [0.0, 0.1, 0.2, 0.3]),  # the same tokens as FIRST
    Row([20, 14], [6, 26, 13], 0.8, [0.0, 0.1, -0.4], [0.5, -0.3, 0.0]),
)
"""Three turns of a conversation, rows that share its beginning, and one that does not."""
UNMOVED = [Row(row.prompt, row.response, row.advantage, [0.0] * len(row.moved), row.gap) for row in TALK]
"""The same with the actor where its update began."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merging") / "model"
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).double()


class Causal(torch.nn.Module):
    """A language model in a few operations: the next token depends on the last one and on the sum of all so far."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.last = torch.nn.Parameter(torch.randn(32, 32, generator=generator, dtype=torch.float64))
        self.all = torch.nn.Parameter(torch.randn(11, 32, generator=generator, dtype=torch.float64))

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.last[ids] + self.all[ids.cumsum(-1) % 11])


@pytest.fixture(scope="module")
def policy(folder: Path) -> Any:
    """The resolved config of the policy, in verl's layout."""
    from marl_verl.config.compose import compose
    from marl_verl.config.resolve import resolve
    from marl_verl.team import read_team

    recipe = folder.parent / "merging.yaml"
    recipe.write_text(RECIPE)
    config = compose(recipe, [*SETTINGS, f"marl.policies.one.model.path={folder}"], hardware="cpu")
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    return resolve(config, read_team(marl)).policies.one


@st.composite
def forests(draw: st.DrawFn) -> list[Row]:
    """Rows of trees of conversations: each begins anew, continues or branches from another row, or repeats one."""
    numbers = random.Random(draw(st.integers(0, 10**6)))
    some = partial(lambda least: [numbers.randrange(3) for _ in range(numbers.randint(least, 3))])
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 12))):
        before = numbers.choice([None, *rows])
        if before is not None and numbers.random() < 0.2:
            prompt, response = before.prompt, before.response
        else:
            prompt, response = (some(1) if before is None else tokens(before) + some(0)), some(1)
        rows.append(Row(prompt, response, numbers.gauss(0, 1), [], []))
    numbers.shuffle(rows)
    return rows


@given(rows=forests())
@settings(max_examples=100, deadline=None)
def test_chains_hold_every_row_once_and_each_row_continues_the_one_before(rows: list[Row]) -> None:
    keys, before = [str(number) for number in range(len(rows))], continued(rows)
    found = chains_of(keys, {keys[row]: keys[earlier] for row, earlier in before.items()})
    assert sorted(row for chain in found for row in chain) == list(range(len(rows)))
    for chain in found:
        for one, other in itertools.pairwise(chain):
            assert [*rows[other].prompt][: len(tokens(rows[one]))] == tokens(rows[one])
    extended = {row for chain in found for row in chain[:-1]}
    assert all(earlier in extended for earlier in before.values())  # by the first row that continues it


def test_a_row_of_another_update_is_skipped() -> None:
    continues = {"b": "a", "c": "b", "d": "c", "e": "b"}
    assert chains_of(["a", "b", "c", "e"], continues) == [[0, 1, 2], [3]]
    assert chains_of(["a", "c", "d"], continues) == [[0, 1, 2]]
    assert chains_of(["d", "e"], continues) == [[0], [1]]


def test_values_go_from_rows_to_sequences_and_back() -> None:
    talk = segments_of([2, 8], [4, 3])
    assert talk.tolist() == [1, 1, 1, 1, 0, 0, 2, 2, 2]
    segments = jagged([talk, torch.ones(2, dtype=torch.int64), segments_of([1, 3], [2, 1])])
    rows = jagged([torch.arange(1.0, length + 1) for length in (4, 3, 2, 2, 1)])
    there = sequences_of(rows, segments)
    assert there.unbind()[0].tolist() == [1, 2, 3, 4, 0, 0, 1, 2, 3]
    assert [row.tolist() for row in rows_of(there, segments).unbind()] == [row.tolist() for row in rows.unbind()]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("updates", [1, 2, 3])
@given(rows=forests())
@settings(max_examples=15, deadline=None)
def test_an_update_has_the_same_rows_merged_and_unmerged(rows: list[Row], updates: int, ranks: int) -> None:
    updates = min(updates, max(1, len(rows) // ranks))
    found = []
    for merges in (False, True):
        store = MemoryStore()
        batch = arranged(store, put(store, rows), updates, ranks, merges)
        share, left = divmod(len(batch), updates * ranks)
        assert not left
        contents: list[list[Any]] = [[] for _ in range(updates)]
        for place, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            row = store.rows[key]
            assert tag["seq_len"] == len(row["input_ids"]) == tag["prompt_len"] + tag["response_len"]
            if tag.get("is_padding"):
                continue
            segments = row.get(SEGMENTS, torch.ones(tag["response_len"]))
            assert row["loss_mask"].tolist() == (segments > 0).long().tolist()
            for number in range(1, int(segments.max()) + 1):
                places = torch.nonzero(segments == number)[:, 0] + tag["prompt_len"]
                ids = row["input_ids"].tolist()
                seen = round(float(row["advantages"][places[0] - tag["prompt_len"]]), 5)
                contents[place // share % updates].append((ids[: places[0]], ids[places[0] : places[-1] + 1], seen))
        found.append([sorted(each) for each in contents])
    assert found[0] == found[1]
    expected = sorted(([*row.prompt], [*row.response], round(float(np.float32(row.advantage)), 5)) for row in rows)
    assert sorted(row for update in found[0] for row in update) == expected


def loss_of(
    rows: Sequence[Row], merges: bool, policy: Any, model: Any, actor: dict[str, Any], correction: Any
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's loss of one update and the gradient of the model's weights, in float64, through `loss_of_rows`."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import response_from_nested

    model.zero_grad()
    with torch.no_grad():
        old = old_of(log_probs(model, rows), rows)
    store = MemoryStore()
    batch = put(store, rows)
    sampled = [values - torch.tensor(row.gap, dtype=torch.float64) for values, row in zip(old, rows, strict=True)]
    store.put(batch.keys, {"old_log_probs": old, "rollout_log_probs": sampled})
    batch = arranged(store, batch, 1, 1, merges)
    settings = OmegaConf.merge(policy.algorithm.rollout_correction, correction)
    more, _ = correct(store, batch, settings, merges)
    data = TensorDict(store.get(batch.keys, [*UPDATE_FIELDS, *more, *[SEGMENTS] * merges]), batch_size=len(batch))
    outputs: dict[str, list[torch.Tensor]] = {"log_probs": [], "entropy": []}
    for ids in data["input_ids"].unbind():
        all_of = (model(ids[None]).logits[0] / TEMPERATURE).log_softmax(-1)
        outputs["log_probs"].append(all_of.gather(-1, ids.roll(-1)[:, None])[:, 0])
        outputs["entropy"].append(-(all_of.exp() * all_of).sum(-1))
    output = {name: jagged(values) for name, values in outputs.items()}
    if actor.get("use_kl_loss"):  # a reference that depends on the token and on its place
        flat = torch.sin(data["input_ids"].values().double() + data["position_ids"].values()) - 2
        nested = torch.nested.nested_tensor_from_jagged(flat, data["input_ids"].offsets())
        data["ref_log_prob"] = response_from_nested(nested, data["response_mask"])
    tu.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=int(data["loss_mask"].sum()), global_batch_size=float(len(rows))
    )
    config = omega_conf_to_dataclass(OmegaConf.merge(policy.actor_rollout_ref.actor, actor))
    loss, _ = loss_of_rows(output, data, partial(ppo_loss, config=config))
    loss.backward()
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


MODES = ("vanilla", "gpg", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "geo_mean", "dro")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_AND_ENTROPY = {"use_kl_loss": True, "kl_loss_coef": 0.3, "entropy_coeff": 0.1}
WEIGHTS: dict[str, Any] = {"rollout_is": "token"}
CASES = [(mode, aggregation, KL_AND_ENTROPY, WEIGHTS) for mode in MODES for aggregation in AGGREGATIONS]
CASES += [
    ("vanilla", "token-mean", {}, {}),
    ("gspo", "seq-mean-token-mean", {}, {"rollout_is": "sequence", "rollout_is_threshold": 3.0}),
    ("vanilla", "seq-mean-token-sum", {}, {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.1}),
]


@pytest.mark.parametrize(("mode", "aggregation", "more", "correction"), CASES)
def test_every_loss_and_aggregation_has_the_gradient_of_unmerged_rows(
    mode: str, aggregation: str, more: dict[str, Any], correction: dict[str, Any], policy: Any
) -> None:
    model = Causal()
    actor = {"policy_loss": {"loss_mode": mode}, "loss_agg_mode": aggregation, "loss_scale_factor": 7.0, **more}
    actor |= {"tau_pos": 1.0, "tau_neg": 1.05} if mode == "sapo" else {}
    actor["policy_loss"] |= {"dro_beta": 0.1} if mode == "dro" else {}
    (loss, expected), (merged, found) = (
        loss_of(TALK, merges, policy, model, actor, correction) for merges in (False, True)
    )
    assert float(merged) == pytest.approx(float(loss), rel=1e-6)
    assert close(found, expected)


@pytest.mark.parametrize("loss", HANDS)
def test_the_gradient_of_merged_rows_is_that_of_the_equation(loss: str, policy: Any, model: Any) -> None:
    from marl_verl import plugins

    part = plugins.load().get("losses", loss)
    hand, times = HANDS[loss]
    value, found = loss_of(TALK, True, policy, model, dict(part.actor), dict(part.correction))
    expected, by_hand = gradient(model, hand, weights_of(TALK, times), TALK)
    assert close(found, expected)
    assert float(value) == pytest.approx(by_hand, rel=1e-5)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Path]:
    with cpu_verl():
        yield folder


@pytest.mark.slow
def test_verls_workers_update_from_merged_rows_as_from_rows(engine: Path, model: Any) -> None:
    """Old log-probs, importance weights and two optimiser updates through verl's worker, with its micro-batches."""
    with torch.no_grad():
        now = log_probs(model, TALK)
    found = {}
    for merges in (False, True):
        overrides = (f"marl.run.merge_turns={merges}", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=40")
        actor = Actor(engine, "ppo-clip-tis", *overrides)
        found[merges] = actor.update(UNMOVED, now, updates=2)
        # a step removes its rows and those that were trained
        assert {*actor.trained.keys, *(f"u_0_{number}" for number in range(len(TALK)))} == set(actor.store.rows)
    assert close(found[True][0], found[False][0])
    merged, plain = found[True][1], found[False][1]
    assert [plain[f"merge/rows_{when}"] for when in ("before", "after")] == [7, 7]
    assert [merged[f"merge/rows_{when}"] for when in ("before", "after")] == [7, 5]
    assert plain["tokens/sampled"] == merged["tokens/sampled"] == sum(len(row.response) for row in TALK)
    assert plain["tokens/trained"] == sum(len(tokens(row)) for row in TALK)
    assert merged["tokens/trained"] == plain["tokens/trained"] - len(tokens(FIRST)) - len(tokens(SECOND))
    for name in ("pg_loss", "grad_norm", "entropy", "rollout_corr/rollout_is_mean", "rollout_corr/kl"):
        assert merged[name] == pytest.approx(plain[name], rel=1e-4), name
