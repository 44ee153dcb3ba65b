"""An adapter that verl merges for the servers: they receive base + (alpha / r) B A, and training goes on unchanged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.verl_actor import Actor, Row, cpu_verl, make_model

pytestmark = pytest.mark.slow
RANK, ALPHA = 2, 8
LAYER = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Actor]:
    make_model(tmp_path / "model")
    model = "actor_rollout_ref.model."
    settings = (
        f"{model}lora_rank={RANK}",
        f"{model}lora_alpha={ALPHA}",
        f"{model}lora.merge=true",
        "actor_rollout_ref.actor.optim.lr=1",
    )
    with cpu_verl():
        yield Actor(tmp_path / "model", "ppo-clip", *settings)


def _find(weights: dict[str, torch.Tensor], *parts: str) -> torch.Tensor:
    (found,) = (weight for name, weight in weights.items() if all(part in name for part in parts))
    return found


def test_the_servers_receive_base_and_adapter_merged(actor: Actor) -> None:
    rows = [Row([5, 6, 7], [8, 9], advantage, [0.0, 0.0], [0.0, 0.0]) for advantage in (1.0, -0.5)]
    for _ in range(6):  # A begins to learn when B is not zero any more
        actor.update(rows, [torch.full((2,), -3.0) for _ in rows])
    before = actor.weights()
    sent = dict(actor.worker.actor.engine.get_per_tensor_param(base_sync_done=True)[0])
    place = "layers.0.mlp.down_proj."
    base = _find(before, place, "base_layer")
    update = ALPHA / RANK * _find(before, place, "lora_B") @ _find(before, place, "lora_A")
    assert update.abs().max() > 0.005  # more than the tolerance below
    assert not any("lora" in name or "base_layer" in name for name in sent)
    torch.testing.assert_close(sent[LAYER].double(), base + update, rtol=0.01, atol=2e-3)  # sent in bfloat16
    after = actor.weights()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
