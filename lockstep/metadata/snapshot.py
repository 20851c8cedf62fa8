"""A metadata value as a stream of bytes in bounded pieces, and back.

The stream is a sequence of items, each a length, a section number and the section's canonical bytes: one
item for the small fields and one for each node, each few tables, each ring and so on, so that neither side
ever holds the value twice. Pieces are cuts of the stream and carry no meaning of their own.

Invariant: equal values give equal streams on every node, and a stream decodes to a value equal to the encoded
one or is refused. Pieces are at most PIECE_BYTES_MAX long; where the reader's pieces end does not matter.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from lockstep.metadata.cdc import Generation
from lockstep.metadata.cluster import ClusterMetadata, Identity
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.directory import Directory, NodeInfo
from lockstep.metadata.exclusions import Exclusion
from lockstep.metadata.extensions import extensions_of
from lockstep.metadata.feature_names import NO_FEATURES, FeatureState
from lockstep.metadata.operations import Lock, Operation, Session
from lockstep.metadata.recent_ids import RecentIds
from lockstep.metadata.repairs import Repair, Repairs, RepairState, TableRepairs
from lockstep.metadata.requests import Request, Requests
from lockstep.metadata.roles import Grant, Role, access_of
from lockstep.metadata.service import Service
from lockstep.placement.placements import PlacedRange, Placements, RingPlacement
from lockstep.schema.model import Replication, SchemaBuilder, SchemaImage
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import SNAPSHOT_ITEM_BYTES_MAX, SNAPSHOT_PIECE_BYTES_MAX

_ITEM = struct.Struct(">IB")
#: Elements of one item where single ones are small: their encoding blocks the loop for well below 1 ms.
_BUNDLED = 512
#: Tables of one item: some 20 KiB.
_BUNDLED_TABLES = 32


class Section(enum.IntEnum):
    """Numbers are stable for ever; sections come in this order."""

    HEAD = 1
    NODE = 2
    SCHEMA = 3
    RING = 4
    RANGES = 5
    OPERATION = 6
    LOCK = 7
    SESSION = 8
    RECENT_IDS = 9
    EXTENSION = 10
    REQUEST = 11
    EXCLUDED = 12
    DEGRADED = 13
    GENERATION = 14
    ROLE = 15
    GRANT = 16
    REPAIR = 17
    TABLE_REPAIRS = 18
    #: After all that may come.
    END = 255


class _Head(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    hash: bytes
    identity: Identity
    service: Service
    next_node_id: int
    next_operation_id: int
    recent_first_epoch: int
    next_request_id: int = 1
    features: FeatureState = NO_FEATURES
    next_repair_id: int = 1


def pieces(cluster: ClusterMetadata) -> Iterator[bytes]:
    """The value's canonical stream, cut into pieces of SNAPSHOT_PIECE_BYTES_MAX (the last is shorter)."""
    buffer = bytearray()
    count = 0
    for section, value in _items(cluster):
        data = codec.encode(value)
        buffer += _ITEM.pack(len(data), section)
        buffer += data
        count += 1
        while len(buffer) >= SNAPSHOT_PIECE_BYTES_MAX:
            yield bytes(buffer[:SNAPSHOT_PIECE_BYTES_MAX])
            del buffer[:SNAPSHOT_PIECE_BYTES_MAX]
    end = codec.encode(count)
    buffer += _ITEM.pack(len(end), Section.END) + end
    yield bytes(buffer)


