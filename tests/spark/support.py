"""What the Spark tests share: a small real cluster, its tables, and options that reach it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.local.clusters import LocalCluster
from lockstep.scans.session_files import COLUMNS_DIRECTORY
from lockstep.schema.types import parse_type
from lockstep.spark.cql_client import CqlConnection, Endpoint
from lockstep.spark.encoders import encoder
from lockstep.values.ids import Consistency

#: Away from the defaults and from the ports of other tests.
PORTS = (19142, 17100, 17180)
#: Each process of a parallel run has a cluster of its own.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST_ADDRESS = f"127.0.{42 + _PROCESS}.1"
NOBODYS_ADDRESS = f"127.0.{42 + _PROCESS}.200"
TIMEOUT_S = 20.0
IN_FLIGHT = 128


def connect(cluster: LocalCluster, node: int = 0) -> CqlConnection:
    return CqlConnection.open(Endpoint(cluster.contact_points[node], PORTS[0]), TIMEOUT_S)


def options(cluster: LocalCluster, table: str, **others: str) -> dict[str, str]:
    """Options as Spark hands them over, with lower-cased names."""
    given = {
        "hosts": ",".join(cluster.contact_points[:2]),
        "port": str(PORTS[0]),
        "keyspace": "shop",
        "table": table,
        **others,
    }
    return {name.lower(): value for name, value in given.items()}


def insert(connection: CqlConnection, table: str, columns: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows of plain Python values; `columns` is `name type, name type`."""
    pairs = [column.strip().split(" ", 1) for column in columns.split(";")]
    encoders = [encoder(parse_type(kind)) for _, kind in pairs]
    names = ", ".join(name for name, _ in pairs)
    marks = ", ".join("?" for _ in pairs)
    statement = connection.prepare(f"INSERT INTO shop.{table} ({names}) VALUES ({marks})")
    for row in rows:
        values: tuple[Value, ...] = tuple(
            None if value is None else encode(value) for encode, value in zip(encoders, row, strict=True)
        )
        if connection.in_flight >= IN_FLIGHT:
            assert connection.receive().opcode == 8
        connection.execute(statement, QueryParameters(Consistency.QUORUM, values))
    while connection.in_flight:
        assert connection.receive().opcode == 8


def column_files(cluster: LocalCluster) -> list[Path]:
    """Where each node keeps what its readers decoded."""
    return [Path(cluster.paths.data(node.name)) / COLUMNS_DIRECTORY for node in cluster.file.nodes]
