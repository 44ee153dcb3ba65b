"""Columns of rows in a real TransferQueue, whose controller and storage unit are threads of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("verl")
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta, interface
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit

from marl_verl.backend.learning import batches

KEYS = [f"s1t{task:05d}_{session}_0" for task in range(2) for session in range(3)]
LENGTHS = (3, 1, 4, 1, 5, 9)


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    config = OmegaConf.load(resources.files("transfer_queue") / "config.yaml")
    config._set_flag("allow_objects", True)
    kinds = ((TransferQueueController, ()), (SimpleStorageUnit, ({},)))
    parts = [kind.__ray_metadata__.modified_class(*arguments) for kind, arguments in kinds]  # in this process
    infos = [part.get_zmq_server_info() for part in parts]
    OmegaConf.update(config, "controller.zmq_info", infos[0])
    config.backend.SimpleStorage.zmq_info = {"TQ_STORAGE_0": infos[1]}
    before, interface._TQ_CLIENT = interface._TQ_CLIENT, None
    client = interface._maybe_create_tq_client(config)
    yield client
    client.close()
    interface._TQ_CLIENT = before


def test_advantages_are_written_and_tags_stay_without_being_sent_again(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [{"policy": "judge" if row == 4 else "one", "response_len": n} for row, n in enumerate(LENGTHS)]
    responses = batches.jagged([torch.arange(n) for n in LENGTHS])
    batch = KVBatchMeta(partition_id="train", keys=KEYS, tags=tags)
    batches.put(batch, KEYS, [dict(tag) for tag in tags], responses=responses)

    sent: list[Sequence[Any]] = []
    monkeypatch.setattr(type(queue), "async_set_custom_meta", recorded(type(queue).async_set_custom_meta, sent))
    result: Any = SimpleNamespace(of_tokens=lambda row, length: np.linspace(row, row + 1, length))
    batches.put_advantages(batch, result, {"one"})
    assert sent == [[]]  # `kv_batch_put` sends the tags of every row
    assert tq.kv_list("train")["train"] == dict(zip(KEYS, tags, strict=True))

    learnt = [row for row, tag in enumerate(tags) if tag["policy"] == "one"]
    found = tq.kv_batch_get(keys=[KEYS[row] for row in reversed(learnt)], partition_id="train")
    assert set(found.keys()) == {"responses", "advantages"}
    for row, response, advantages in zip(
        reversed(learnt), found["responses"].unbind(), found["advantages"].unbind(), strict=True
    ):
        assert response.tolist() == list(range(LENGTHS[row]))
        assert advantages.dtype == torch.float32
        assert advantages.tolist() == pytest.approx(np.linspace(row, row + 1, LENGTHS[row]).tolist())


def recorded(call: Any, sent: list[Sequence[Any]]) -> Any:
    """`async_set_custom_meta`, which adds the tags that it is given to a list."""

    async def with_record(self: Any, metadata: Any) -> None:
        sent.append(metadata.custom_meta)
        await call(self, metadata)

    return with_record