def _items(cluster: ClusterMetadata) -> Iterator[tuple[Section, Any]]:
    yield (
        Section.HEAD,
        _Head(
            cluster.epoch,
            cluster.hash,
            cluster.identity,
            cluster.service,
            cluster.directory.next_node_id,
            cluster.next_operation_id,
            cluster.recent_ids.first_epoch,
            cluster.requests.next_id,
            cluster.features,
            cluster.repairs.next_id,
        ),
    )
    for node in cluster.directory.nodes:
        yield Section.NODE, node
    for image in cluster.schema.image_pieces(_BUNDLED_TABLES):
        yield Section.SCHEMA, image
    for ring in cluster.placements.rings:
        yield Section.RING, ring.replication
        for at in range(0, len(ring.ranges), _BUNDLED):
            yield Section.RANGES, ring.ranges[at : at + _BUNDLED]
    for operation in cluster.operations:
        yield Section.OPERATION, operation
    for lock in cluster.locks:
        yield Section.LOCK, lock
    for session in cluster.sessions:
        yield Section.SESSION, session
    listed = cluster.recent_ids.listed()
    for at in range(0, len(listed), _BUNDLED):
        yield Section.RECENT_IDS, listed[at : at + _BUNDLED]
    for named in cluster.extensions.items():
        yield Section.EXTENSION, named
    for request in (*cluster.requests.live, *cluster.requests.ended):
        yield Section.REQUEST, request
    for exclusion in cluster.excluded:
        yield Section.EXCLUDED, exclusion
    for degraded in cluster.degraded:
        yield Section.DEGRADED, degraded
    for generation in cluster.generations:
        yield Section.GENERATION, generation
    for role in cluster.access.listed_roles():
        yield Section.ROLE, role
    for grant in cluster.access.listed_grants():
        yield Section.GRANT, grant

    for repair in (*cluster.repairs.ended, *cluster.repairs.running):
        yield Section.REPAIR, repair
    for repaired in cluster.repairs.tables:
        yield Section.TABLE_REPAIRS, repaired


_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    Section.HEAD: codec.decoder(_Head),
    Section.NODE: codec.decoder(NodeInfo),
    Section.SCHEMA: codec.decoder(SchemaImage),
    Section.RING: codec.decoder(Replication),
    Section.RANGES: codec.decoder(tuple[PlacedRange, ...]),
    Section.OPERATION: codec.decoder(Operation),
    Section.LOCK: codec.decoder(Lock),
    Section.SESSION: codec.decoder(Session),
    Section.RECENT_IDS: codec.decoder(tuple[bytes, ...]),
    Section.EXTENSION: codec.decoder(tuple[str, bytes]),
    Section.REQUEST: codec.decoder(Request),
    Section.EXCLUDED: codec.decoder(Exclusion),
    Section.DEGRADED: codec.decoder(Degraded),
    Section.GENERATION: codec.decoder(Generation),
    Section.ROLE: codec.decoder(Role),
    Section.GRANT: codec.decoder(Grant),
    Section.REPAIR: codec.decoder(Repair),
    Section.TABLE_REPAIRS: codec.decoder(TableRepairs),
    Section.END: codec.decoder(int),
}
#: Sections whose items are in the order of the stream but belong to the item before them.
_INNER = {Section.RANGES: Section.RING}
#: What comes of joining parts that are each well formed and belong to no value.
_NO_VALUE = (AssertionError, ArithmeticError, LookupError, TypeError, ValueError)


