"""What a node knows of its own store beside its content: how far it had got, which generation of counters it
keeps, and which stretches of its keys it has lost, until they are filled again.

Invariant: a position is written only when everything that it covers is durable, and positions only grow. So
one that was lost, or the file that was damaged, hides a loss but never invents one. It has grown before
anything is wiped, so that a node never counts on in a shard of which others may hold more than it does. What
is lacking is a record of the store that lacks it, so neither is ever there without the other; a stretch is
closed at both ends, and whoever asks about tokens of a table is told of every stretch that may have held one
of their keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from lockstep.runtime.ports import Disk
from lockstep.storage.rows import keys
from lockstep.storage.rows.keys import with_ballots
from lockstep.storage.store import Family, Put
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile, RangeLacking
from lockstep.values.limits import STORE_POSITION_FILE_BYTES_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

_RECORD_BYTES_MAX: Final = 1024 * 1024


class LocalFacts(Protocol):
    """What a store keeps of its own node: by key, and durable once `synced` with what keeping it returned."""

    def local_fact(self, key: bytes) -> bytes | None: ...

    def keep_local_fact(self, key: bytes, value: bytes) -> int: ...

    async def synced(self, sequence: int) -> None: ...


class StorePosition(msgspec.Struct, frozen=True, array_like=True):
    """`sequence`: of the last write covered. `files`: (name, bytes) of the logs that were there then."""

    sequence: int
    files: tuple[tuple[str, int], ...] = ()


_DECODER = decoder(StorePosition)


def lost(path: str, offset: int, why: str) -> CorruptFile:
    """The refusal of a store that lacks what it had."""
    return CorruptFile(
        path,
        offset,
        why,
        hint="recover the node from its replicas: `lockstep node recover --config FILE`, then start it",
    )


class PositionFile:
    """The newest position of the store in `directory`, in a file beside it that outlives it.
    Errors: DiskRefused."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}-position"
        self._bytes = 0
        self._unsynced = False

    def load(self) -> StorePosition | None:
        """The newest position that can be read; what is behind damage was newer."""
        found: StorePosition | None = None
        for name in (self._path, self._next):
            if not self._disk.exists(name):
                continue
            content = self._disk.read(name)
            try:
                for _, body in scan_records(name, content, record_bytes_max=_RECORD_BYTES_MAX):
                    position = _DECODER.decode(body)
                    if found is None or position.sequence >= found.sequence:
                        found = position
            except (CorruptFile, *UNREADABLE):
                # What was read before is as true as it was, only older.
                continue
        return found

    async def begin(self, position: StorePosition) -> None:
        """Have the file hold this position alone, durably."""
        if self._disk.exists(self._next):
            self._disk.remove(self._next)
        record = frame_record(encode(position))
        await self._disk.append_synced(self._next, record)
        self._disk.rename(self._next, self._path)
        await self._disk.sync_names("")
        self._bytes, self._unsynced = len(record), False

    def note(self, position: StorePosition) -> None:
        """Append a position: any crash but a loss of power leaves it there."""
        record = frame_record(encode(position))
        self._disk.append(self._path, record)
        self._bytes += len(record)
        self._unsynced = True

    async def settle(self, position: StorePosition) -> None:
        """Make the newest position, which is this one, durable; and the file short again."""
        if self._bytes > STORE_POSITION_FILE_BYTES_MAX:
            await self.begin(position)
        elif self._unsynced:
            self._unsynced = False
            await self._disk.sync(self._path)

    async def remove(self) -> None:
        """Forget it: the store is about to be emptied."""
        for name in (self._path, self._next):
            if self._disk.exists(name):
                self._disk.remove(name)
        await self._disk.sync_names("")

    @property
    def _next(self) -> str:
        return f"{self._path}.next"


_FACT: Final = b"counter-generation"
_NUMBER: Final = struct.Struct(">Q")
GENERATION_KEY: Final = Family.LOCAL.key(_FACT)


def generation_of(facts: LocalFacts) -> int:
    kept = facts.local_fact(_FACT)
    return int(_NUMBER.unpack(kept)[0]) if kept is not None else 1


