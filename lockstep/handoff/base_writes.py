"""Tells the replicas of tables with views that a write has settled: each of them has it, or is owed it.

Invariant: a replica is told only when every replica of the write's plan accepted it, or when what the others
are owed is durable here, as a hint or as a mark. Who is not told brings the write to the others itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from lockstep.coordination.hinting import Settled
from lockstep.handoff.hints import Hints
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.responding import Respond
from lockstep.quorum.round import Target
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError
from lockstep.values.limits import BASE_SETTLED_MAX, BASE_SETTLED_MS


class BaseSettled(msgspec.Struct, frozen=True, array_like=True):
    """Ids of mutations."""

    ids: tuple[bytes, ...]


class Settling(Protocol):
    """A write, as far as it is needed here."""

    def reached(self) -> bool: ...

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]: ...


class BaseWrites:
    """`settled(ids)` is told of writes that this node has as a replica."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        hints: Hints,
        own_address: Address,
        settled: Callable[[Sequence[bytes]], None],
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._hints = hints
        self._own_address = own_address
        self._settled_here = settled
        self._gathered: dict[Address, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        internode.register_fast(verbs.BASE_SETTLED, BaseSettled, BaseSettled, self._receive)

    def watch(self, write: Settling) -> Settled:
        """What a write is to call when nothing more is heard of it."""
        return partial(self._settled, write)

    def _settled(self, write: Settling, _whole: bool, sequence: int) -> None:
        if not write.reached():
            self._runtime.probes.reach("base_writes.not_reached")
        elif sequence:
            self._runtime.tasks.spawn(self._tell_later(write, sequence), "base-writes.hinted")
        else:
            self._tell(write)

    async def _tell_later(self, write: Settling, sequence: int) -> None:
        try:
            await self._hints.store.synced(sequence)
        except LockstepError:
            self._runtime.probes.reach("base_writes.not_kept")  # the store died, and says so itself
        else:
            self._tell(write)

    def _tell(self, write: Settling) -> None:
        mutation_id, targets = write.settled_for()
        for target in targets:
            ids = self._gathered.setdefault(target.address, [])
            ids.append(mutation_id)
            if len(ids) >= BASE_SETTLED_MAX:
                self._send(target.address)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(BASE_SETTLED_MS / 1000, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        for address in list(self._gathered):
            self._send(address)

    def _send(self, address: Address) -> None:
        ids = self._gathered.pop(address)
        if address == self._own_address:
            self._settled_here(ids)
        else:
            self._internode.send(address, verbs.BASE_SETTLED, BaseSettled(tuple(ids)))
        self._runtime.probes.reach("base_writes.told")

    def _receive(self, _peer: PeerInfo, told: BaseSettled, _respond: Respond) -> None:
        self._settled_here(told.ids)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
