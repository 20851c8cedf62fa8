"""Giving up the store of a stopped node, which comes back empty and is filled from other replicas, or with
what can be read of the damaged one: what cannot is lacking.

The identity, the metadata log and the votes stay.

Entries of indexes, marks of repairs and the generation of counters are left out: the node makes them anew.

Invariant: what takes the old store's place says of itself that it lacks everything, so the node answers for
nothing before it is filled; a recovery that was cut off is known as such, and no node starts on what it left.
The store lacks everything until it has all that could be read, and from then on what could not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.kinds import every_kind
from lockstep.node.log.journal import Journal
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.identity import IdentityFile
from lockstep.runtime.ports import Disk, Runtime
from lockstep.storage.store import STORE_DIRECTORY, Family, Pair, Run, Store
from lockstep.storage.store_position import (
    FACT,
    FIRST_KEY,
    GENERATION_KEY,
    LAST_KEY,
    Lack,
    PositionFile,
    generation_record,
    lacking_record,
    lacks_in,
)
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile, LockstepError, PreconditionError

_LACKING_KEY: Final = Family.LOCAL.key(FACT)
#: What is made anew by the node itself.
_LEFT_OUT: Final = (Family.INDEX.value, Family.REPAIR.value)
#: Nobody can give them back: deliveries to others, and facts of this node.
_OWN: Final = (Family.LOCAL, Family.HINTS, Family.BATCH_LOG, Family.JOURNAL)
_RUN_PATH: Final = "store-rewrite.run"
_RUN_BYTES: Final = 64 * 1024 * 1024


class Readable(Protocol):
    """What can be read of a store, in key order; `stretches` of keys that cannot are known at the end."""

    stretches: list[tuple[bytes, bytes]]

    def portions(self) -> Iterator[list[Pair]]: ...


async def rewrite(old: Readable, store: Store, lack: Lack) -> tuple[Lack, ...]:
    """Copy into a store that lacks everything, by `lack`, what is readable; what it lacks then, durably.

    PreconditionError when records of the node itself cannot be read; CorruptFile when nothing can.
    """
    run, held, earlier = store.new_run(_RUN_PATH), 0, b""
    for portion in old.portions():
        kept = []
        for key, value in portion:
            if key == _LACKING_KEY:
                earlier = value
            elif key[:1] not in _LEFT_OUT and key != GENERATION_KEY:
                kept.append((key, value))
                held += len(key) + len(value)
        run.add(kept)
        if held >= _RUN_BYTES:
            await _take_in(store, run)
            run, held = store.new_run(_RUN_PATH), 0
    await _take_in(store, run)
    _require_own_records(old.stretches)
    lost = f"what could not be read of {len(old.stretches)} places"
    lacks = (
        # What no other replica has is lost: that may be accepted later.
        *(known for known in lacks_in(earlier or None) if not (known.sole and lack.given_up)),
        *(
            Lack(first_key, last_key, lost, lack.since_us, given_up=lack.given_up)
            for first_key, last_key in _joined(old.stretches)
        ),
    )
    store.write([lacking_record(lacks)])
    await store.sync()
    return lacks


async def _take_in(store: Store, run: Run) -> None:
    await run.finish()
    await store.before_ingest()
    store.ingest(run)
    await store.sync()


def _require_own_records(stretches: Iterable[tuple[bytes, bytes]]) -> None:
    for first_key, last_key in stretches:
        for family in _OWN:
            if first_key < bytes([family.value[0] + 1]) and last_key > family.value:
                raise PreconditionError(
                    f"records of the node itself ({family.name.lower()}) cannot be read, not only tables",
                    hint="give the whole store up: `lockstep node recover --config FILE`",
                )


def _joined(stretches: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Those that touch each other as one."""
    found: list[tuple[bytes, bytes]] = []
    for first_key, last_key in stretches:
        if found and first_key <= found[-1][1]:
            found[-1] = found[-1][0], last_key
        else:
            found.append((first_key, last_key))
    return found


#: There while a recovery is under way.
RECOVERY_PATH = "store-recovery"
#: Where the files go that were given up, until the operator removes them.
DAMAGED_DIRECTORY = "store-damaged"
#: Generations of counters that one start of a node can use up, by wiping ranges.
_GENERATIONS_PER_START_BITS = 32


class Recoverable(msgspec.Struct, frozen=True):
    """A stopped node. `starts`: how often it was started. `alone`: keyspaces of which it has the only replica
    of some range; `elsewhere`: those of which other nodes have one of each range."""

    node: int
    address: str
    cluster_name: str
    epoch: int
    starts: int
    alone: tuple[str, ...]
    elsewhere: tuple[str, ...]


