"""Planted bugs of requests under way: what is refused and dropped under overload, what requests to one peer
share, and the timestamps that nodes give.
"""

from __future__ import annotations

import contextlib
from math import inf
from typing import Any

from lockstep.coordination.writes import Write
from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.frames import Envelope
from lockstep.internode.peer import SharedOut
from lockstep.internode.serving import Respond
from lockstep.node.stamps import Stamps
from lockstep.replica.replica import ReplicaService
from lockstep.server.cql.buffers import ReadBuffer
from lockstep.server.cql.loop_budget import Admission, LoopBudget
from lockstep.sim.plant import Planted, replaced
from lockstep.values.errors import LockstepError

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
        node, round_ = self.owner.context.own_id(), self.round
        if self.done or (node, self._number) in spared or len(round_.accepted) >= round_.plan.required:
            original(self)
            return
        self.deadline_s += 3.0
        self._number = self.owner.in_flight.add(self)
        spared[node, self._number] = None

    return replaced((Write, "expired", expired))


def _expired_served() -> _Context:
    """A replica works on what nobody waits for any more."""

    def waits_until_s(self: Any, envelope: Envelope) -> float:
        return inf

    return replaced((Connection, "waits_until_s", waits_until_s))


def _expired_after_waiting() -> _Context:
    """A replica that waited for the metadata works on what nobody waits for any more."""

    def require_waiting(self: Any, respond: object) -> None:
        return None

    return replaced((ReplicaService, "_require_waiting", require_waiting))


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


#: Refusals after which a node shuts itself, and for how long: longer than it may take to recover.
_REFUSALS = 20
_SHUT_S = 6.0


def _shut_after_load() -> _Context:
    """A node that has refused requests takes none for a while once all that it had begun is done."""
    tick, may_begin = LoopBudget._tick, LoopBudget.may_begin
    #: By node: refusals when it was shut last, and until when it is.
    shut: dict[LoopBudget, tuple[int, float]] = {}

    def looked(self: LoopBudget) -> None:
        tick(self)
        before, _ = shut.get(self, (0, 0.0))
        is_at_rest = not self._waiting and not self._held and not self._load.requests
        if is_at_rest and self.shed - before >= _REFUSALS:
            shut[self] = self.shed, self.now_s() + _SHUT_S

    def may(self: LoopBudget) -> bool:
        return self.now_s() >= shut.get(self, (0, 0.0))[1] and bool(may_begin.fget(self))  # type: ignore[attr-defined]

    return replaced((LoopBudget, "_tick", looked), (LoopBudget, "may_begin", property(may)))


OVERLOAD = (
    Planted("refused_applied", "refused writes have effects", "overload", _refused_applied),
    Planted("expired_goes_on", "writes succeed after their deadlines", "overload", _expired_goes_on),
    Planted("expired_served", "replicas work for nobody", "overload", _expired_served),
    Planted("refused_counts", "a node stays overloaded", "overload", _refused_counts),
    Planted("all_admitted", "requests time out instead of being refused", "overload", _all_admitted),
    Planted("shut_after_load", "a node stays shut after an overload", "overload", _shut_after_load),
)


def _first_for_all() -> contextlib.AbstractContextManager[None]:
    """A shared frame has the first request in place of each other."""
    original = SharedOut.post

    def post(self: Any) -> None:
        self._waiting = {
            verb: (streams, bodies[:1] * len(bodies)) for verb, (streams, bodies) in self._waiting.items()
        }
        original(self)

    return replaced((SharedOut, "post", post))


def _refusals_accepted() -> contextlib.AbstractContextManager[None]:
    """A write that is refused hears what the acknowledged of the last sync heard."""
    together, alone = Respond.all, Respond.__call__
    told: list[Any] = []

    def every(answers: Any, reply: Any) -> None:
        told[:] = [reply]
        together(answers, reply)

    def one(self: Any, reply: Any) -> None:
        is_refusal = self._verb == verbs.WRITE and isinstance(reply, LockstepError)
        alone(self, told[0] if told and is_refusal else reply)

    return replaced((Respond, "all", staticmethod(every)), (Respond, "__call__", one))


SHARING = (
    Planted("first_for_all", "an acknowledged write is at no replica", "volleys", _first_for_all),
    Planted("refusals_accepted", "a refused write counts as acknowledged", "volleys", _refusals_accepted),
)


def _follow_clock() -> contextlib.AbstractContextManager[None]:
    """Timestamps fall when the clock is set back."""
    original = Stamps.next_us

    def next_us(self: Any) -> int:
        self._last_us = min(self._last_us, self._wall_us())
        return original(self)

    return replaced((Stamps, "next_us", next_us))


def _forgotten() -> contextlib.AbstractContextManager[None]:
    """A node that starts goes by its clock alone."""
    return replaced((Stamps, "_stored_us", lambda self: 0))


def _reserved_unsynced() -> contextlib.AbstractContextManager[None]:
    """What is reserved counts before it is durable."""
    original = Stamps._save

    async def save(self: Any, bound_us: int) -> None:
        self._bound_us = max(self._bound_us, bound_us)
        await original(self, bound_us)

    return replaced((Stamps, "_save", save))


STAMPS = (
    Planted("stamps_follow_clock", "a later write loses after a step back", "stamps", _follow_clock),
    Planted("stamps_forgotten", "a later write loses after a restart", "stamps", _forgotten),
)
#: Brought about by a test: it takes a crash within milliseconds, and a step back before the start.
DIRECTED = (
    Planted("stamps_unsynced", "a crash takes reservations back", "stamps", _reserved_unsynced),
    Planted("expired_after_waiting", "replicas work for nobody", "overload", _expired_after_waiting),
)