def generation_record(generation: int) -> Put:
    """What a store keeps that counts in new shards from this generation on."""
    return "put", GENERATION_KEY, _NUMBER.pack(generation)


def begin_generation(facts: LocalFacts) -> int:
    """From now on this node counts in new shards; the sequence to await."""
    return facts.keep_local_fact(_FACT, _NUMBER.pack(generation_of(facts) + 1))


class Lack(msgspec.Struct, frozen=True, array_like=True):
    """Keys from `first_key` to `last_key`. `lost`: the file that held them; empty: the whole store.

    `since_us`: wall clock. `sole`: no other replica has it, so nobody can fill it. `given_up`: what no other
    replica has was given up before it was lost.
    """

    first_key: bytes
    last_key: bytes
    lost: str = ""
    since_us: int = 0
    sole: bool = False
    given_up: bool = False

    @property
    def is_everything(self) -> bool:
        """The whole store is gone."""
        return (self.first_key, self.last_key) == (FIRST_KEY, LAST_KEY)


#: The first and last key of a store that was made anew.
FIRST_KEY, LAST_KEY = b"", b"\xff" * 8
#: The name of the node-local fact.
FACT = b"lacking"
_LACKING_DECODER = decoder(tuple[Lack, ...])


def lacking_record(lacks: Sequence[Lack]) -> Put:
    """What a store keeps of all that it lacks."""
    return "put", Family.LOCAL.key(FACT), encode(tuple(lacks))


def lacks_in(record: bytes | None) -> tuple[Lack, ...]:
    return _LACKING_DECODER.decode(record) if record is not None else ()


def tokens_between(first_key: bytes, last_key: bytes, table_id: int) -> Range | None:
    """Tokens of a table, or of a companion, some of whose keys may lie between the two; None without any."""
    lower, upper = keys.table_bounds(table_id)
    if last_key < lower or first_key >= upper:
        return None
    left, right = TOKEN_MIN, TOKEN_MAX
    if first_key > lower and len(first_key) >= keys.PLACE_BYTES:
        left = max(keys.token_of(first_key) - 1, TOKEN_MIN)
    if last_key < upper and len(last_key) >= keys.PLACE_BYTES:
        right = keys.token_of(last_key)
    return Range(left, right) if left < right else None


def lacked(lacks: Sequence[Lack], table_id: int, tokens: Range) -> Range | None:
    """The first tokens of a range, with the ballots of conditional writes to them, that may be lacking."""
    for lack in lacks:
        for stored_id in with_ballots((table_id,)):
            between = tokens_between(lack.first_key, lack.last_key, stored_id)
            found = between.intersection(tokens) if between is not None else None
            if found is not None:
                return found
    return None


class Filling(Protocol):
    """How far it is."""

    ranges: int
    ranges_total: int


class Lacking:
    """`filling` is of the work that fills it; None while there is none."""

    def __init__(self, facts: LocalFacts) -> None:
        """CorruptFile when the store cannot say what it lacks."""
        self._facts = facts
        self.filling: Filling | None = None
        self.current: tuple[Lack, ...] = lacks_in(facts.local_fact(FACT))

    @property
    def fillable(self) -> tuple[Lack, ...]:
        """What other replicas may have."""
        return tuple(lack for lack in self.current if not lack.sole)

    async def filled(self, lacks: Sequence[Lack], sole: Iterable[Lack]) -> None:
        """They were filled from all other replicas that there are; `sole` is of them what only this node was
        to have. Durable on return."""
        left = tuple(lack for lack in self.current if lack not in lacks)
        await self._keep((*left, *sole))

    async def _keep(self, lacks: tuple[Lack, ...]) -> None:
        if lacks != self.current:
            self.current = lacks
            await self._facts.synced(self._facts.keep_local_fact(FACT, lacking_record(lacks)[2]))

    def require(self, table_id: int, tokens: Range) -> None:
        """RangeLacking when something of a table's range, or of its ballots, may be lacking here."""
        if not self.current:
            return
        found = lacked(self.current, keys.table_of(table_id), tokens)
        if found is not None:
            raise RangeLacking(
                f"this node lost what it stored of ({found.left}, {found.right}] of table {table_id}",
                hint="it is filled from other replicas: `lockstep topology requests`",
            )
