"""Reading a snapshot: rows of one replica as its readers make them, or what several replicas store merged
here.

Invariant: a row is given once. An answer that breaks off counts up to the last batch that came whole, and
reading goes on behind it at any replica that the snapshot names; an answer whose trailer does not match is an
error. Where more than one replica is wanted their fragments are merged as if one had stored all of them, so
the rules are those of any read. Once too few replicas have the session, the snapshot has expired.
"""

from __future__ import annotations

import socket
from collections.abc import Container, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from lockstep.scans.content_reading import DIGESTS_SCHEMA, STORED_SCHEMA
from lockstep.scans.messages import (
    HEAD,
    HEAD_BYTES_MAX,
    HEAD_LENGTH,
    BatchHead,
    Bounds,
    Refusal,
    RowsWanted,
    Tally,
    Trailer,
    framed,
)
from lockstep.scans.session_files import Expired
from lockstep.scans.table_reader import TableReader, partition_of
from lockstep.spark.cql_client import encrypted
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.selecting import Selection
from lockstep.spark.snapshots import Locations, Snapshot, SnapshotRange, pieces_of
from lockstep.spark.stored_union import Source, SourceFailed, union
from lockstep.storage.rows import keys
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    PeerUnreachable,
    ProtocolViolation,
    StorageError,
)
from lockstep.values.rows import Slice
from lockstep.values.tokens import Range

#: Of one answer: some batches, so that a process beside the node is soon there for the next reader.
_ANSWER_BYTES: Final = 64 * 1024 * 1024
#: Of one request, about, and bounds in it: what a node takes is eight times that, and of each bound it finds
#: the first key.
_REQUEST_BYTES: Final = 1024 * 1024
_BOUNDS_MAX: Final = 4096
#: Of one answer that the other replicas are asked about: a task holds it meanwhile.
_TOLD_BYTES: Final = 16 * 1024 * 1024
#: Answers in a row of which replicas store something different, after which all that is left is merged.
_UNLIKE_MAX: Final = 2
#: So many times as many fragments are asked for as before where those were not enough.
_MORE: Final = 4
#: Room for what is sent while the reader works on what it has.
_BUFFER_BYTES: Final = 4 * 1024 * 1024


