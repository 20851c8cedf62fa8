"""Answers to readers of a session, from the content that was fixed for it: a step at a time.

Invariant: nothing is read for whom the session's secret is not shown, nor outside of its table and of the
ranges that its node was asked for when it was opened. An answer whose content cannot be read, or is there no
longer, ends with an error that names file and range.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from msgspec.structs import replace

from lockstep.metadata.purging import purged_before_s
from lockstep.scans.bucket_digests import BucketDigests, parts, widths_of
from lockstep.scans.column_files import ColumnFiles, FilesWorld, KeptColumns, TableFiles
from lockstep.scans.messages import (
    FACTS,
    WANTED,
    BatchHead,
    Bounds,
    DigestsWanted,
    Refusal,
    RowsWanted,
    SessionFacts,
    Tally,
    Trailer,
    framed,
)
from lockstep.scans.rows_reading import GOES_ON, Part, Read, RowsReading, digests_of_parts, takers
from lockstep.scans.session_files import DOOR_ORDER, FACTS_SUFFIX, LEASE, LEASE_SUFFIX, Expired
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.rocks.rocks_building import open_content
from lockstep.storage.rocks.rocks_errors import RocksErrors
from lockstep.storage.rocks.rocks_files import ContentFiles, FilesTold, is_in_files
from lockstep.storage.rocks.rocks_runs import RocksCursor
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.node_limits import AUDIT_BUCKETS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

#: Leases are renewed so often: far below the shortest one, and not with each batch.
_RENEWAL_S: Final = 0.2
#: Contents that one process keeps open: each holds files.
_OPEN_MAX: Final = 4
#: Fragments whose digests are made at once: what a processor has beside it holds them.
_DIGESTED: Final = 2048
DIGESTS_SCHEMA: Final = pa.schema([pa.field("digest", pa.binary(16)), pa.field("rows", pa.int64())])
STORED_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])

Answered = tuple[BatchHead | Trailer | Refusal, Any]


class World(FilesWorld, Protocol):
    """See runtime.real.door_process."""

    def monotonic_s(self) -> float: ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes: ...

    def pieces(self, path: str) -> Iterable[bytes]: ...

    def overwrite(self, path: str, data: bytes) -> None: ...


class Door:
    """Answers requests as they come and go over the wire."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.rest = contents.rest

    def answer(self, request: bytes) -> Iterator[Any]:
        try:
            wanted = WANTED.decode(request)
        except UNREADABLE as error:
            yield framed(Refusal(f"this is no request of a reader: {error}", wrong=True))
            return
        for head, body in self._contents.answer(wanted):
            yield framed(head)
            if len(body):
                yield body


def door(order: bytes, world: World) -> Door:
    """For a process that keeps the door; `order` is a `DoorOrder`."""
    wanted = DOOR_ORDER.decode(order)
    columns = ColumnFiles(
        world, wanted.columns, wanted.incarnation, wanted.columns_bytes_max, wanted.free_bytes_min
    )
    return Door(Contents(world, wanted.sessions, columns))


class _Content:
    """One session as this process sees it."""

    def __init__(self, world: World, directory: str, session: str) -> None:
        import rocksdict

        self._world = world
        self._path = f"{directory}/{session}"
        self._session = session
        try:
            self.facts: SessionFacts = FACTS.decode(world.read(f"{self._path}{FACTS_SUFFIX}"))
        except FileNotFoundError:
            raise Expired(session) from None
        self._library = rocksdict
        self._database: Any = None
        self._files: ContentFiles | None = None
        self._table_files: TableFiles | None = None
        self._read_files: TableFiles | None = None
        self._renewed_s = 0.0

    def renew(self) -> None:
        """Have the lease run anew. Expired when it has run out already, or was ended."""
        now_s, path = self._world.monotonic_s(), f"{self._path}{LEASE_SUFFIX}"
        try:
            (until_s,) = LEASE.unpack(self._world.read(path))
            if until_s < now_s:
                raise Expired(self._session)
            if now_s - self._renewed_s > _RENEWAL_S:
                self._world.overwrite(path, LEASE.pack(now_s + self.facts.lease_ms / 1000))
                self._renewed_s = now_s
        except FileNotFoundError:
            raise Expired(self._session) from None

    def cursor(self, lower: bytes, upper: bytes) -> RocksCursor:
        database = self._opened()
        errors = RocksErrors(self._path, DamagedFiles(), database.live_files)
        return RocksCursor(errors, database, self._library.ReadOptions, lower, upper)

    def files(self) -> ContentFiles:
        if self._files is None:
            self._files = ContentFiles(self._library, self._opened(), self._path, self._world.pieces)
        return self._files

    def table_files(self) -> TableFiles | None:
        """None where something of the content is beside them."""
        if self._table_files is None:
            self._table_files = self._listed()
        return self._table_files

    def read_files(self) -> TableFiles | None:
        """As `table_files`, told apart by their bytes."""
        if self._read_files is None:
            self._read_files = self._listed(self.files().digest)
        return self._read_files

    def _listed(self, bytes_of: Callable[[str], bytes] = lambda _: b"") -> TableFiles | None:
        database = self._opened()
        if not is_in_files(database):
            return None
        return TableFiles(database.live_files(), bytes_of)

    def _opened(self) -> Any:
        if self._database is None:
            self._database = open_content(self._library, self._path)
        return self._database

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = self._files = self._table_files = self._read_files = None