def survey(runtime: Runtime) -> Recoverable:
    """Read from the directory of a stopped node. PreconditionError when it is no member of a cluster,
    CorruptFile when its identity or its metadata is damaged too."""
    identity = IdentityFile(runtime).load()
    broken: list[LockstepError] = []
    state = MetadataState(runtime, every_kind(), broken.append)
    state.load()
    own = state.current.directory.by_host_id.get(identity.host_id)
    if own is None:
        raise PreconditionError(
            "this data directory belongs to no member of a cluster",
            hint="empty it: the node joins as a new one",
        )
    alone = keyspaces_alone(state.current, own.id)
    named = tuple(keyspace.name for keyspace in state.current.schema.keyspaces if keyspace.tables)
    return Recoverable(
        own.id,
        own.address,
        state.current.identity.cluster_name,
        state.epoch,
        identity.generation,
        alone,
        tuple(name for name in named if name not in alone),
    )


def keyspaces_alone(cluster: ClusterMetadata, node: int) -> tuple[str, ...]:
    """Keyspaces with tables of which the node has the only replica of some range."""
    return tuple(
        keyspace.name
        for keyspace in cluster.schema.keyspaces
        if any(
            placed.group.reads == (node,)
            for group, tables in keyspace.groups.items()
            if tables
            for placed in cluster.placements.ring(group).ranges
        )
    )


async def recover_store(
    runtime: Runtime,
    found: Recoverable,
    open_store: Callable[[Runtime], Awaitable[Store]],
    *,
    accept_data_loss: bool,
    old: Readable | None = None,
) -> tuple[Lack, ...]:
    """Put an empty store in the place of the node's, which lies in `store-damaged` from then on; or one with
    what can be read of the `old` one there. What it lacks.

    PreconditionError when no other node has some of it, unless that is accepted. Cut off, it is begun again.
    """
    if found.alone and not accept_data_loss and old is None:
        raise PreconditionError(
            f"no other node has all ranges of {', '.join(found.alone)}: recovering this node loses what only "
            "it had of them",
            hint="restore the disk or a backup, or go on without it: "
            "`lockstep node recover --config FILE --accept-data-loss`",
        )
    disk, now_us = runtime.disk, runtime.clock.wall_us()
    if not disk.exists(RECOVERY_PATH):
        for name in disk.names(DAMAGED_DIRECTORY):
            disk.remove(f"{DAMAGED_DIRECTORY}/{name}")
        await Journal(disk, RECOVERY_PATH).append(encode(now_us))
    journal = Journal(disk, RECOVERY_PATH)
    is_moved = len(journal.load()) > 1
    for name in disk.names(STORE_DIRECTORY):
        if is_moved or disk.exists(f"{DAMAGED_DIRECTORY}/{name}"):
            # Of the store that the recovery had begun to make.
            disk.remove(f"{STORE_DIRECTORY}/{name}")
        else:
            disk.rename(f"{STORE_DIRECTORY}/{name}", f"{DAMAGED_DIRECTORY}/{name}")
    if disk.names(DAMAGED_DIRECTORY):
        # Of a store that was taken away whole nothing is left to be kept, and no directory is made.
        await disk.sync_names(DAMAGED_DIRECTORY)
    if not is_moved:
        await journal.append(encode(now_us))
    await PositionFile(disk, STORE_DIRECTORY).remove()
    runtime.probes.reach("recovery.emptied")
    store = await open_store(runtime)
    try:
        lack = Lack(FIRST_KEY, LAST_KEY, "", now_us, given_up=accept_data_loss)
        # Above all that earlier starts can have used: others may hold more of those counters than is known.
        generation = (found.starts + 1) << _GENERATIONS_PER_START_BITS
        store.write([lacking_record((lack,)), generation_record(generation)])
        await store.sync()
        lacks = (lack,) if old is None else await rewrite(old, store, lack)
    finally:
        store.close()
    runtime.probes.reach("recovery.marked")
    disk.remove(RECOVERY_PATH)
    await disk.sync_names("")
    return lacks


def refuse_half_recovered(disk: Disk) -> None:
    """CorruptFile when a recovery of the store was cut off."""
    if disk.exists(RECOVERY_PATH):
        raise CorruptFile(
            STORE_DIRECTORY,
            0,
            "its recovery has not ended",
            hint="begin it again: `lockstep node recover --config FILE`",
        )
