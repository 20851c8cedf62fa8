"""Reading a snapshot: rows of one replica as its readers make them, or what several replicas store merged
here.

Invariant: a row is given once. An answer that breaks off counts up to the last batch that came whole, and
reading goes on behind it at any replica that the snapshot names; an answer whose trailer does not match is an
error. Where more than one replica is wanted their fragments are merged as if one had stored all of them, so
the rules are those of any read. Once too few replicas have the session, the snapshot has expired.
"""

from __future__ import annotations

import bisect
import socket
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from lockstep.scans.content_reading import STORED_SCHEMA, pairs_of
from lockstep.scans.messages import (
    HEAD,
    HEAD_BYTES_MAX,
    HEAD_LENGTH,
    BatchHead,
    Bounds,
    Refusal,
    RowsWanted,
    Tally,
    framed,
)
from lockstep.scans.session_files import Expired
from lockstep.scans.table_reader import TableReader, partition_of
from lockstep.spark.cql_client import encrypted
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.snapshots import Locations, Snapshot, SnapshotRange, pieces_of
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    PeerUnreachable,
    ProtocolViolation,
    StorageError,
)
from lockstep.values.tokens import Range

#: Of one answer: some batches, so that a process beside the node is soon there for the next reader.
_ANSWER_BYTES: Final = 64 * 1024 * 1024
#: Room for what is sent while the reader works on what it has.
_BUFFER_BYTES: Final = 4 * 1024 * 1024


