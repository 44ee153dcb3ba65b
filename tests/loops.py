"""An event loop for one coroutine, at whose end nothing else may be running."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def completed(work: Coroutine[Any, Any, T], ticks: int = 0) -> T:
    """The result of a coroutine, and `ticks` iterations of the loop after it no task is left running."""

    async def run() -> T:
        async with asyncio.timeout(60):
            result = await work
        for _ in range(ticks):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        return result

    return asyncio.run(run())
