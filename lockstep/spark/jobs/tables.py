"""Tables as jobs name and describe them: where a cluster is, `KEYSPACE.TABLE`, the CQL that makes one again.

Invariant: a description is read from the cluster at one moment, before any task runs, and says at which
epoch. A table that is made from a description has the columns, types and clustering order of the one
described.
"""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lockstep.metadata.loads import LoadState
from lockstep.schema.clustering import routing_key
from lockstep.schema.model import UserType
from lockstep.spark.columns import spark_type
from lockstep.spark.cql_client import CqlConnection, pool_of
from lockstep.spark.encoders import encoder
from lockstep.spark.jobs.running import given
from lockstep.spark.options import Options, parse_options
from lockstep.spark.ring import Ring, TableColumn, TableShape, ask_any, quoted, read_ring, read_table
from lockstep.values.errors import ConfigurationError, InvalidRequest, PreconditionError, Unauthorized
from lockstep.values.tokens import token_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


Answer = TypeVar("Answer")


class TableName(msgspec.Struct, frozen=True):
    keyspace: str
    table: str

    @property
    def text(self) -> str:
        return f"{self.keyspace}.{self.table}"

    @property
    def cql(self) -> str:
        return f"{quoted(self.keyspace)}.{quoted(self.table)}"


def table_name(text: str) -> TableName:
    """ConfigurationError when it is not KEYSPACE.TABLE."""
    keyspace, point, table = text.partition(".")
    if not keyspace or not point or not table:
        raise ConfigurationError(
            f"{text!r} is not KEYSPACE.TABLE", hint="names are case-sensitive and stand without quotes"
        )
    return TableName(keyspace, table)


class Access(msgspec.Struct, frozen=True):
    """How the nodes of one cluster are reached by CQL. `others`: more options of the format `lockstep`."""

    hosts: str = "127.0.0.1"
    port: int = 9042
    user: str = ""
    password: str = ""
    ca: str = ""
    others: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Access({self.hosts}:{self.port})"

    def options(self, name: TableName, **more: str) -> dict[str, str]:
        """For the format `lockstep`; what is not said is left out."""
        found = {
            "hosts": self.hosts,
            "port": str(self.port),
            "keyspace": name.keyspace,
            "table": name.table,
            "user": self.user,
            "password": self.password,
            "tlsCa": self.ca,
        }
        return given({**found, **dict(self.others), **more})

    def checked(self, name: TableName) -> Options:
        return parse_options(self.options(name))


class DescribedColumn(msgspec.Struct, frozen=True):
    """`kind` is partition_key, clustering, static or regular; `position` counts within the key."""

    name: str
    type: str
    kind: str
    position: int = -1
    descending: bool = False


class DescribedType(msgspec.Struct, frozen=True):
    """A user-defined type that a column uses."""

    name: str
    fields: tuple[tuple[str, str], ...]


class Described(msgspec.Struct, frozen=True):
    """`epoch` is that of the metadata when this was read; `cql` is what the cluster says makes the table.
    `dropped` tells of its columns when one of the same name was dropped last, as the cluster says it."""

    keyspace: str
    table: str
    columns: tuple[DescribedColumn, ...]
    types: tuple[DescribedType, ...] = ()
    epoch: int = 0
    cql: str = ""
    id: str = ""
    dropped: tuple[tuple[str, str], ...] = ()

    def key_names(self) -> list[str]:
        return [one.name for one in self.columns if one.kind in ("partition_key", "clustering")]

    def partition_key_names(self) -> list[str]:
        return [one.name for one in self.columns if one.kind == "partition_key"]

    def statements(self, name: TableName) -> list[str]:
        """CQL that makes the types and the table under another name."""
        made = [
            f"CREATE TYPE IF NOT EXISTS {quoted(name.keyspace)}.{quoted(one.name)} "
            f"({', '.join(f'{quoted(field)} {kind}' for field, kind in one.fields)})"
            for one in self.types
        ]
        columns = [
            f"{quoted(one.name)} {one.type}{' static' if one.kind == 'static' else ''}"
            for one in self.columns
        ]
        partition = ", ".join(quoted(key) for key in self.partition_key_names())
        clustering = [one for one in self.columns if one.kind == "clustering"]
        key = ", ".join([f"({partition})", *(quoted(one.name) for one in clustering)])
        order = ", ".join(f"{quoted(one.name)} {'DESC' if one.descending else 'ASC'}" for one in clustering)
        ordered = f" WITH CLUSTERING ORDER BY ({order})" if clustering else ""
        made.append(f"CREATE TABLE {name.cql} ({', '.join(columns)}, PRIMARY KEY ({key})){ordered}")
        return made


