"""Rows that share what they begin with: the forest, the parts of a batch, and the gradient of separate rows."""

import random
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

pytest.importorskip("verl")
from marl_verl_local import one_rank  # noqa: F401 - before other imports of verl

# isort: split
from marl_verl_local.session import MemoryStore

from marl_verl.backend.learning import prefixes
from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.learning.forest import SPAN, Forest, arranged, bins
from tests.test_losses import HANDS, close, gradient, log_probs, weights_of
from tests.verl_actor import TALK, Actor, Row, put, tokens


@st.composite
def forests(draw: st.DrawFn) -> list[Row]:
    """Rows of trees: each begins anew, or continues, branches from or repeats another one; up to 12 siblings."""
    numbers = random.Random(draw(st.integers(0, 10**6)))
    some = partial(lambda least: [numbers.randrange(3) for _ in range(numbers.randint(least, 3))])
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 12))):
        before = numbers.choice([None, *rows])
        if before is not None and numbers.random() < 0.4:
            cut = numbers.randint(1, len(before.prompt))
            prompt, response = [*before.prompt][:cut], numbers.choice([before.response, some(1)])
        else:
            prompt, response = (some(1) if before is None else tokens(before) + some(0)), some(1)
        zeros = [0.0] * len(response)
        rows.append(Row(prompt, response, numbers.gauss(0, 1), zeros, [0.3 * numbers.gauss(0, 1) for _ in response]))
    numbers.shuffle(rows)
    return rows


def forest_of(rows: Sequence[Sequence[int]], branches: bool, most: int) -> Forest:
    """Trees with branches are without the rows' last tokens."""
    return Forest(jagged([torch.tensor([*row, 0] if branches else row) for row in rows]), branches, most)