class Contents:
    """The sessions below a directory that this process was asked for lately."""

    def __init__(self, world: World, directory: str, columns: ColumnFiles | None = None) -> None:
        self._world = world
        self._directory = directory
        self._columns = columns
        self._open: dict[str, _Content] = {}

    def answer(self, wanted: RowsWanted) -> Iterator[Answered]:
        """Heads with what follows them; ends with a trailer or a refusal."""
        try:
            yield from self._answer(wanted)
        except Expired as error:
            yield Refusal(error.message, expired=True), b""
        except LockstepError as error:
            # A content that is removed while it is read has lost files.
            is_gone, is_wrong = self._is_gone(wanted.session), isinstance(error, InvalidRequest)
            yield Refusal(_told(wanted, error), expired=is_gone, wrong=is_wrong), b""

    def _answer(self, wanted: RowsWanted) -> Iterator[Answered]:
        content = self._content(wanted.session)
        if not hmac.compare_digest(content.facts.secret, wanted.secret):
            raise InvalidRequest(f"this is not the secret of read session {wanted.session}")
        bounds = wanted.bounds if wanted.digests is None else _digested(content.facts, wanted.digests)
        require_owned(content.facts, bounds)
        content.renew()
        tally, read = Tally(), Read()
        ended = True
        sent = given = 0
        if wanted.digests is not None and wanted.digests.files:
            batches = _of_files(content, wanted.digests)
        elif wanted.digests is not None:
            kept = self._kept_digests(content, wanted.digests)
            batches = _finished(_digests(content, wanted.digests, read, kept), kept)
        elif wanted.cuts is not None:
            kept = self._kept(content, wanted)
            batches = _finished(_parted(content, wanted, wanted.cuts, read, kept), kept)
        elif wanted.fragments:
            batches = _stored(content, wanted, read)
        else:
            kept = self._kept(content, wanted)
            batches = RowsReading(content, content.facts.table, wanted, read, kept).parts()
        for rows, body, next_key, begun_in, stored in batches:
            head = BatchHead(len(body), rows, next_key, begun_in, stored)
            tally.add(head, body)
            yield head, body
            content.renew()
            sent += len(body)
            given += rows
            if sent >= wanted.bytes_max or 0 < wanted.rows_max <= given:
                ended = False
                break
        trailer = tally.trailer(ended=ended)
        yield (
            replace(trailer, fragments_read=read.fragments, bytes_read=read.bytes, kept_rows=read.kept_rows),
            b"",
        )

    def _kept(self, content: _Content, wanted: RowsWanted) -> KeptColumns | None:
        table_files = content.table_files()
        if self._columns is None or table_files is None:
            return None
        return self._columns.of_rows(content.facts.table, wanted.decimal_scale, table_files)

    def _kept_digests(self, content: _Content, wanted: DigestsWanted) -> KeptColumns | None:
        """Of the bytes that table files have now: an audit looks at all of them."""
        table_files = content.read_files() if wanted.stored else None
        if self._columns is None or table_files is None:
            return None
        return self._columns.of_digests(content.facts.table, table_files)

    def _content(self, session: str) -> _Content:
        if not session.isalnum():
            raise InvalidRequest("this is not the id of a read session")
        found = self._open.pop(session, None)
        if found is None:
            while len(self._open) >= _OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            found = _Content(self._world, self._directory, session)
        self._open[session] = found
        return found

    def _is_gone(self, session: str) -> bool:
        return session.isalnum() and not self._world.exists(f"{self._directory}/{session}{FACTS_SUFFIX}")

    def rest(self) -> None:
        """Close what was removed, so that its files' room is free again."""
        for session in list(self._open):
            if self._is_gone(session):
                self._open.pop(session).close()
        if self._columns is not None:
            self._columns.rest()


def require_owned(facts: SessionFacts, bounds: Sequence[tuple[bytes, bytes]]) -> None:
    """InvalidRequest for bounds that ask for more than the session has."""
    table_id = facts.table.table.id
    owned = [keys.token_bounds(table_id, Range(left, right)) for left, right in facts.owned]
    for lower, upper in bounds:
        if not any(first <= lower <= upper <= last for first, last in owned):
            raise InvalidRequest("the node of this read session was no replica of what is asked for")


def _told(wanted: RowsWanted, error: LockstepError) -> str:
    first, last = (wanted.bounds[0][0], wanted.bounds[-1][1]) if wanted.bounds else (b"", b"")
    return f"{error.message} (reading from {first.hex()} to {last.hex()})"