def describe(access: Access, name: TableName) -> Described:
    """What the table is now. ConfigurationError when there is none; PeerUnreachable."""
    return _asked(access, name, lambda connection: _described(connection, name))


def require_same(access: Access, name: TableName, described: Described, columns: Sequence[str]) -> None:
    """PreconditionError unless the table is the one described, has these columns since then and was not
    emptied. ConfigurationError when there is none."""
    now = describe(access, name)
    if _asked(access, name, lambda connection: _was_emptied(connection, name, described.epoch)):
        raise PreconditionError(f"table {name.text} was emptied while the job ran", hint="run it again")
    if now.id != described.id:
        raise PreconditionError(
            f"table {name.text} was dropped and made anew while the job ran", hint="run it again"
        )
    known = {one.name: one for one in now.columns}
    gone, before = dict(now.dropped), dict(described.dropped)
    for one in described.columns:
        if one.name in columns and (one != known.get(one.name) or gone.get(one.name) != before.get(one.name)):
            raise PreconditionError(
                f"column {one.name} of {name.text} was altered while the job ran", hint="run it again"
            )


def shape_of(access: Access, name: TableName) -> TableShape:
    """Its columns. ConfigurationError when there is no such table; PeerUnreachable."""
    return _asked(access, name, lambda connection: read_table(connection, name.keyspace, name.table))


def columns_of(described: Described) -> tuple[TableColumn, ...]:
    """The columns as readers and writers have them."""
    types = tuple(
        UserType(one.name, tuple(name for name, _ in one.fields), tuple(kind for _, kind in one.fields))
        for one in described.types
    )
    return tuple(TableColumn(one.name, one.kind, one.position, one.type, types) for one in described.columns)


def spark_schema(described: Described, names: Sequence[str], decimal_scale: int) -> StructType:
    """The columns of these names as Spark has them. InvalidRequest for a type that Spark has not."""
    from pyspark.sql.types import StructField, StructType

    known = {one.name: one for one in columns_of(described)}
    return StructType([StructField(name, spark_type(known[name].cql_type, decimal_scale)) for name in names])


def token_of_values(described: Described, key: Sequence[Any]) -> int:
    """The token of the partition that a row's key, as Spark has its values, lies in."""
    columns = [one for one in columns_of(described) if one.kind == "partition_key"]
    parts = [
        encoder(column.cql_type)(value) for column, value in zip(columns, key[: len(columns)], strict=True)
    ]
    return token_of(routing_key(parts))


def ring_of(access: Access, name: TableName) -> Ring:
    """Who holds which ranges of its keyspace, as one node sees it."""
    return _asked(access, name, lambda connection: read_ring(connection, name.keyspace))


def make(access: Access, name: TableName, described: Described) -> list[str]:
    """Make the table as it was described; what was done. AlreadyExists, or what the cluster refuses."""
    statements = described.statements(name)

    def run(connection: CqlConnection) -> list[str]:
        for statement in statements:
            connection.query(statement)
        return statements

    return _asked(access, name, run)


def frame(session: SparkSession, access: Access, name: TableName, **more: str) -> DataFrame:
    """The table as it is read; nothing is read yet."""
    return session.read.format("lockstep").options(**access.options(name, **more)).load()


def telling(frame: DataFrame, described: Described) -> DataFrame:
    """The frame without rows that tell nothing: those of a partition with static values and no rows, where
    none of these values are of the frame's columns."""
    from pyspark.sql import functions as f

    first = next((one.name for one in described.columns if one.kind == "clustering"), None)
    statics = [one.name for one in described.columns if one.kind == "static"]
    told = [name for name in statics if name in frame.columns]
    if first not in frame.columns or len(told) == len(statics):
        return frame
    some = [f.isnotnull(f.col(f"`{name}`")) for name in (first, *told)]
    return frame.where(functools.reduce(operator.or_, some))


def read_level(access: Access, name: TableName) -> str:
    """The consistency level that reads of it have."""
    return access.checked(name).consistency.name