@given(rows=forests(), branches=st.booleans(), most=st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_a_row_is_a_path_that_sees_itself(rows: list[Row], branches: bool, most: int) -> None:
    written = [tokens(row) for row in rows]
    lengths, forest = np.array([*map(len, written)]), forest_of(written, branches, most)
    layouts, trees, columns = forest.layout()
    starts = np.cumsum([0, *(lengths + branches)])
    for row, tree, start in zip(written, trees, starts, strict=False):
        (ids, depths, last), path = layouts[tree], columns[start:][: len(row)]
        assert ids[path].tolist() == row
        assert depths[path].tolist() == [*range(len(row))]
        for depth, place in enumerate(path):
            assert [k for k in range(place + 1) if last[k] >= place] == path[: depth + 1].tolist()
        assert branches or path.tolist() == [*range(len(row))]
    assert sorted(row for tree in forest.rows for row in tree) == [*range(len(rows))]
    for members, size in zip(forest.rows, forest.sizes, strict=True):
        longest = lengths[members].max()
        assert longest <= size <= max(longest, min(most, SPAN * longest))
    if branches and forest.sizes.size == 1:
        assert forest.sizes.sum() == len({tuple(row[:end]) for row in written for end in range(1, len(row) + 1)})


def test_a_large_tree_is_cut_where_its_rows_share_least() -> None:
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 7, 8], [1, 2, 7, 9], [1, 2, 7, 8, 8]]
    assert forest_of(rows, True, 9).rows == [[0, 1], [2, 4, 3]]
    assert forest_of(rows, True, 99).sizes.tolist() == [10]
    assert forest_of(rows, False, 99).rows == [[0], [1], [2, 4], [3]]
    assert [*bins(np.array([3, 9, 4, 2]), 8)] == [[1], [2, 0], [3]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("updates", [1, 2, 3])
@given(rows=forests())
@settings(max_examples=15, deadline=None)
def test_an_update_has_the_same_rows_however_they_share(rows: list[Row], updates: int, ranks: int) -> None:
    updates = min(updates, max(1, len(rows) // ranks))
    results = []
    for branches in (None, False, True):
        store = MemoryStore()
        batch, _ = arranged(store, put(store, rows), updates, ranks, branches, 99)
        share, left = divmod(len(batch), updates * ranks)
        assert not left
        contents: list[list[Any]] = [[] for _ in range(updates)]
        for place, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            row = store.rows[key]
            assert tag["seq_len"] == len(row["input_ids"])
            if not tag.get("is_padding"):
                contents[place // share % updates].append(row["input_ids"].tolist())
        results.append([sorted(update) for update in contents])
    assert results[0] == results[1] == results[2]
    assert sorted(row for update in results[0] for row in update) == sorted(map(tokens, rows))


GIVEN = ("algorithm.rollout_correction.bypass_mode=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=60")
"""The old log-probs are those of sampling: an update has no other forward pass."""


@pytest.fixture(scope="module")
def exact(verl_model: Path) -> Iterator[tuple[Actor, dict[str, torch.Tensor]]]:
    """An actor that computes in float64, normalisation included, and its weights."""
    from marl_verl_local.engine import LocalWorkers
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def normalised(self: Any, values: torch.Tensor) -> torch.Tensor:
        return self.weight * values * (values.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    actor = Actor(verl_model, "ppo-clip", *GIVEN, make=lambda config, role: LocalWorkers(config))
    actor.worker.actor.engine.module.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qwen3RMSNorm, "forward", normalised)
        yield actor, actor.weights()


def changes(
    actor: tuple[Actor, dict[str, torch.Tensor]], rows: Sequence[Row], updates: int, loss: str, *overrides: str
) -> dict[str, dict[str, torch.Tensor]]:
    """How the weights change by separate rows, paths and trees."""
    (actor, weights), results = actor, {}
    engine, read = actor.worker.actor.engine, dict.fromkeys(("separate", "paths", "trees"), 0)
    for how in ("separate", "paths", "trees"):
        actor.learn_with(loss, *GIVEN, *overrides, f"marl.run.share_prefixes={how != 'separate'}")
        actor.set_weights(weights)
        engine.masks = how == "trees"
        actor.worker.actor.engine.optimizer.zero_grad()
        hook = engine.module.get_input_embeddings().register_forward_hook(
            lambda _, inputs, __, how=how: read.update({how: read[how] + inputs[0].numel()})
        )
        results[how], metrics = actor.update(rows, [torch.full((len(row.response),), -1.5) for row in rows], updates)
        hook.remove()
        assert (metrics["tokens/computed"] == metrics["tokens/unmerged"]) == (how == "separate") or rows is not TALK
    assert read["trees"] < read["paths"] < read["separate"] or rows is not TALK
    return results


def assert_close(results: dict[str, dict[str, torch.Tensor]], tolerance: float) -> None:
    separate = results.pop("separate")
    size = max(float(value.abs().max()) for value in separate.values())
    for change in results.values():
        for name, value in separate.items():
            torch.testing.assert_close(change[name], value, rtol=0, atol=tolerance * max(size, 1e-3))


@given(rows=forests(), updates=st.integers(1, 2))
@settings(max_examples=12, deadline=None)
def test_any_forest_has_the_gradient_of_separate_rows(exact: Any, rows: list[Row], updates: int) -> None:
    assert_close(changes(exact, rows, min(updates, len(rows)), "ppo-clip"), 1e-10)


MODES = ("vanilla", "gpg", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "dro")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.parametrize(
    ("mode", "aggregation"), [(mode, AGGREGATIONS[place % 5]) for place, mode in enumerate((*MODES, *MODES[:1] * 4))]
)
def test_every_loss_and_aggregation_has_the_gradient_of_separate_rows(exact: Any, mode: str, aggregation: str) -> None:
    actor = ("loss_scale_factor=7.0", "entropy_coeff=0.1", "tau_pos=1.0", "tau_neg=1.05", "policy_loss.dro_beta=0.1")
    settings = (f"policy_loss.loss_mode={mode}", f"loss_agg_mode={aggregation}", *actor)
    assert_close(changes(exact, TALK, 2, "verl", *(f"actor_rollout_ref.actor.{value}" for value in settings)), 1e-10)


@pytest.mark.parametrize("loss", HANDS)
def test_the_gradient_of_trees_is_that_of_the_equation(loss: str, verl_model: Path) -> None:
    """Old log-probs and importance weights, too, through the worker that Ray starts."""
    from transformers import AutoModelForCausalLM

    hand, times = HANDS[loss]
    model = AutoModelForCausalLM.from_pretrained(verl_model).double()
    with torch.no_grad():
        now = log_probs(model, TALK)
    change, metrics = Actor(verl_model, loss, GIVEN[1]).update(TALK, now)
    assert metrics["tokens/computed"] < 0.6 * metrics["tokens/unmerged"]
    expected, _ = gradient(model, hand, weights_of(TALK, times), TALK)
    assert close(change, expected)


@pytest.mark.parametrize("parts", range(1, len(TALK) + 1))
def test_a_rank_has_as_many_micro_batches_as_another_one(parts: int, exact: Any, monkeypatch: Any) -> None:
    engine, store = exact[0].worker.actor.engine, MemoryStore()
    data = TensorDict(store.get(put(store, TALK).keys, ["input_ids"]), batch_size=len(TALK))
    monkeypatch.setattr(prefixes.distributed, "all_reduce", lambda count, *_: count.clamp_(min=parts))
    batches, rows = engine._micro_batches(data)
    assert len(batches) >= parts
    assert all(len(part) == len(micro) > 0 for part, micro in zip(rows, batches, strict=True))
    assert sorted(row for part in rows for row in part) == [*range(len(TALK))]


SHAPE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128}


WINDOWS = [("Mistral", 59), ("Mistral", 60), ("Gemma3Text", 59), ("Gemma3Text", 60)]  # rows may have 60 tokens


@pytest.mark.parametrize(("kind", "window"), [("Llama", None), ("Qwen2", None), *WINDOWS])
def test_other_models_get_trees_or_paths(kind: str, window: int | None, verl_model: Path, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SHAPE, **({"sliding_window": window} if window else {}))
    shutil.copytree(verl_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    results = {}
    for how, name in ((False, "separate"), (True, "shared")):
        actor = Actor(tmp_path / "model", "ppo-clip", *GIVEN, f"marl.run.share_prefixes={how}")
        results[name], _ = actor.update(TALK, [torch.full((len(row.response),), -3.0) for row in TALK], updates=2)
        assert actor.worker.masks() == (window != 59)
    assert_close(results, 1e-5)
