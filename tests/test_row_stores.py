"""Stores of rows: both keep the same."""

from collections.abc import Iterator
from importlib import resources
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_local.session import MemoryStore
from omegaconf import OmegaConf

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.protocol import RowStore

pytest.importorskip("verl")
pytestmark = pytest.mark.slow
DTYPES = {"input_ids": torch.int64, "log_probs": torch.float32, "old": torch.float64}
NUMBERS = count()


@pytest.fixture(scope="module")
def queue() -> Iterator[RowStore]:
    """A real TransferQueue, whose controller and storage unit are threads of this process."""
    from transfer_queue import interface
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage.simple_storage import SimpleStorageUnit

    from marl_verl.backend.verl.rollouts import QueueStore

    config = OmegaConf.load(resources.files("transfer_queue") / "config.yaml")
    config._set_flag("allow_objects", True)
    kinds = ((TransferQueueController, ()), (SimpleStorageUnit, ({},)))
    parts = [kind.__ray_metadata__.modified_class(*arguments) for kind, arguments in kinds]  # in this process
    infos = [part.get_zmq_server_info() for part in parts]
    OmegaConf.update(config, "controller.zmq_info", infos[0])
    config.backend.SimpleStorage.zmq_info = {"TQ_STORAGE_0": infos[1]}
    before, interface._TQ_CLIENT = interface._TQ_CLIENT, None
    client = interface._maybe_create_tq_client(config)
    yield QueueStore()
    client.close()
    interface._TQ_CLIENT = before


Operation = tuple[str, list[int], list[str], bool, int]
"""put or remove; rows; fields; whether columns are nested tensors; the seed of lengths."""
operations: st.SearchStrategy[list[Operation]] = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "remove"]),
        st.lists(st.integers(0, 4), unique=True, min_size=1),
        st.lists(st.sampled_from(list(DTYPES)), unique=True, min_size=1),
        st.booleans(),
        st.integers(0, 99),
    ),
    max_size=6,
)


@pytest.mark.parametrize("kind", ["memory", "queue"])
@settings(max_examples=30)
@given(operations=operations)
def test_a_store_returns_what_was_put_last(kind: str, queue: RowStore, operations: list[Operation]) -> None:
    run = next(NUMBERS)
    store: RowStore = queue if kind == "queue" else MemoryStore()
    rows: dict[str, dict[str, torch.Tensor]] = {}
    for operation, numbers, names, nested, seed in operations:
        keys = [f"run{run}t0_{number}_0" for number in numbers]
        if operation == "remove":
            store.remove(keys)
            for key in keys:
                rows.pop(key, None)
            continue
        columns = {}
        for name in names:
            values = [torch.full((1 + (seed + number) % 3,), seed + number, dtype=DTYPES[name]) for number in numbers]
            columns[name] = jagged(values) if nested else values
            for key, value in zip(keys, values, strict=True):
                rows.setdefault(key, {})[name] = value
        store.put(keys, columns)
    for name, dtype in DTYPES.items():
        keys = [key for key in reversed(rows) if name in rows[key]]
        if keys:
            column = store.get(keys, [name])[name]
            assert (column.dtype, column.layout) == (dtype, torch.jagged)
            assert [value.tolist() for value in column.unbind()] == [rows[key][name].tolist() for key in keys]
    store.remove(list(rows))
