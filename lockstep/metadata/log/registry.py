"""Which transformation an entry's kind number means, which parts the metadata has, which versions of the log
there are, and who can read which.

A node states with its directory entry the newest version of the log that it can read. A kind that is newer
than what every node of the cluster can read is not accepted into the log, and a node that cannot read what
may be in the log is not accepted into the cluster; so all nodes can be upgraded one after another.

Invariant: kind numbers are stable for ever and never reused. Each room defines its own transformations and
parts; the node joins their tables into one registry. The lowest version of the nodes that have not left never
goes down.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

from lockstep.metadata.cluster import PARTS, ClusterMetadata
from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.part import Part, Registered
from lockstep.values import codec
from lockstep.values.errors import CannotApply, VersionMismatch


class EntryKind(enum.IntEnum):
    INITIALIZE = 1
    REGISTER = 2
    SCHEMA_CHANGE = 3
    PREPARE_OPERATION = 4
    ADVANCE_OPERATION = 5
    CANCEL_OPERATION = 6
    UPDATE_NODE = 7
    SET_EXTENSION = 8
    SNAPSHOT = 9
    TRUNCATE_LOG = 10
    PREPARE_MEMBERSHIP = 11
    ADVANCE_MEMBERSHIP = 12
    CANCEL_MEMBERSHIP = 13
    SET_SERVICE = 14
    FORCE_REMOVE = 15
    MARK_REPAIRED = 16
    ENQUEUE_REQUEST = 20
    CANCEL_REQUEST = 21
    FAIL_REQUEST = 22
    EXCLUDE_NODES = 23
    INCLUDE_NODES = 24
    ENABLE_FEATURES = 30
    BEGIN_REPAIR = 34
    END_REPAIR = 35
    RECORD_UNDELIVERED = 36
    ADVANCE_TRANSITIONS = 37
    BEGIN_MOVES = 38
    SET_BALANCING = 39
    DECIDE_RESIZES = 40
    ADVANCE_RESIZE = 41
    MIGRATE_KEYSPACE = 42
    ASK_RESIZE = 43
    BEGIN_LOAD = 49
    COMMIT_LOAD = 50
    END_LOAD = 51
    REPAIR_STREAMS = 46
    PUBLISH_GENERATIONS = 52
    ADVANCE_CAPTURED = 45
    CHANGE_CAPTURED = 47
    PUBLISH_STREAMS = 44
    ROLE_CHANGE = 31
    ROLE_MEMBERSHIP = 32
    PERMISSIONS = 33
    RESET_CLUSTER = 70
    COUNT_MOVED = 48
    PLACE_MANAGEMENT = 71
    RESET_MANAGEMENT = 72
    FOUND_RING = 60
    END_RING = 61
    BEGIN_UPGRADE = 62
    BUILD_LOG = 63
    ABORT_UPGRADE = 64


class Transformation(Protocol):
    """A frozen msgspec.Struct: the body of an entry."""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        """The next value's parts (epoch, hash and ids are set by the caller); raises errors.Rejected."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A transformation that the leader completes before it judges it, from the tip's value alone."""

    def prepared(self, cluster: ClusterMetadata) -> Transformation: ...


class Registry:
    """Kind number -> transformation type, each with one decoder.

    `since` tells of each kind the version of the log since which it is there; 1 when it tells nothing.
    `version` is said to be the newest that can be read, instead of what the kinds tell. `parts` are those of
    rooms above this one, `unions` the structs that they put where this room names a protocol.
    """

    def __init__(
        self,
        *tables: Mapping[int, type[Any]],
        since: Mapping[int, int] | None = None,
        version: int | None = None,
        parts: Sequence[Part[Any]] = (),
        unions: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        self.parts = Registered(PARTS, parts, unions=unions)
        self._since = dict(since or {})
        self._version = version
        self._decoders: dict[int, codec.Decoder[Any]] = {}
        self._kinds: dict[type[Any], int] = {}
        self._types: dict[int, type[Any]] = {}
        #: Of the kinds that were asked about.
        self._prepared: dict[int, bool] = {}
        for table in tables:
            for kind in sorted(table):
                assert kind not in self._decoders, f"kind {kind} is registered twice"
                self._decoders[kind] = codec.decoder(table[kind], unions)
                self._kinds[table[kind]] = kind
                self._types[kind] = table[kind]

    @property
    def version(self) -> int:
        """The newest version of the log that can be read with these kinds."""
        if self._version is not None:
            return self._version
        return max((self.since(kind) for kind in self._decoders), default=1)

    def since(self, kind: int) -> int:
        """The first version of the log that has this kind."""
        return self._since.get(kind, 1)

    def kind_of(self, transformation: Transformation) -> int:
        """The kind number of a transformation; KeyError when its type is not registered."""
        return self._kinds[type(transformation)]

    def is_prepared(self, kind: int) -> bool:
        """Whether transformations of this kind are Prepared."""
        known = self._prepared.get(kind)
        if known is None:
            known = self._prepared[kind] = kind in self._types and issubclass(self._types[kind], Prepared)
        return known

    def encode(self, transformation: Transformation) -> tuple[int, bytes]:
        """(kind, body) for a new entry."""
        return self.kind_of(transformation), codec.encode(transformation)

    def decode(self, kind: int, body: bytes) -> Transformation:
        """Raises CannotApply for a kind or body this version does not know."""
        decode = self._decoders.get(kind)
        if decode is None:
            raise CannotApply(f"entry kind {kind} is not known to this version", hint="upgrade this node")
        try:
            transformation: Transformation = decode.decode(body)
        except codec.UNREADABLE as problem:
            raise CannotApply(f"the body of an entry of kind {kind} cannot be read: {problem}") from problem
        return transformation


#: Whoever reads the log at all reads this one.
FIRST_VERSION: Final = 1
#: The newest version of the log that this code reads and writes.
LOG_VERSION: Final = 1
#: The version since which there is a kind; a new kind comes with a new version.
SINCE: Final[Mapping[int, int]] = {kind.value: 1 for kind in EntryKind}
assert max(SINCE.values()) == LOG_VERSION, "the newest kinds are of the newest version"


def lowest_version(directory: Directory) -> int:
    """What every node that has not left can read; 0 while there is none."""
    versions = [node.log_version for node in directory.nodes if node.state is not NodeState.LEFT]
    return min(versions, default=0)


def refuse_newer_kind(directory: Directory, kind: int, since: int) -> None:
    """Raises VersionMismatch when not every node can read entries of a kind that is there since `since`."""
    if since == FIRST_VERSION:
        return
    lowest = lowest_version(directory)
    if lowest and since > lowest:
        behind = [
            str(node.id)
            for node in directory.nodes
            if node.log_version < since and node.state is not NodeState.LEFT
        ]
        assert behind, "the lowest version is that of a node"
        raise VersionMismatch(
            f"entries of kind {kind} need log version {since}; nodes {', '.join(behind)} cannot read them",
            hint="upgrade these nodes first",
        )


def refuse_older_node(directory: Directory, version: int) -> None:
    """Raises VersionMismatch when a node that reads up to `version` cannot read what may be in the log."""
    lowest = lowest_version(directory)
    if version < lowest:
        raise VersionMismatch(
            f"this node reads the log up to version {version}, and the cluster writes version {lowest}",
            hint="upgrade this node",
        )
