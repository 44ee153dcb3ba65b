"""Calls in threads of their own."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def at_once(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Make calls at the same time and wait for all of them; their results. Raises the first error, in their order."""
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as threads:
        futures = {name: threads.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


def in_thread(name: str, call: Callable[[], T]) -> Future[T]:
    """Make a call in a daemon thread, for which a process that ends does not wait; the future has result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future raises it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
