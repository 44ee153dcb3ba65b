"""Uses verl internals: what a worker group knows of its dispatch."""

from typing import Any


def ranks(workers: Any, mesh: str) -> int:
    """Number of data-parallel ranks of a worker group."""
    if mesh not in workers._dispatch_info:
        workers._dispatch_info[mesh] = workers._query_dispatch_info(mesh)
    return int(max(workers._dispatch_info[mesh])) + 1
