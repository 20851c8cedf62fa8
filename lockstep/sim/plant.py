"""A planted bug, and attributes of the product replaced for a time: by planted bugs, and by limits that a run
can reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Plant = Callable[[], contextlib.AbstractContextManager[None]]


class Planted(msgspec.Struct, frozen=True):
    """`scenario` is where it is looked for; `harm` says what it breaks."""

    name: str
    harm: str
    scenario: str
    plant: Plant


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """(owner, attribute, replacement) for the time of the context."""
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, replacement in changes:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(saved):
            setattr(owner, name, original)
