"""Objects of a run, such as its clients, in frameworks that copy or pickle what they get: a copy is the object."""

import os
import weakref
from typing import Any, TypeVar

T = TypeVar("T")

_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def uncopied(value: T) -> T:
    """The same object, whose deep copies and pickles in this process are the object itself."""
    value.__deepcopy__ = lambda memo: value  # type: ignore[attr-defined]
    value.__reduce_ex__ = lambda protocol: reduced(value)  # type: ignore[method-assign]
    return value


def reduced(value: Any) -> tuple[Any, ...]:
    """The pickle of a live object."""
    _objects[id(value)] = value
    return restored, (os.getpid(), id(value), type(value).__name__)


def restored(process: int, number: int, name: str) -> Any:
    """The live object of a pickle. RuntimeError in another process, or after its run."""
    value = _objects.get(number) if process == os.getpid() else None
    if value is None:
        raise RuntimeError(f"a pickled {name} of a run works in the process of the run only, while the run goes on")
    return value