def _finished(found: Iterator[Part], kept: KeptColumns | None) -> Iterator[Part]:
    """Also when an answer ends before it has all, digests that were made are kept."""
    try:
        yield from found
    finally:
        if kept is not None:
            kept.finish(None)


def _parted(
    content: _Content,
    wanted: RowsWanted,
    cuts: Sequence[bytes],
    read: Read,
    kept: KeptColumns | None,
) -> Iterator[Part]:
    if list(cuts) != sorted(cuts):
        raise InvalidRequest("keys at which digests are cut ascend")
    found = []

    def portions(bounds: Bounds) -> Iterator[Sequence[Pair]]:
        for pairs, _ in takers(content, bounds, wanted, read):
            yield pairs

    for part in digests_of_parts(portions, wanted.bounds, cuts, kept):
        if part is not None:
            found.append(part)
        elif read.is_long():
            yield GOES_ON
    # Who does not know of cuts tells no digest beside them.
    yield _listed(found)._replace(stored=found[-1][0])


def _listed(found: Sequence[tuple[bytes | None, int]]) -> Part:
    """Digests, each with its rows."""
    columns = [
        pa.array([digest for digest, _ in found], pa.binary(16)),
        pa.array([rows for _, rows in found], pa.int64()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=DIGESTS_SCHEMA)
    return Part(len(found), batch.serialize())


def _digested(facts: SessionFacts, wanted: DigestsWanted) -> Bounds:
    """What the digests are of. InvalidRequest for what are no parts of ranges."""
    for left, right, count in wanted.ranges:
        if not TOKEN_MIN <= left < right <= TOKEN_MAX or not 1 <= count <= min(
            AUDIT_BUCKETS_MAX, right - left
        ):
            raise InvalidRequest(
                f"({left}, {right}] has no {count} parts; 1 to {AUDIT_BUCKETS_MAX} may be asked for"
            )
    table_id = facts.table.table.id
    return tuple(keys.token_bounds(table_id, Range(left, right)) for left, right, _ in wanted.ranges)


def _digests(
    content: _Content, wanted: DigestsWanted, read: Read, kept: KeptColumns | None
) -> Iterator[Part]:
    facts = content.facts
    table, widths = facts.table.table, widths_of(facts.table)

    def portions(bounds: Bounds) -> Iterator[Sequence[Pair]]:
        for one in bounds:
            yield from _digested_portions(content, one, read)

    for number, (left, right, count) in enumerate(wanted.ranges):
        tokens = Range(left, right)
        bounds = keys.token_bounds(table.id, tokens)
        if wanted.stored:
            cuts = [keys.token_bounds(table.id, part)[1] for part in parts(tokens, count)[:-1]]
            found = []
            if kept is not None:
                for _ in kept.table_files.read(*bounds):
                    yield GOES_ON
            counts_rows = number < wanted.counted
            for part in digests_of_parts(portions, (bounds,), cuts, kept, counts_rows=counts_rows):
                if part is not None:
                    found.append(part)
                elif read.is_long():
                    yield GOES_ON
            yield _listed(found)
            continue
        before_s = purged_before_s(facts.repaired, table, tokens, wanted.now_s)
        digests = BucketDigests(parts(tokens, count), before_s, widths)
        for pairs in _digested_portions(content, bounds, read):
            digests.feed(pairs)
            if read.is_long():
                yield GOES_ON
        yield _listed(digests.finish())


def _of_files(content: _Content, wanted: DigestsWanted) -> Iterator[Part]:
    table = content.facts.table.table
    for left, right, _ in wanted.ranges:
        told: FilesTold | None = None
        # Static columns are entries of files, and no rows.
        if not table.static:
            for made in content.files().told(*keys.token_bounds(table.id, Range(left, right))):
                told = made
                yield GOES_ON
        yield _listed([(None, 0) if told is None else (told.digest, told.entries)])


def _digested_portions(content: _Content, bounds: tuple[bytes, bytes], read: Read) -> Iterator[list[Pair]]:
    cursor = content.cursor(*bounds)
    try:
        while pairs := cursor.take(_DIGESTED):
            read.fragments += len(pairs)
            yield pairs
            if len(pairs) < _DIGESTED:
                return
    finally:
        cursor.close()


def _stored(content: _Content, wanted: RowsWanted, read: Read) -> Iterator[Part]:
    for pairs, _ in takers(content, wanted.bounds, wanted, read):
        found = [pa.array([pair[at] for pair in pairs], pa.binary()) for at in (0, 1)]
        batch = pa.RecordBatch.from_arrays(found, schema=STORED_SCHEMA)
        yield Part(len(pairs), batch.serialize(), pairs[-1][0] + b"\x00")


def pairs_of(batch: pa.RecordBatch) -> list[Pair]:
    return list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
