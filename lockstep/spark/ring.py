"""What a data job knows of the ring, and what a read is divided into.

Invariant: everything here is read from the cluster when it is needed and is only a hint for whom to ask: a
request to a host that no longer holds a range is answered all the same, by way of the ones that do.
Partitions name tokens and keys only, never hosts, so a plan that Spark keeps is right whatever the ring looks
like when it runs; together they cover every row exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lockstep.placement.strategies import NETWORK_TOPOLOGY, SIMPLE, Owner, compute
from lockstep.schema.model import Keyspace, Replication, UserType
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in, types_used
from lockstep.spark.cql_client import ConnectionPool, CqlConnection, Endpoint
from lockstep.spark.snapshots import Snapshot
from lockstep.values.errors import ConfigurationError, PeerError, PeerUnreachable
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

Answer = TypeVar("Answer")


class Host(msgspec.Struct, frozen=True):
    address: str
    dc: str
    rack: str
    tokens: tuple[int, ...]


class Ring(msgspec.Struct, frozen=True):
    """`ranges` are sorted and cover the ring; each has the addresses of its replicas, primary first."""

    hosts: tuple[Host, ...]
    ranges: tuple[tuple[Range, tuple[str, ...]], ...]

    def replicas(self, token: int) -> tuple[str, ...]:
        """Replicas of the range that `token` lies in."""
        return next((nodes for part, nodes in self.ranges if part.contains(token)), ())


class TableColumn(msgspec.Struct, frozen=True):
    """`kind` is partition_key, clustering, static or regular; `type` is its CQL text, `user_types` what it
    names that is not built in."""

    name: str
    kind: str
    position: int
    type: str
    user_types: tuple[UserType, ...] = ()

    @property
    def cql_type(self) -> CqlType:
        return type_in(_space("", self.user_types), self.type)


class TableShape(msgspec.Struct, frozen=True):
    """Columns in the order of `SELECT *`: partition key, clustering, then the others by name."""

    keyspace: str
    table: str
    columns: tuple[TableColumn, ...]

    @property
    def partition_key(self) -> tuple[TableColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "partition_key")

    @property
    def clustering(self) -> tuple[TableColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "clustering")

    @property
    def key(self) -> tuple[TableColumn, ...]:
        return tuple(column for column in self.columns if column.kind in ("partition_key", "clustering"))

    def column(self, name: str) -> TableColumn:
        """ConfigurationError when there is no such column."""
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise ConfigurationError(
            f"table {self.keyspace}.{self.table} has no column {name}", hint=f"its columns: {known}"
        )


def quoted(name: str) -> str:
    """A name as CQL reads it whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def ask_any(
    pool: ConnectionPool,
    endpoints: Sequence[Endpoint],
    timeout_s: float,
    question: Callable[[CqlConnection], Answer],
) -> Answer:
    """`question` put to the first host that answers. Raises PeerUnreachable when none does."""
    failures: list[str] = []
    for endpoint in endpoints:
        try:
            connection = pool.take(endpoint, timeout_s)
        except PeerError as error:
            failures.append(error.message)
            continue
        try:
            return question(connection)
        except PeerError as error:
            failures.append(error.message)
        finally:
            pool.give_back(connection)
    raise PeerUnreachable(
        f"none of the hosts answers: {'; '.join(failures)}", hint="check the options hosts and port"
    )


def read_ring(connection: CqlConnection, keyspace: str) -> Ring:
    """The ring as that host sees it. ConfigurationError when there is no such keyspace."""
    rows = connection.query("SELECT rpc_address, data_center, rack, tokens FROM system.local")
    rows += connection.query("SELECT rpc_address, data_center, rack, tokens FROM system.peers")
    hosts = tuple(sorted((_host(row) for row in rows if row["tokens"]), key=lambda host: host.address))
    owners = [Owner(NodeId(index), host.dc, host.rack, host.tokens) for index, host in enumerate(hosts)]
    placed = compute(_replication(connection, keyspace), owners)
    return Ring(hosts, tuple((part, tuple(hosts[node].address for node in nodes)) for part, nodes in placed))


def read_table(connection: CqlConnection, keyspace: str, table: str) -> TableShape:
    """The table's columns. ConfigurationError when there is no such table."""
    rows = connection.query(
        "SELECT column_name, kind, position, type FROM system_schema.columns "
        "WHERE keyspace_name = ? AND table_name = ?",
        (keyspace.encode(), table.encode()),
    )
    if not rows:
        raise ConfigurationError(
            f"there is no table {keyspace}.{table}",
            hint="names are case-sensitive and stand without quotes",
        )
    space = _space(keyspace, _user_types(connection, keyspace))
    columns = [
        TableColumn(
            str(row["column_name"]),
            str(row["kind"]),
            int(str(row["position"])),
            str(row["type"]),
            types_used(space, [str(row["type"])]),
        )
        for row in rows
    ]
    order = {"partition_key": 0, "clustering": 1}
    columns.sort(key=lambda column: (order.get(column.kind, 2), column.position, column.name))
    return TableShape(keyspace, table, tuple(columns))


def _space(keyspace: str, user_types: tuple[UserType, ...]) -> Keyspace:
    """A keyspace of which nothing but its types matters."""
    return Keyspace(keyspace, Replication(SIMPLE, ()), types=user_types)


def _user_types(connection: CqlConnection, keyspace: str) -> tuple[UserType, ...]:
    rows = connection.query(
        "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = ?",
        (keyspace.encode(),),
    )
    return tuple(
        UserType(str(row["type_name"]), _texts(row["field_names"]), _texts(row["field_types"]))
        for row in rows
    )


