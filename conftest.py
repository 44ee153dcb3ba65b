"""Settings of all tests, also those of the plugins."""

import gc
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import settings

settings.register_profile("marl-verl", deadline=None)  # how long an example takes depends on the machine's load
settings.load_profile("marl-verl")
# config trees are full of cycles: with torch and vLLM imported, Python's default spends a fifth of the time on them
gc.set_threshold(50_000, 20, 50)
FREE = 64 << 30


@pytest.fixture(autouse=True, scope="session")
def _enough_memory() -> Iterator[None]:
    """Recipes are checked as on an idle machine: other programs may use the memory of this one."""
    measured = psutil.virtual_memory()._replace(available=FREE, total=2 * FREE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: measured)
        yield
