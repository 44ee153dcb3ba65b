"""Run calls in threads."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def at_once(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Run calls concurrently and return their results. Waits for all, then raises the first error in order."""
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as threads:
        futures = {name: threads.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


def in_thread(name: str, call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread, which does not delay process exit. Returns a future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `Future.result`
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
