"""Tiny models are made in this process: another one would first import torch and transformers."""

import gc
from collections.abc import Iterator

import pytest
from marl_verl_tiny.model import TinyModel, ensure


@pytest.fixture(autouse=True, scope="module")
def _models_in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TinyModel, "make", staticmethod(lambda models, progress: [ensure(model) for model in models]))
        patch.setattr(gc, "unfreeze", lambda: None)  # what all tests have imported
        yield
