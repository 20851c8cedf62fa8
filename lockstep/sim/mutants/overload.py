"""Planted bugs of a node under overload: what it refuses, what it drops, and how it gets out of it."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.coordination.writes import Write
from lockstep.internode.connection import Connection
from lockstep.internode.frames import Envelope
from lockstep.server.cql.admission import Admission
from lockstep.server.cql.read_buffer import ReadBuffer
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced

#: One of so many requests that are refused at once.
_SOME = 8

_Context = contextlib.AbstractContextManager[None]


def _refused_applied() -> _Context:
    """Of what is refused as overloaded some is begun all the same."""
    original = ReadBuffer.shed

    def shed(self: Any, before_s: float, batches_before_s: float) -> int:
        refuse, refused = self._shed, []

        def note(envelope: Envelope) -> None:
            refuse(envelope)
            refused.append(envelope)

        self._shed = note
        count = original(self, before_s, batches_before_s)
        self._shed = refuse
        for envelope in refused[::_SOME]:
            self._begin(envelope)
        return count

    return replaced((ReadBuffer, "shed", shed))


def _expired_goes_on() -> _Context:
    """A write whose deadline passes is waited for once more as long."""
    original = Write.expired
    spared: dict[tuple[int, int], None] = {}

    def expired(self: Any) -> None:
        node, round_ = self.owner.own_id(), self.round
        if self.done or (node, self._number) in spared or len(round_.accepted) >= round_.plan.required:
            original(self)
            return
        self.deadline_s += 3.0
        self._number = self.owner.in_flight.add(self)
        spared[node, self._number] = None

    return replaced((Write, "expired", expired))


def _expired_served() -> _Context:
    """A replica works on what nobody waits for any more."""

    def is_expired(self: Any, envelope: Envelope) -> bool:
        return False

    return replaced((Connection, "is_expired", is_expired))


def _refused_counts() -> _Context:
    """What was refused counts as in flight for ever."""
    original = ReadBuffer.shed

    def shed(self: Any, before_s: float, batches_before_s: float) -> int:
        count = original(self, before_s, batches_before_s)
        self._turns._load.requests += count
        return count

    return replaced((ReadBuffer, "shed", shed))


def _all_admitted() -> _Context:
    """As many requests are worked on as come, and none is refused."""

    def judge(self: Any, now_s: float, ended: int) -> None:
        self.limit = 16_384

    return replaced((Admission, "_judge", judge))


OVERLOAD = (
    Planted("refused_applied", "refused writes have effects", "overload", _refused_applied),
    Planted("expired_goes_on", "writes succeed after their deadlines", "overload", _expired_goes_on),
    Planted("expired_served", "replicas work for nobody", "overload", _expired_served),
    Planted("refused_counts", "a node stays overloaded", "overload", _refused_counts),
    Planted("all_admitted", "requests time out instead of being refused", "overload", _all_admitted),
)