class SnapshotScan:
    """Of one task. `columns` are names in the order of the batches. `rows_max`: reading ends with the batch
    that makes so many rows, and replicas read little more; 0: all."""

    def __init__(
        self, options: Options, snapshot: Snapshot, columns: Sequence[str], turn: int = 0, rows_max: int = 0
    ) -> None:
        self._options = options
        self._snapshot = snapshot
        self._columns = tuple(columns)
        self._turn = turn
        self._rows_max = rows_max
        self._given = 0
        self._lone_statics = True
        #: What replicas told that they read for this: how many fragments, and about how many bytes of them.
        self.fragments_read = self.bytes_read = 0
        self._locations = Locations(options, snapshot)
        self._gone: dict[int, None] = {}
        self.schema = self._reader().schema

    def _reader(self, begun_in: bytes = b"") -> TableReader:
        snapshot = self._snapshot
        return TableReader(
            snapshot.table,
            self._columns,
            snapshot.now_s,
            self._options.decimal_scale,
            lone_statics=self._lone_statics,
            begun_in=begun_in,
        )

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Rows of ranges of tokens (left, right]."""
        table_id = self._snapshot.table.table.id
        pieces = [piece for left, right in ranges for piece in pieces_of(self._snapshot, left, right)]
        return self._by_replicas(
            [(part, _Place((keys.token_bounds(table_id, Range(*at)),))) for *at, part in pieces]
        )

    def keys(
        self, wanted: Sequence[tuple[int, bytes]], slices: Sequence[Slice] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Rows of partitions, by (token, key); with `slices` those rows of them only."""
        table_id = self._snapshot.table.table.id
        self._lone_statics = not slices
        places: list[tuple[int, _Place]] = []
        for token, key in wanted:
            prefix = keys.partition_prefix(table_id, token, key)
            if slices:
                bounds = tuple(sorted(keys.slice_bounds(prefix, part) for part in slices))
                places.append((token, _Place(bounds, ((prefix, prefix + keys.KIND_ROW),))))
            else:
                places.append((token, _Place(((prefix, keys.partition_end(prefix)),))))
        return self._places(places)

    def between(self, wanted: Sequence[tuple[int, tuple[bytes, bytes]]]) -> Iterator[pa.RecordBatch]:
        """Rows between keys of the store, by (token of their partition, keys)."""
        return self._places([(token, _Place((bounds,))) for token, bounds in wanted])

    def _places(self, wanted: Sequence[tuple[int, _Place]]) -> Iterator[pa.RecordBatch]:
        return self._by_replicas(
            [
                (next(part for part in self._snapshot.ranges if part.left < token <= part.right), place)
                for token, place in wanted
            ]
        )

    def _by_replicas(self, pieces: Sequence[tuple[SnapshotRange, _Place]]) -> Iterator[pa.RecordBatch]:
        """What has the same replicas is read in one go, as far as a request has room for it."""
        groups: dict[tuple[tuple[int, ...], int], list[_Place]] = {}
        for part, place in pieces:
            groups.setdefault((tuple(sorted(part.nodes)), part.wanted), []).append(place)
        for (nodes, wanted), places in groups.items():
            for bounds in requests(places):
                if self._has_enough():
                    return
                for batch in self._read(SnapshotRange(0, 0, nodes, wanted), bounds):
                    self._given += batch.num_rows
                    yield batch

    def _read(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        if part.wanted == 1:
            return self._one(part, bounds)
        return self._several(part, bounds)

    # -- one replica ----------------------------------------------------------------------------------

    def _one(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        begun_in, retry = b"", Retry()
        while bounds and not self._has_enough():
            node = self._chosen(part)[0]
            wanted = self._wanted(bounds, begun_in, rows_max=self._left())
            try:
                for head, body in answer_of(self._options, self._locations.of(node), wanted):
                    if isinstance(head, Trailer):
                        self._count(head)
                        bounds = () if head.ended else bounds
                        continue
                    bounds, begun_in = left_of(bounds, head.next_key), head.begun_in
                    retry.succeeded()
                    if head.size:
                        yield pa.ipc.read_record_batch(pa.py_buffer(body), self.schema)
            except LockstepError as error:
                self._failed(node, error, retry)

    def _has_enough(self) -> bool:
        return 0 < self._rows_max <= self._given

    def _left(self) -> int:
        return max(self._rows_max - self._given, 0)

    def _count(self, trailer: Trailer) -> None:
        self.fragments_read += trailer.fragments_read
        self.bytes_read += trailer.bytes_read

    def _wanted(
        self, bounds: Bounds, begun_in: bytes = b"", *, fragments: bool = False, rows_max: int = 0
    ) -> RowsWanted:
        snapshot = self._snapshot
        return RowsWanted(
            snapshot.session,
            snapshot.secret,
            bounds,
            _ANSWER_BYTES,
            self._columns,
            snapshot.now_s,
            self._options.decimal_scale,
            self._lone_statics,
            begun_in,
            fragments,
            rows_max,
        )

    def _chosen(self, part: SnapshotRange) -> list[int]:
        """Expired when fewer nodes than wanted have the session."""
        return self._having(part, part.wanted)

    def _having(self, part: SnapshotRange, count: int, beside: Container[int] = ()) -> list[int]:
        """So many nodes that have the session, in the order in which to ask them."""
        order = self._locations.order(part, self._turn)
        found = [node for node in order if node not in self._gone and node not in beside]
        if len(found) < count:
            raise Expired(self._snapshot.session)
        return found[:count]

    def _failed(self, node: int, error: LockstepError, retry: Retry) -> None:
        """Raises `error` when no other attempt can help, or there were enough."""
        self._locations.forget(node)
        if isinstance(error, Expired):
            self._gone[node] = None
            return
        if isinstance(error, ProtocolViolation | InvalidRequest):
            raise error
        retry.failed(error if error.retriable else _Elsewhere(error.message))

    # -- several replicas -----------------------------------------------------------------------------

    def _several(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        """Rows of one replica as far as the others store the same; merged ones where they do not."""
        begun_in, unlike, retry = b"", 0, Retry()
        while bounds and not self._has_enough():
            found = self._compared(part, bounds, begun_in, retry)
            if found is None:
                continue
            for head, batch in zip(found.heads[: found.alike], found.batches, strict=False):
                if batch is not None:
                    yield batch
                bounds, begun_in = left_of(bounds, head.next_key), head.begun_in
            if found.alike == len(found.heads):
                bounds, unlike = () if found.ended else bounds, 0
                continue
            unlike += 1
            until = b"" if unlike > _UNLIKE_MAX or not found.heads else found.unlike_until
            bounds, begun_in = yield from self._merged(part, bounds, begun_in, until)

    def _compared(
        self, part: SnapshotRange, bounds: Bounds, begun_in: bytes, retry: Retry
    ) -> _Compared | None:
        """An answer of one replica, and how much of it the others agree with. None: ask again."""
        first = self._chosen(part)[0]
        found = self._told_by(first, bounds, begun_in, retry)
        if not found.heads:
            return None
        told = [head.stored for head in found.heads]
        if not all(told):
            return _NOT_TOLD
        found.alike = len(told)
        asked = bounds if found.ended else _before(bounds, found.heads[-1].next_key)
        cuts = tuple(head.next_key for head in found.heads[:-1])
        agreed = {first}
        while len(agreed) < part.wanted:
            node = self._having(part, part.wanted - len(agreed), agreed)[0]
            try:
                theirs = self._stored_digests(node, asked, cuts)
            except LockstepError as error:
                self._failed(node, error, retry)
                continue
            retry.succeeded()
            agreed.add(node)
            if len(theirs) != len(told):
                return _NOT_TOLD
            unlike = (at for at, pair in enumerate(zip(told, theirs, strict=True)) if pair[0] != pair[1])
            found.alike = min(found.alike, next(unlike, len(told)))
        return found

    def _told_by(self, node: int, bounds: Bounds, begun_in: bytes, retry: Retry) -> _Compared:
        """As much of an answer as came whole."""
        wanted = self._wanted(bounds, begun_in, rows_max=self._left())
        wanted = msgspec.structs.replace(wanted, told=True, bytes_max=_TOLD_BYTES)
        found = _Compared([], [], 0, False)
        try:
            for head, body in answer_of(self._options, self._locations.of(node), wanted):
                if isinstance(head, Trailer):
                    self._count(head)
                    found.ended = head.ended
                    continue
                batch = pa.ipc.read_record_batch(pa.py_buffer(body), self.schema) if head.size else None
                found.heads.append(head)
                found.batches.append(batch)
                retry.succeeded()
        except LockstepError as error:
            self._failed(node, error, retry)
        return found

    def _stored_digests(self, node: int, bounds: Bounds, cuts: tuple[bytes, ...]) -> list[bytes]:
        wanted = msgspec.structs.replace(self._wanted(bounds), cuts=cuts)
        found: list[bytes] = []
        for head, body in answer_of(self._options, self._locations.of(node), wanted):
            if isinstance(head, Trailer):
                self._count(head)
            elif head.size and head.stored:
                found += pa.ipc.read_record_batch(pa.py_buffer(body), DIGESTS_SCHEMA).column(0).to_pylist()
        return found

    def _merged(
        self, part: SnapshotRange, bounds: Bounds, begun_in: bytes, until: bytes
    ) -> Generator[pa.RecordBatch, None, tuple[Bounds, bytes]]:
        """Rows before the key `until` at the least, all without one; then where reading goes on, and in
        which partition."""
        reader, retry, whole = self._reader(begun_in), Retry(), bounds
        while bounds:
            nodes = self._chosen(part)
            sources = [Source(node, self.stored(node, bounds)) for node in nodes]
            try:
                for pairs, last in union(sources):
                    yield from reader.feed(pairs)
                    if self._has_enough():
                        return (), b""
                    if until and reader.next_key >= until:
                        return left_of(whole, reader.next_key), reader.begun
                    bounds = _from(bounds, last + b"\x00")
                    retry.succeeded()
                bounds = ()
            except SourceFailed as failure:
                self._failed(failure.node, failure.error, retry)
            finally:
                for source in sources:
                    source.close()
        yield from reader.finish()
        return (), b""

    def stored(self, node: int, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        """What a node stores between keys."""
        rows_max = self._left()
        while bounds:
            wanted = self._wanted(bounds, fragments=True, rows_max=rows_max)
            # Those may not have been enough: there are deletions, and several writes of one row.
            rows_max *= _MORE
            for head, body in answer_of(self._options, self._locations.of(node), wanted):
                if isinstance(head, Trailer):
                    self._count(head)
                    bounds = () if head.ended else bounds
                    continue
                bounds = _from(bounds, head.next_key)
                yield pa.ipc.read_record_batch(pa.py_buffer(body), STORED_SCHEMA)


class _Compared(msgspec.Struct):
    """An answer of one replica; its first `alike` batches are of what the others store too."""

    heads: list[BatchHead]
    batches: list[pa.RecordBatch | None]
    alike: int
    ended: bool

    @property
    def unlike_until(self) -> bytes:
        """Where the first batch that is not ends; nothing: where all does."""
        is_last = self.alike == len(self.heads) - 1
        return b"" if is_last and self.ended else self.heads[self.alike].next_key


#: Of nodes of an earlier release, which tell no digests.
_NOT_TOLD: Final = _Compared([], [], -1, False)


class _Place(NamedTuple):
    """What is read of a place: rows between keys, with what heads their partition where it is not between
    them."""

    bounds: Bounds
    head: Bounds = ()


class _Elsewhere(StorageError):
    """A node cannot read what it has, or refuses: another one may do better."""

    retriable = True


def left_of(bounds: Bounds, next_key: bytes) -> Bounds:
    """What is still to be read, from a key on; with it what is of the whole partition that the key lies
    in."""
    if not next_key:
        return bounds
    rest = _from(bounds, next_key)
    prefix = partition_of(next_key)
    if not rest or not prefix or next_key[len(prefix) :][:1] > keys.KIND_ROW:
        return rest
    head = (prefix, min(next_key, prefix + keys.KIND_ROW))
    is_inside = any(lower <= prefix and prefix < upper for lower, upper in bounds)
    return (head, *rest) if is_inside and head[0] < head[1] else rest


def _before(bounds: Bounds, key: bytes) -> Bounds:
    return tuple((lower, min(key, upper)) for lower, upper in bounds if lower < key)


def _from(bounds: Bounds, key: bytes) -> Bounds:
    return tuple((max(lower, key), upper) for lower, upper in bounds if upper > key)


def slices_of(snapshot: Snapshot, selection: Selection | None) -> list[Slice]:
    """Of the snapshot's table; none, when the selection takes all rows of its partitions."""
    if selection is None or not selection.chooses_rows:
        return []
    columns, kinds = snapshot.table.table.clustering, snapshot.table.kinds
    return selection.slices(
        [kinds[column.name] for column in columns], [column.descending for column in columns]
    )


def requests(places: Sequence[_Place]) -> Iterator[Bounds]:
    """What is asked for at once: bounds in order. What heads a partition comes with all that is asked for of
    its rows."""
    asked: list[tuple[bytes, bytes]] = []
    size = 0
    for place in sorted(places, key=lambda one: (one.head or one.bounds)[0]):
        head_size = _size(place.head)
        for at, bounds in enumerate(place.bounds):
            if asked and (size + head_size + _size((bounds,)) > _REQUEST_BYTES or len(asked) >= _BOUNDS_MAX):
                yield tuple(asked)
                asked, size = [], 0
            if place.head and (not at or not asked):
                asked += place.head
                size += head_size
            asked.append(bounds)
            size += _size((bounds,))
    if asked:
        yield tuple(asked)


def _size(bounds: Bounds) -> int:
    return sum(len(lower) + len(upper) for lower, upper in bounds)


def answer_of(
    options: Options, location: tuple[str, int], wanted: RowsWanted
) -> Iterator[tuple[BatchHead | Trailer, Any]]:
    """Batches as (head, body), then (trailer, nothing). PeerUnreachable when the connection breaks,
    ProtocolViolation when it is not what was sent, and what the node refuses with."""
    try:
        with _connected(options, location) as connection:
            connection.sendall(framed(wanted))
            tally = Tally()
            while True:
                head = _head(connection)
                if isinstance(head, Refusal):
                    raise _refused(wanted, head)
                if isinstance(head, BatchHead):
                    body = received(connection, head.size)
                    tally.add(head, body)
                    yield head, body
                    continue
                told = tally.trailer(ended=head.ended)
                if (head.batches, head.rows, head.digest) != (told.batches, told.rows, told.digest):
                    raise ProtocolViolation(
                        f"what {location[0]} sent of read session {wanted.session} is not what came"
                    )
                yield head, b""
                return
    except OSError as error:
        raise PeerUnreachable(f"reading from {location[0]}:{location[1]} failed: {error}") from error


def _refused(wanted: RowsWanted, refusal: Refusal) -> LockstepError:
    if refusal.expired:
        return Expired(wanted.session)
    return InvalidRequest(refusal.message) if refusal.wrong else _Elsewhere(refusal.message)


def _connected(options: Options, location: tuple[str, int]) -> socket.socket:
    connection = socket.socket(socket.AF_INET6 if ":" in location[0] else socket.AF_INET)
    try:
        connection.settimeout(options.timeout_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        connection.connect(location)
        return encrypted(connection, options.ca) if options.ca else connection
    except OSError:
        connection.close()
        raise


def received(connection: socket.socket, size: int) -> bytearray:
    """So many bytes. OSError when they do not come."""
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise ConnectionResetError("the other side closed the connection")
        at += count
    return data


def _head(connection: socket.socket) -> Any:
    size = HEAD_LENGTH.unpack(received(connection, HEAD_LENGTH.size))[0]
    if size > HEAD_BYTES_MAX:
        raise ProtocolViolation(f"a head of {size} bytes")
    try:
        return HEAD.decode(bytes(received(connection, size)))
    except UNREADABLE as error:
        raise ProtocolViolation(f"a head that cannot be read: {error}") from None
