"""What is worked out of an immutable value once and kept with it.

Invariant: this is the one place that writes into the `__dict__` of a frozen value. What is kept follows from
the value alone, or says itself what else it was made from, so equal values never differ by it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, TypeVar

V = TypeVar("V")
R = TypeVar("R")


def memo(value: V, name: str, make: Callable[[V], R]) -> R:
    """`make(value)`, made at the first call and kept under `name`; the value's type has `dict=True`."""
    kept: dict[str, Any] = value.__dict__
    if name not in kept:
        kept[name] = make(value)
    found: R = kept[name]
    return found


def memo_from(value: Any, name: str, others: tuple[object, ...], key: object, make: Callable[[], R]) -> R:
    """`make()`, kept under `name` as long as the `others` that it is made from are the identical objects and
    the `key` is equal; the value's type has `dict=True`."""
    known: tuple[tuple[object, ...], object, R] | None = value.__dict__.get(name)
    if known is None or known[1] != key or not all(map(is_, known[0], others)):
        known = value.__dict__[name] = (others, key, make())
    return known[2]


def keep(value: Any, name: str, found: Any) -> None:
    """Keep what is known already, where a value is made from another one."""
    value.__dict__[name] = found


def kept(value: Any, name: str) -> Any:
    """What is kept under a name; None when nothing is."""
    return value.__dict__.get(name)
