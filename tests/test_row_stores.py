"""Stores of rows: all keep the same, and a policy learns the same from any of them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.local.policies import MemoryStore
from marl_verl.backend.protocol import Column, RowStore

pytest.importorskip("verl")
pytestmark = pytest.mark.slow
DTYPES = {"input_ids": torch.int64, "log_probs": torch.float32, "old": torch.float64}
NUMBERS = count()


class FileStore:
    """A store of another project: a file for each field of a row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        for name, column in fields.items():
            values = column.unbind() if isinstance(column, torch.Tensor) else column
            for key, value in zip(keys, values, strict=True):
                torch.save(value.clone(), self.folder / f"{key}.{name}")

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: jagged([torch.load(self.folder / f"{key}.{name}") for key in keys]) for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            for file in self.folder.glob(f"{glob.escape(key)}.*"):
                file.unlink()


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


@pytest.mark.parametrize("kind", ["memory", "files", "queue"])
@settings(max_examples=30)
@given(operations=operations)
def test_a_store_returns_what_was_put_last(
    kind: str, queue: RowStore, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    folder, run = tmp_path_factory.getbasetemp(), next(NUMBERS)
    stores: dict[str, Callable[[], Any]] = {"memory": MemoryStore, "files": lambda: FileStore(folder)}
    store: RowStore = queue if kind == "queue" else stores[kind]()
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


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_field_that_a_row_lacks_is_an_error(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryStore() if kind == "memory" else FileStore(tmp_path)
    store.put(["t_0_0"], {"input_ids": [torch.ones(2)]})
    store.remove(["t_0_0", "unknown"])
    with pytest.raises((KeyError, FileNotFoundError)):
        store.get(["t_0_0"], ["input_ids"])


def test_a_policy_learns_the_same_from_any_store(tmp_path: Path) -> None:
    """Shared prefixes, padding rows, old log-probs and importance weights through verl's worker, in two updates."""
    from transformers import AutoModelForCausalLM

    from tests.test_losses import log_probs
    from tests.verl_actor import UNMOVED, Actor, cpu_verl, make_model

    make_model(tmp_path / "model")
    with torch.no_grad():
        now = log_probs(AutoModelForCausalLM.from_pretrained(tmp_path / "model").double(), UNMOVED)
    with cpu_verl():
        changes, metrics = zip(
            *(
                Actor(
                    tmp_path / "model",
                    "ppo-clip-tis",
                    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=40",
                    store=store,
                ).update(UNMOVED, now, updates=2)
                for store in (MemoryStore(), FileStore(tmp_path))
            ),
            strict=True,
        )
    assert changes[0].keys() == changes[1].keys()
    assert all(torch.equal(change, changes[1][name]) for name, change in changes[0].items())
    assert any(change.any() for change in changes[0].values())
    exact = ("pg_loss", "entropy", "grad_norm", "tokens/computed", "rollout_corr/rollout_is_mean")
    assert [metrics[0][name] for name in exact] == [metrics[1][name] for name in exact]
