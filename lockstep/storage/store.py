"""The Store port: one ordered byte key-value database with atomic batches.

Invariant, for every implementation: a batch is visible whole or not at all, also after a crash; what is
visible after a crash is everything up to some write at or behind the last finished sync. Families are the
first byte of the key, not column families of the database: one memtable and one log keep an idle node
small and a start fast, a batch over several families stays one write, and neighbouring prefixes still end
up in separate files on the lower levels.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol

import msgspec

from lockstep.storage.damage import DamagedFiles
from lockstep.values import limits
from lockstep.values.errors import StorageError, TableFileDamaged

#: Where a node's store is, relative to the node's directory.
STORE_DIRECTORY: Final = "store"

Pair = tuple[bytes, bytes]
Put = tuple[Literal["put"], bytes, bytes]
Delete = tuple[Literal["delete"], bytes]
DeleteRange = tuple[Literal["delete_range"], bytes, bytes]
Operation = Put | Delete | DeleteRange
#: Applied in order and whole; at most limits.STORE_BATCH_ROWS_MAX operations.
Batch = Sequence[Operation]


class Family(enum.Enum):
    """The fixed kinds of content; the value is the first byte of every key in it."""

    #: Fragments of user tables.
    DATA = b"\x10"
    #: The mutation journal of tracked tables.
    JOURNAL = b"\x20"
    #: Node-local facts, never streamed.
    LOCAL = b"\x30"
    #: Entries of secondary indexes, and what of them is still to be made.
    INDEX = b"\x44"
    #: What is unchanged since its last repair.
    REPAIR = b"\x45"
    #: Hints: writes that other replicas lack, and marks of ranges whose hints were given up.
    HINTS = b"\x40"
    #: Logged batches that this node keeps for their coordinators.
    BATCH_LOG = b"\x41"

    def key(self, rest: bytes) -> bytes:
        return self.value + rest


class StoreSnapshot(Protocol):
    """The content at one instant; later writes are not seen. Close it: it pins old versions."""

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        """As `Store.scan`; beginning one ends the scan of this snapshot before it (StorageError)."""
        ...

    def close(self) -> None: ...


class RangeCursor(Protocol):
    """The pairs of a range as of its opening, taken many at a time. Close it: it pins old versions."""

    def take(self, count: int) -> list[Pair]:
        """The next pairs in key order, fewer than `count` only at the end of the range. CorruptFile."""
        ...

    def close(self) -> None: ...


class Run(Protocol):
    """Many pairs, in strictly ascending key order, in a file: they become visible together, here or in a
    store of the same kind that the file is sent to."""

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """About how large the file is by now; cheap."""
        ...

    def add(self, pairs: Sequence[Pair]) -> None:
        """Append pairs whose keys are above all before (else StorageError). DiskRefused."""
        ...

    async def finish(self) -> None:
        """Nothing is added any more: complete the file. Without pairs there is none."""
        ...


class FileSummary(msgspec.Struct, frozen=True, array_like=True):
    """What a finished file holds, in store keys. `next_key`: from where on whoever has this file and all
    before it still lacks something. `digest` is over the whole content."""

    entries: int
    size_bytes: int
    first_key: bytes
    last_key: bytes
    next_key: bytes
    digest: bytes


class FixedContent(Protocol):
    """The content at one instant, on disk beside the store: helpers build files of it. Close it: it keeps old
    files there."""

    def order(self, lower: bytes, upper: bytes, bytes_max: int, path: str) -> bytes:
        """What a helper is told to make a file at `path` of the first pairs with lower <= key < upper."""
        ...

    def built(self, answer: bytes) -> tuple[FileSummary, bool]:
        """What the helper's file holds, but for size and digest (without entries there is none), and whether
        nothing is left. StorageError when it could not be made."""
        ...

    async def close(self) -> None: ...


class Store(Protocol):
    """Errors: DiskRefused once a write or sync failed (the store is then dead: reopen it), CorruptFile
    when content cannot be read back (TableFileDamaged where a file of tables is at fault)."""

    @property
    def damaged(self) -> DamagedFiles:
        """The files that anything done with this store found damaged."""
        ...

    def write(self, batch: Batch) -> int:
        """Apply a batch, visible at once and not yet durable; returns its growing sequence."""
        ...

    async def sync(self) -> int:
        """Make every write before the call durable; returns the sequence covered."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        """Pairs with lower <= key < upper, as of the first step of the iterator."""
        ...

    def snapshot(self) -> StoreSnapshot: ...

    def cursor(self, lower: bytes, upper: bytes, *, caches: bool = False) -> RangeCursor:
        """As `scan` of a snapshot taken now, for whoever reads a whole range. `caches`: what it reads from
        files stays in memory for others."""
        ...

    def new_run(self, path: str) -> Run:
        """Begin a run in a new file at `path` (below the node's directory, which exists). Whoever began it
        removes the file, if ingesting it did not."""
        ...

    def run_at(self, path: str, count: int) -> Run:
        """A finished run of `count` pairs whose file came from elsewhere: nothing but `ingest` may follow, in
        this step. CorruptFile when it is seen not to be one."""
        ...

    async def before_ingest(self) -> None:
        """Do off the loop what the next `ingest` would hold it up with. DiskRefused."""
        ...

    def ingest(self, run: Run) -> int:
        """Make a finished run visible, whole and in this step, above what was written before; durable after
        the next sync. Returns its sequence. It may survive a crash that older, unsynced writes do not. The
        run's file may be the store's from now on: nobody may write to it. CorruptFile, without any effect,
        when the file is none that this store can take in."""
        ...

    async def fixed(self, path: str) -> FixedContent | None:
        """The content as of some instant during the call, in a new directory at `path` (see `new_run`). None
        when no other process could read this store's. DiskRefused."""
        ...

    def remove_fixed(self, path: str) -> None:
        """Remove what an earlier incarnation fixed there, or was about to. DiskRefused."""
        ...

    def table_files(self) -> tuple[str, ...]:
        """Names of the files that hold tables now, sorted."""
        ...

    async def check_file(self, name: str) -> TableFileDamaged | None:
        """Read all of one of them, in a process beside this one; what is wrong is noted as `damaged`.
        TimeoutError, ConnectionError, StorageError: it could not be checked."""
        ...

    def size_bytes(self) -> int:
        """About what the content takes up, in files and in memory; cheap."""
        ...

    def close(self) -> None:
        """Release the files. Snapshots end; an iterator in use must be dropped by its owner first."""
        ...


def check_batch(batch: Batch) -> None:
    """StorageError when a batch is larger than any caller may build."""
    if len(batch) > limits.STORE_BATCH_ROWS_MAX:
        raise StorageError(f"a batch of {len(batch)} operations is over {limits.STORE_BATCH_ROWS_MAX}")


def check_ascending(pairs: Sequence[Pair], after: bytes) -> None:
    """StorageError unless keys ascend strictly, the first being above `after`."""
    for key, _ in pairs:
        if key <= after:
            raise StorageError("pairs of a run must be in strictly ascending key order")
        after = key