def _texts(values: object) -> tuple[str, ...]:
    assert isinstance(values, list)
    return tuple(str(value) for value in values)


def _host(row: dict[str, object]) -> Host:
    tokens = row["tokens"]
    assert isinstance(tokens, list)
    return Host(
        str(row["rpc_address"]),
        str(row["data_center"]),
        str(row["rack"]),
        tuple(sorted(int(token) for token in tokens)),
    )


def _replication(connection: CqlConnection, keyspace: str) -> Replication:
    rows = connection.query(
        "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", (keyspace.encode(),)
    )
    if not rows:
        raise ConfigurationError(f"there is no keyspace {keyspace}")
    pairs = rows[0]["replication"]
    assert isinstance(pairs, list)
    settings = {str(name): str(value) for name, value in pairs}
    strategy = settings.pop("class", "").rpartition(".")[2]
    if strategy == SIMPLE:
        return Replication(SIMPLE, (("", int(settings["replication_factor"])),))
    if strategy == NETWORK_TOPOLOGY:
        factors = sorted((dc, int(factor)) for dc, factor in settings.items() if factor.isdigit())
        return Replication(NETWORK_TOPOLOGY, tuple(factors))
    raise ConfigurationError(f"keyspace {keyspace} is local to each node and cannot be read as a whole")


#: Tasks a host gets when the user names no number: enough to balance, few enough that the fixed cost of a
#: task (some 40 ms) does not show.
TASKS_PER_HOST: Final = 4


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Token ranges (left, right]; `turn` spreads first requests over replicas."""

    turn: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class KeyPartition(InputPartition):
    """Partition keys, each a tuple of serialised columns."""

    turn: int
    keys: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True)
class SnapshotPartition(InputPartition):
    """A part of a snapshot, which is encoded."""

    snapshot: bytes
    part: RangePartition | KeyPartition


def ring_of(snapshot: Snapshot) -> Ring:
    """A snapshot's nodes and ranges as a ring, whose addresses are the nodes' ids."""
    used = sorted({node for part in snapshot.ranges for node in part.nodes})
    hosts = tuple(Host(str(node.id), node.dc, "", ()) for node in snapshot.nodes if node.id in used)
    return Ring(
        hosts,
        tuple((Range(part.left, part.right), tuple(map(str, part.nodes))) for part in snapshot.ranges),
    )


def limited(
    parts: Sequence[RangePartition | KeyPartition], limit: int
) -> Sequence[RangePartition | KeyPartition]:
    """With a limit of rows all is one part: how many others have is not known to a task."""
    if not limit or len(parts) < 2:
        return parts
    ranges = [piece for part in parts if isinstance(part, RangePartition) for piece in part.ranges]
    if ranges:
        return [RangePartition(0, tuple(ranges))]
    return [
        KeyPartition(0, tuple(key for part in parts if isinstance(part, KeyPartition) for key in part.keys))
    ]


def first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """At most so many rows; 0: all."""
    left = limit
    for batch in batches:
        if not limit:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def range_partitions(ring: Ring, splits_per_range: int) -> list[RangePartition]:
    """One partition a sub-range; with `splits_per_range` 0, TASKS_PER_HOST groups of ranges a host."""
    if splits_per_range:
        pieces = [piece for part, _ in ring.ranges for piece in split_range(part, splits_per_range)]
        groups = [[piece] for piece in pieces]
    else:
        groups = _grouped(ring)
    return [
        RangePartition(turn, tuple((piece.left, piece.right) for piece in group))
        for turn, group in enumerate(groups)
    ]


def within(parts: Sequence[RangePartition], wanted: Sequence[tuple[int, int]]) -> list[RangePartition]:
    """What of the partitions lies in the wanted ranges; all, when there are none."""
    if not wanted:
        return list(parts)
    cut = [
        RangePartition(
            part.turn,
            tuple(
                (max(left, low), min(right, high))
                for left, right in part.ranges
                for low, high in wanted
                if max(left, low) < min(right, high)
            ),
        )
        for part in parts
    ]
    return [part for part in cut if part.ranges]


def split_range(whole: Range, parts: int) -> list[Range]:
    """At most `parts` adjacent ranges of equal width that cover `whole`."""
    width = whole.right - whole.left
    cuts = dict.fromkeys(whole.left + width * step // parts for step in range(parts + 1))
    return [Range(left, right) for left, right in itertools.pairwise(cuts)]


def key_partitions(keys: Sequence[tuple[bytes, ...]], hosts: int) -> list[KeyPartition]:
    """The keys, dealt to at most TASKS_PER_HOST partitions a host; none for no keys."""
    count = min(len(keys), TASKS_PER_HOST * max(hosts, 1))
    return [KeyPartition(turn, tuple(keys[turn::count])) for turn in range(count)]


def _grouped(ring: Ring) -> list[list[Range]]:
    """Ranges by primary replica, each replica's in TASKS_PER_HOST runs of similar width."""
    wanted = TASKS_PER_HOST * max(len(ring.hosts), 1)
    splits = -(-wanted // len(ring.ranges))
    by_primary: dict[str, list[Range]] = {}
    for part, replicas in ring.ranges:
        by_primary.setdefault(replicas[0] if replicas else "", []).extend(split_range(part, splits))
    groups: list[list[Range]] = []
    for pieces in by_primary.values():
        dealt: list[list[Range]] = [[] for _ in range(min(TASKS_PER_HOST, len(pieces)))]
        for piece in sorted(pieces, key=lambda piece: piece.left - piece.right):
            min(dealt, key=_width).append(piece)
        groups += [sorted(group) for group in dealt]
    return groups


def _width(group: Iterable[Range]) -> int:
    return sum(piece.right - piece.left for piece in group)