def _asked(access: Access, name: TableName, question: Callable[[CqlConnection], Answer]) -> Answer:
    options = access.checked(name)
    return ask_any(pool_of(os.getpid()), options.endpoints, options.timeout_s, question)


def _described(connection: CqlConnection, name: TableName) -> Described:
    shape = read_table(connection, name.keyspace, name.table)
    rows = connection.query(
        "SELECT column_name, clustering_order FROM system_schema.columns "
        "WHERE keyspace_name = ? AND table_name = ?",
        (name.keyspace.encode(), name.table.encode()),
    )
    descending = {str(row["column_name"]): row["clustering_order"] == "desc" for row in rows}
    columns = tuple(
        DescribedColumn(one.name, one.type, one.kind, one.position, descending.get(one.name, False))
        for one in shape.columns
    )
    # Of the node that is asked its own, however late gossip is.
    nodes = connection.query("SELECT acknowledged_epoch FROM system_views.cluster_metadata_directory")
    told = connection.query(f"DESCRIBE TABLE {name.cql}")
    of_table = "WHERE keyspace_name = ? AND table_name = ?", (name.keyspace.encode(), name.table.encode())
    ids = connection.query(f"SELECT id FROM system_schema.tables {of_table[0]}", of_table[1])
    gone = connection.query(
        f"SELECT column_name, dropped_time FROM system_schema.dropped_columns {of_table[0]}", of_table[1]
    )
    names = [one.name for one in columns]
    return Described(
        name.keyspace,
        name.table,
        columns,
        _types(shape),
        max(
            (int(str(epoch)) for row in nodes if (epoch := row["acknowledged_epoch"]) is not None), default=0
        ),
        str(told[0].get("create_statement", "")) if told else "",
        ", ".join(str(row["id"]) for row in ids),
        tuple(
            sorted(
                (one, str(row["dropped_time"])) for row in gone if (one := str(row["column_name"])) in names
            )
        ),
    )


def _was_emptied(connection: CqlConnection, name: TableName, epoch: int) -> bool:
    """Whether the metadata, as far as they may be read, say so of a later epoch: of a statement, or of a load
    instead of what was there, which is one entry that does not name the table."""
    return _was_replaced(connection, name, epoch) or _was_truncated(connection, name, epoch)


def _was_replaced(connection: CqlConnection, name: TableName, epoch: int) -> bool:
    try:
        loads = connection.query(
            "SELECT keyspace_name, table_name, overwrites, state, ended_epoch FROM system_views.bulk_loads"
        )
    except (InvalidRequest, Unauthorized):
        return False
    return any(
        (load["keyspace_name"], load["table_name"]) == (name.keyspace, name.table)
        and load["overwrites"]
        and load["state"] == LoadState.COMMITTED.value
        and int(str(load["ended_epoch"])) > epoch
        for load in loads
    )


def _was_truncated(connection: CqlConnection, name: TableName, epoch: int) -> bool:
    wanted = f"EmptyTable keyspace={name.keyspace} name={name.table}"
    (local,) = connection.query("SELECT cluster_name FROM system.local")
    try:
        rows = connection.query(
            "SELECT transformation FROM system_views.cluster_metadata_log WHERE cluster = ? AND epoch > ?",
            (str(local["cluster_name"]).encode(), epoch.to_bytes(8, "big")),
        )
    except (InvalidRequest, Unauthorized):
        return False
    return any(row["transformation"] == wanted for row in rows)


def _types(shape: TableShape) -> tuple[DescribedType, ...]:
    """Of all columns, those first that others are made of."""
    found: dict[str, DescribedType] = {}
    for column in shape.columns:
        for one in column.user_types:
            found.setdefault(
                one.name, DescribedType(one.name, tuple(zip(one.field_names, one.field_types, strict=True)))
            )
    ordered: dict[str, DescribedType] = {}
    while len(ordered) < len(found):
        ready = [
            one
            for one in found.values()
            if one.name not in ordered
            and not any(
                _names(kind, other) for _, kind in one.fields for other in found if other not in ordered
            )
        ]
        assert ready, "types do not hold each other"
        ordered |= {one.name: one for one in ready}
    return tuple(ordered.values())


def _names(kind: str, other: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(other)}(?!\w)", kind) is not None
