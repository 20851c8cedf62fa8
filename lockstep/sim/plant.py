"""What a planted bug is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

Plant = Callable[[], contextlib.AbstractContextManager[None]]


class Planted(msgspec.Struct, frozen=True):
    """`scenario` is where it is looked for; `harm` says what it breaks."""

    name: str
    harm: str
    scenario: str
    plant: Plant
