"""Tells operators of this node's certificates before they end.

Invariant: it only tells. A certificate that ended while the node runs is refused by others at the next
connection, and by this node itself at its next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Clock

#: Long enough for whoever has to sign a new one.
WARNED_BEFORE_S: Final = 30 * 86_400
_CODE: Final = "CERTIFICATE_EXPIRES"


class Ending(Protocol):
    """A file with a certificate, and when that ends."""

    @property
    def file(self) -> str: ...

    @property
    def ends_us(self) -> int: ...

    @property
    def ends(self) -> str: ...


def watch_certificates(
    conditions: Conditions, clock: Clock, certificates: Sequence[Ending]
) -> Callable[[], None]:
    """What `Conditions.watch` takes."""

    def look() -> None:
        now_us = clock.wall_us()
        for one in certificates:
            left_s = (one.ends_us - now_us) / 1_000_000
            said = f"{'expired' if left_s <= 0 else 'expires'} on {one.ends}"
            conditions.follow(left_s <= WARNED_BEFORE_S, _CODE, one.file, said)

    return look
