"""Whether replicas of tracked ranges hold the same content under the same ids, as their journals say.

Ids tell what a replica holds, never what lies under them: an entry that was damaged, or stored otherwise,
shows in no summary. One replica asks another for symbols of the entries that both have, and reads from them
which differ (`tracking.symbols`): where none does, a few symbols are all that is sent. Invariant: an id
counts as differing only while both have an entry of it; what is reconciled has none, and a full repair
compares it. Asking changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replica.tracked import TrackedReplica, group_of
from lockstep.storage.shard_logs import Shard
from lockstep.tracking.held import NOTHING, Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.symbols import Item, Symbol, SymbolDecoder, SymbolEncoder, item_of
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, NotReplica
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import (
    AUDIT_DIFFERING_MAX,
    AUDIT_ENTRIES_BYTES,
    AUDIT_IDS_A_MESSAGE,
    AUDIT_IDS_MAX,
    AUDIT_TIMEOUT_MS,
)

#: Symbols of a first answer, which tell that nothing differs, or of a few ids which;
_SYMBOLS_FIRST: Final = 16
#: and of a second one: more than any difference of the ids of one message needs.
_SYMBOLS_ALL: Final = 4 * AUDIT_IDS_A_MESSAGE


class Symbols(msgspec.Struct, frozen=True, array_like=True):
    """Ask for so many symbols of those of `wanted` that the receiver has entries of."""

    epoch: int
    shard: Shard
    wanted: Held
    count: int


class Summed(msgspec.Struct, frozen=True, array_like=True):
    """`ids`: whose entries the symbols are of, the first ones that were wanted up to a size."""

    epoch: int
    ids: Held
    symbols: tuple[Symbol, ...]


class Differing(msgspec.Struct, frozen=True):
    """An id under which the asked node and `node` have other content."""

    shard: Shard
    node: int
    id: MutationId


class Audited(msgspec.Struct, frozen=True):
    """`compared`: entries, once for each other replica. `silent`: node -> why it was not compared with.
    `ended`: all entries were compared; else there were too many, or too many differ."""

    ranges: int
    compared: int
    differing: tuple[Differing, ...]
    silent: dict[int, str]
    ended: bool


class JournalAudit:
    def __init__(
        self,
        internode: Internode,
        tracked: TrackedReplica,
        metadata: Callable[[], ClusterMetadata],
        own_id: Callable[[], int],
    ) -> None:
        self._internode = internode
        self._journal = tracked.journal
        self._metadata = metadata
        self._own_id = own_id
        internode.register(verbs.TRACKED_AUDIT, Symbols, Summed, self._serve)

    async def _serve(self, _peer: PeerInfo, request: Symbols) -> Summed:
        cluster, own = self._metadata(), self._own_id()
        group = group_of(cluster, request.shard)
        if group is None or own not in group.writes:
            raise NotReplica(f"node {own} is no replica of the range up to {request.shard[1]}")
        items = self._items(request.shard, request.wanted)
        encoder = SymbolEncoder(items.values())
        count = min(request.count, _SYMBOLS_ALL)
        return Summed(cluster.epoch, _ids(items), tuple(encoder.next() for _ in range(count)))

    def _items(self, shard: Shard, wanted: Held) -> dict[MutationId, Item]:
        """Of entries with content: of a table that was gone when it came, an entry has none."""
        some = _first(wanted, AUDIT_IDS_A_MESSAGE)
        return {
            msgspec.structs.replace(one.id, given_us=0): item_of(
                one.id, encode((one.table_id, one.token, one.mutation))
            )
            for one in self._journal.entries(shard[0], some, AUDIT_ENTRIES_BYTES)
            if one.mutation is not None
        }

    async def run(self) -> Audited:
        """Compare every entry of this node's journal with each other replica's of the same id."""
        differing: list[Differing] = []
        silent: dict[int, str] = {}
        compared = ranges = 0
        for shard in sorted(self._journal.shards):
            group = group_of(self._metadata(), shard)
            ranges += group is not None
            for node in sorted(group.writes) if group is not None else ():
                if node == self._own_id() or node in silent:
                    continue
                left = self._journal.logs_of(shard).open
                while left:
                    if compared >= AUDIT_IDS_MAX or len(differing) >= AUDIT_DIFFERING_MAX:
                        return Audited(ranges, compared, tuple(differing), silent, ended=False)
                    some = _first(left, AUDIT_IDS_A_MESSAGE)
                    try:
                        ids, found = await self._compare(shard, node, some)
                    except LockstepError as error:
                        silent[node] = error.message
                        break
                    compared += ids.count
                    differing += [Differing(shard, node, one) for one in found]
                    # Of what the other has no entry it let go, or it lacks it: nothing is to be compared.
                    left = left.difference(ids or some)
        return Audited(ranges, compared, tuple(differing), silent, ended=True)

    async def _compare(self, shard: Shard, node: int, some: Held) -> tuple[Held, list[MutationId]]:
        """Those of `some` that both have entries of, or had, and which of them differ."""
        for count in (_SYMBOLS_FIRST, _SYMBOLS_ALL):
            asked = Symbols(self._metadata().epoch, shard, some, count)
            told: Summed = await self._internode.request(
                self._address(node), verbs.TRACKED_AUDIT, asked, AUDIT_TIMEOUT_MS
            )
            own = self._items(shard, told.ids)
            decoder = SymbolDecoder(own.values())
            for symbol in told.symbols:
                decoder.add(symbol)
                if decoder.done:
                    theirs, ours = ({_id(one) for one in side} for side in decoder.difference())
                    return told.ids, sorted(theirs & ours)
        raise AssertionError("so many symbols tell any difference of so few ids")

    def _address(self, node: int) -> Address:
        info = self._metadata().directory.by_id[NodeId(node)]
        return info.address, info.internode_port


def _id(item: Item) -> MutationId:
    return MutationId(item.node, item.start, item.offset)


def _ids(items: dict[MutationId, Item]) -> Held:
    logs: dict[tuple[int, int], list[int]] = {}
    for one in items:
        logs.setdefault(one.log, []).append(one.offset)
    return held_of({log: of(offsets) for log, offsets in logs.items()})


def _first(held: Held, most: int) -> Held:
    """The first ids, so many at most."""
    found, left = {}, most
    for log, offsets in held.items():
        found[log] = some = offsets.first(left)
        left -= some.count
        if not left:
            break
    return held_of(found) if found else NOTHING