class SnapshotScan:
    """Of one task. `columns` are names in the order of the batches."""

    def __init__(self, options: Options, snapshot: Snapshot, columns: Sequence[str], turn: int = 0) -> None:
        self._options = options
        self._snapshot = snapshot
        self._columns = tuple(columns)
        self._turn = turn
        self._locations = Locations(options, snapshot)
        self._gone: dict[int, None] = {}
        self.schema = self._reader().schema

    def _reader(self) -> TableReader:
        snapshot = self._snapshot
        return TableReader(snapshot.table, self._columns, snapshot.now_s, self._options.decimal_scale)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Rows of ranges of tokens (left, right]."""
        table_id = self._snapshot.table.table.id
        pieces = [piece for left, right in ranges for piece in pieces_of(self._snapshot, left, right)]
        return self._by_replicas([(part, keys.token_bounds(table_id, Range(*at))) for *at, part in pieces])

    def keys(self, wanted: Sequence[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
        """Rows of partitions, by (token, key)."""
        table_id = self._snapshot.table.table.id
        prefixes = [(token, keys.partition_prefix(table_id, token, key)) for token, key in wanted]
        return self.between([(token, (prefix, keys.partition_end(prefix))) for token, prefix in prefixes])

    def between(self, wanted: Sequence[tuple[int, tuple[bytes, bytes]]]) -> Iterator[pa.RecordBatch]:
        """Rows between keys of the store, by (token of their partition, keys)."""
        return self._by_replicas(
            [
                (next(part for part in self._snapshot.ranges if part.left < token <= part.right), bounds)
                for token, bounds in wanted
            ]
        )

    def _by_replicas(
        self, pieces: Sequence[tuple[SnapshotRange, tuple[bytes, bytes]]]
    ) -> Iterator[pa.RecordBatch]:
        """What has the same replicas is read in one go."""
        groups: dict[tuple[tuple[int, ...], int], list[tuple[bytes, bytes]]] = {}
        for part, bound in pieces:
            groups.setdefault((tuple(sorted(part.nodes)), part.wanted), []).append(bound)
        for (nodes, wanted), bounds in groups.items():
            yield from self._read(SnapshotRange(0, 0, nodes, wanted), tuple(sorted(bounds)))

    def _read(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        if part.wanted == 1:
            return self._one(part, bounds)
        return self._merged(part, bounds)

    # -- one replica ----------------------------------------------------------------------------------

    def _one(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        begun_in, retry = b"", Retry()
        while bounds:
            node = self._chosen(part)[0]
            wanted = self._wanted(bounds, begun_in)
            try:
                for head, body in answer_of(self._options, self._locations.of(node), wanted):
                    if head is None:
                        bounds = () if body else bounds
                        continue
                    bounds, begun_in = left_of(bounds, head.next_key), head.begun_in
                    retry.succeeded()
                    if head.size:
                        yield pa.ipc.read_record_batch(pa.py_buffer(body), self.schema)
            except LockstepError as error:
                self._failed(node, error, retry)

    def _wanted(self, bounds: Bounds, begun_in: bytes = b"", *, fragments: bool = False) -> RowsWanted:
        snapshot = self._snapshot
        return RowsWanted(
            snapshot.session,
            snapshot.secret,
            bounds,
            _ANSWER_BYTES,
            self._columns,
            snapshot.now_s,
            self._options.decimal_scale,
            True,
            begun_in,
            fragments,
        )

    def _chosen(self, part: SnapshotRange) -> list[int]:
        """Expired when fewer nodes than wanted have the session."""
        found = [node for node in self._locations.order(part, self._turn) if node not in self._gone]
        if len(found) < part.wanted:
            raise Expired(self._snapshot.session)
        return found[: part.wanted]

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

    def _merged(self, part: SnapshotRange, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        reader, retry = self._reader(), Retry()
        while bounds:
            nodes = self._chosen(part)
            sources = [Source(node, self.stored(node, bounds)) for node in nodes]
            try:
                for pairs, last in union(sources):
                    yield from reader.feed(pairs)
                    bounds = _from(bounds, last + b"\x00")
                    retry.succeeded()
                bounds = ()
            except _SourceFailed as failure:
                self._failed(failure.node, failure.error, retry)
            finally:
                for source in sources:
                    source.close()
        yield from reader.finish()

    def stored(self, node: int, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        """What a node stores between keys."""
        while bounds:
            wanted = self._wanted(bounds, fragments=True)
            for head, body in answer_of(self._options, self._locations.of(node), wanted):
                if head is None:
                    bounds = () if body else bounds
                    continue
                bounds = _from(bounds, head.next_key)
                yield pa.ipc.read_record_batch(pa.py_buffer(body), STORED_SCHEMA)


class _Elsewhere(StorageError):
    """A node cannot read what it has, or refuses: another one may do better."""

    retriable = True


class _SourceFailed(Exception):
    def __init__(self, node: int, error: LockstepError) -> None:
        super().__init__(error.message)
        self.node = node
        self.error = error


class Source:
    """What one replica stores, batch by batch."""

    def __init__(self, node: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._node = node
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        #: What is left of the batch; None while nothing was taken of it.
        self._left: list[Pair] | None = None
        self.ended = False

    def fill(self) -> None:
        """Have a batch, unless it has ended."""
        try:
            while self.batch is None and not self.ended:
                batch = next(self._batches, None)
                self.ended = batch is None
                self.batch = batch if batch is not None and batch.num_rows else None
        except LockstepError as error:
            raise _SourceFailed(self._node, error) from error

    @property
    def is_whole(self) -> bool:
        return self.batch is not None and self._left is None

    @property
    def pairs(self) -> list[Pair]:
        if self._left is None:
            self._left = [] if self.batch is None else pairs_of(self.batch)
        return self._left

    def take(self, last: bytes) -> list[Pair]:
        """Those up to a key, which is in the batch or behind it."""
        pairs = self.pairs
        at = bisect.bisect_right(pairs, last, key=itemgetter(0))
        self._left = pairs[at:]
        if at == len(pairs):
            self.taken()
        return pairs[:at]

    def taken(self) -> None:
        self.batch = self._left = None

    def close(self) -> None:
        close: Any = getattr(self._batches, "close", None)
        if close is not None:
            close()


def union(sources: Sequence[Source]) -> Iterator[tuple[list[Pair], bytes]]:
    """(what any of the sources has, in key order, the key up to which it is known)."""
    while True:
        for source in sources:
            source.fill()
        full = [source for source in sources if source.batch is not None]
        if not full:
            return
        first = full[0]
        alike = len(full) == len(sources) and all(source.is_whole for source in full)
        if alike and all(source.batch.equals(first.batch) for source in full[1:] if source.batch is not None):
            pairs = first.pairs
            for source in full:
                source.taken()
            yield pairs, pairs[-1][0]
            continue
        last = min(source.pairs[-1][0] for source in full)
        portions = [source.take(last) for source in full]
        # Fragments of one write are the same everywhere.
        yield sorted(set().union(*portions)), last


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


def _from(bounds: Bounds, key: bytes) -> Bounds:
    return tuple((max(lower, key), upper) for lower, upper in bounds if upper > key)


def answer_of(
    options: Options, location: tuple[str, int], wanted: RowsWanted
) -> Iterator[tuple[BatchHead | None, Any]]:
    """Batches as (head, body), then (None, whether that was all). PeerUnreachable when the connection breaks,
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
                if head != tally.trailer(ended=head.ended):
                    raise ProtocolViolation(
                        f"what {location[0]} sent of read session {wanted.session} is not what came"
                    )
                yield None, head.ended
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
