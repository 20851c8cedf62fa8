"""Changing no metadata here while many nodes have vanished at once.

Whether they have is decided by gossip.vanishing, at every node for itself, so that a new leader knows, too.

Invariant: what was found is durable before a start could forget it, and belongs to one cluster id: after a
repair of the groups the nodes of the repaired cluster are all that is counted on. Nothing of it goes into the
log: a part that is cut off keeps the very history that it had. Reads, writes and what is renewed without the
log go on.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from lockstep.gossip.vanishing import NOTHING_WATCHED, VanishPolicy, Watched, accepted, look
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.node.context import NodeContext
from lockstep.node.log.journal import Journal
from lockstep.node.log_service import NodeLog
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import Rejected

VALIDATOR_PATH: Final = "vanished"
#: Between two looks at who is alive: convicting a node takes seconds.
LOOK_S: Final = 0.25
#: What operators say about the service and about lost groups goes on.
_ALLOWED: Final = frozenset((EntryKind.SET_SERVICE, EntryKind.RESET_MANAGEMENT))
_WISH = decoder(SetService)


class Missing(msgspec.Struct, frozen=True, array_like=True):
    """`nodes` vanished at once from the cluster of this id; none: they are back, or were given up."""

    cluster_id: str
    nodes: tuple[int, ...]


_MISSING = decoder(Missing)


class TopologyValidator:
    def __init__(self, context: NodeContext, log: NodeLog) -> None:
        settings = context.configuration.metadata
        self._context = context
        self._runtime = context.runtime
        self._state = log.state
        self._policy = VanishPolicy(settings.vanish_percent, settings.vanish_window_ms)
        self._file = Journal(context.runtime.disk, VALIDATOR_PATH)
        self._watched: Watched = NOTHING_WATCHED
        self._stored: tuple[int, ...] = ()
        if self._policy.percent:
            log.member.refuses = self.refusal
            log.state.listen(self._applied)
            context.conditions.watch(self._show)

    @property
    def missing(self) -> tuple[int, ...]:
        """For whom no metadata is changed here; empty: it is."""
        return self._watched.missing

    def load(self) -> None:
        """What an earlier life found, if it was in this cluster."""
        records = self._file.load_as(_MISSING) if self._policy.percent else []
        if records and records[-1].cluster_id == self._context.identity.value.cluster_id:
            self._stored = records[-1].nodes
            self._watched = Watched(frozenset(self._stored), {}, self._stored)

    def start(self) -> None:
        if self._policy.percent:
            self._runtime.tasks.spawn(self._loop(), "membership.validate")

    def refusal(self, kind: int) -> Rejected | None:
        """Of entries that change the metadata meanwhile."""
        if not self._watched.missing or kind in _ALLOWED:
            return None
        return Rejected(
            f"the metadata is read-only: {self._reason()}",
            hint="it ends when they are back; `lockstep cms thaw` accepts that they are gone, where no other "
            "part of the cluster goes on",
        )

    def _reason(self) -> str:
        listed = ", ".join(str(node) for node in self._watched.missing)
        return f"nodes {listed} vanished at once, and may go on apart from this one"

    def _show(self) -> None:
        missing = bool(self._watched.missing)
        self._context.conditions.follow(
            missing, "METADATA_READ_ONLY", detail=self._reason() if missing else ""
        )

    async def _loop(self) -> None:
        while True:
            self._look()
            if self._watched.missing != self._stored:
                self._stored = self._watched.missing
                self._show()
                cluster_id = self._context.identity.value.cluster_id
                await self._file.append(encode(Missing(cluster_id, self._stored)))
                self._runtime.probes.reach("validator.stored")
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        cluster, own = self._state.current, self._context.own_id()
        present = frozenset(int(node) for node in cluster.directory.present_ids if node != own)
        alive = frozenset(node for node in present if self._context.alive(node))
        now_ms = int(self._runtime.clock.monotonic_s() * 1000)
        self._watched = look(self._watched, alive, present, now_ms, self._policy)

    def _applied(self, _before: ClusterMetadata, _after: ClusterMetadata, entry: LogEntry) -> None:
        if entry.kind == EntryKind.SET_SERVICE and _WISH.decode(entry.body).wish is ServiceWish.THAW:
            self._watched = accepted(self._watched)