class SnapshotDecoder:
    """Takes a stream in pieces of any size; `path` names it in errors.

    A refusal leaves the decoder unusable. `bytes_read` counts what was fed.
    """

    def __init__(self, path: str = "snapshot") -> None:
        self._path = path
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._schema = SchemaBuilder()
        self._has_schema = False
        self._parts: dict[int, list[Any]] = {section: [] for section in Section}
        self._section = 0
        self._count = 0
        self._ended = False
        self.bytes_read = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream; CorruptFile when they cannot belong to one."""
        self._buffer += piece
        self.bytes_read += len(piece)
        at, size = 0, len(self._buffer)
        while at + _ITEM.size <= size:
            length, section = _ITEM.unpack_from(self._buffer, at)
            if length > SNAPSHOT_ITEM_BYTES_MAX or section not in _DECODERS or self._ended:
                raise self._damaged("this is no item of a snapshot")
            start = at + _ITEM.size
            if start + length > size:
                break
            self._take(section, bytes(self._buffer[start : start + length]))
            at = start + length
        del self._buffer[:at]

    def finish(self) -> ClusterMetadata:
        """The value, once the whole stream was fed; CorruptFile when it was not, or is no valid value."""
        if not self._ended or self._buffer or self._head is None:
            raise self._damaged("the snapshot is not whole")
        if not self._has_schema:
            raise self._damaged("the schema is missing")
        try:
            cluster = self._joined(self._head)
            cluster.validate()
        except _NO_VALUE as broken:
            raise self._damaged(f"the value is not valid: {broken}") from broken
        return cluster

    def _joined(self, head: _Head) -> ClusterMetadata:
        parts = self._parts
        ids = tuple(entry_id for bundle in parts[Section.RECENT_IDS] for entry_id in bundle)
        return ClusterMetadata(
            epoch=head.epoch,
            hash=head.hash,
            identity=head.identity,
            directory=Directory(tuple(parts[Section.NODE]), head.next_node_id),
            schema=self._schema.schema(),
            placements=Placements(
                tuple(
                    RingPlacement(replication, tuple(placed for bundle in bundles for placed in bundle))
                    for replication, bundles in parts[Section.RING]
                )
            ),
            operations=tuple(parts[Section.OPERATION]),
            locks=tuple(parts[Section.LOCK]),
            sessions=tuple(parts[Section.SESSION]),
            service=head.service,
            next_operation_id=head.next_operation_id,
            recent_ids=RecentIds.from_listed(head.recent_first_epoch, ids),
            extensions=extensions_of(parts[Section.EXTENSION]),
            requests=Requests(
                tuple(request for request in parts[Section.REQUEST] if request.is_live),
                tuple(request for request in parts[Section.REQUEST] if not request.is_live),
                head.next_request_id,
            ),
            excluded=tuple(parts[Section.EXCLUDED]),
            degraded=tuple(parts[Section.DEGRADED]),
            features=head.features,
            generations=tuple(parts[Section.GENERATION]),
            repairs=Repairs(
                tuple(one for one in parts[Section.REPAIR] if one.state is RepairState.RUNNING),
                tuple(one for one in parts[Section.REPAIR] if one.state is not RepairState.RUNNING),
                tuple(parts[Section.TABLE_REPAIRS]),
                head.next_repair_id,
            ),
            access=access_of(parts[Section.ROLE], parts[Section.GRANT]),
        )

    def _take_schema(self, image: SchemaImage) -> None:
        try:
            self._schema.add(image)
        except KeyError as missing:
            raise self._damaged(f"a table's keyspace {missing} is missing") from missing
        except _NO_VALUE as broken:
            raise self._damaged(f"a piece of the schema is not valid: {broken}") from broken

    def _take(self, section: int, data: bytes) -> None:
        try:
            value = _DECODERS[section].decode(data)
        except codec.UNREADABLE as problem:
            raise self._damaged(f"section {section} cannot be read: {problem}") from problem
        outer = _INNER.get(Section(section))
        if (section == Section.HEAD) != (self._head is None):
            raise self._damaged("a snapshot has one head, at its beginning")
        if (outer or section) < self._section:
            raise self._damaged(f"section {section} follows section {self._section}")
        self._section = outer or section
        if section == Section.HEAD:
            self._head = value
        elif section == Section.SCHEMA:
            self._has_schema = True
            self._take_schema(value)
        elif section == Section.END:
            if value != self._count:
                raise self._damaged(f"{self._count} items are there, {value} were written")
            self._ended = True
        elif outer is not None:
            if not self._parts[outer]:
                raise self._damaged(f"section {section} has nothing to belong to")
            self._parts[outer][-1][1].append(value)
        elif section in _INNER.values():
            self._parts[section].append((value, []))
        else:
            self._parts[section].append(value)
        self._count += 1

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(self._path, self.bytes_read, why)
