"""The metadata history of a case: named changes after a common beginning, each judged as a leader does.

Four nodes in ring order a, d, i, s (the partition keys whose tokens the nodes 1 to 4 own), replication 3:
`a` is on 1 2 3, `d` on 2 3 4, `i` on 3 4 1, `s` on 4 1 2. Node 5 joins between i and s: it comes to `d` in
the place of 4 and to `i` in the place of 1; `a` and `s` are not concerned. Invariant: entry n makes epoch n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.history import History
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Founder, Initialize, Register, SetExtension
from lockstep.node.kinds import every_kind
from lockstep.schema.changes import (
    AddColumns,
    AlterKeyspace,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    DropKeyspace,
    DropTable,
    EmptyTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import AddTypeField, CreateType
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import CASSANDRA_RELEASE, NodeId
from lockstep.values.tokens import token_of

CLUSTER_ID = "00000000-0000-4000-8000-00000000c1a0"
KEYS = ("a", "d", "i", "s")
JOINING_KEY = "k"
JOINING = 5
_REPLICATION = (("class", "SimpleStrategy"), ("replication_factor", "3"))
#: Operation ids begin at one.
_OPERATION = 1


def host_of(node: int) -> str:
    return f"127.0.0.{node}"


def host_id_of(node: int) -> str:
    return f"00000000-0000-4000-8000-00000000000{node}"


def _founder(node: int, log_version: int) -> Founder:
    token = token_of(KEYS[node - 1].encode())
    return Founder(
        host_id_of(node), host_of(node), 7000, 9042, 7080, "dc1", "rack1", (token,), CASSANDRA_RELEASE,
        log_version,
    )  # fmt: skip


def _table(keyspace: str, name: str, number: int) -> CreateTable:
    columns = [
        NewColumn("k", "text", ColumnKind.PARTITION_KEY, 0),
        NewColumn("c", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "text"),
    ]
    if (keyspace, name) == ("ks", "t"):
        columns.append(NewColumn("home", "frozen<address>"))
    return CreateTable(keyspace, name, f"00000000-0000-4000-8000-{number:012}", tuple(columns))


#: What cases call the changes of their history.
CHANGES: dict[str, Any] = {
    "note": SetExtension("note", b"x"),
    "another note": SetExtension("note", b"y"),
    "register": Register(
        host_id_of(JOINING), host_of(JOINING), 7000, 9042, 7080, "dc1", "rack1", CASSANDRA_RELEASE
    ),
    "prepare": PrepareOperation(Bootstrap(NodeId(JOINING), (token_of(JOINING_KEY.encode()),))),
    "commit streams": AdvanceOperation(_OPERATION, Stage.JOIN_GROUP0),
    "write both": AdvanceOperation(_OPERATION, Stage.COMMIT_CDC_GENERATION),
    "read new": AdvanceOperation(_OPERATION, Stage.WRITE_BOTH_READ_OLD),
    "new only": AdvanceOperation(_OPERATION, Stage.WRITE_BOTH_READ_NEW),
    "joined": AdvanceOperation(_OPERATION, Stage.NEW_ONLY),
    "alter t": ChangeSchema(AddColumns("ks", "t", (NewColumn("w", "text"),))),
    "alter t again": ChangeSchema(AddColumns("ks", "t", (NewColumn("w2", "text"),))),
    "alter o": ChangeSchema(AddColumns("ks", "o", (NewColumn("w", "text"),))),
    "drop v": ChangeSchema(DropColumns("ks", "t", ("v",), 1_000_000)),
    "add v": ChangeSchema(AddColumns("ks", "t", (NewColumn("v", "text"),))),
    "drop t": ChangeSchema(DropTable("ks", "t")),
    "create t": ChangeSchema(_table("ks", "t", 77)),
    "empty t": ChangeSchema(EmptyTable("ks", "t")),
    "drop ks": ChangeSchema(DropKeyspace("ks")),
    "alter ks": ChangeSchema(AlterKeyspace("ks", durable_writes=False)),
    "alter ks back": ChangeSchema(AlterKeyspace("ks", durable_writes=True)),
    "alter far": ChangeSchema(AlterKeyspace("far", durable_writes=False)),
    "alter address": ChangeSchema(AddTypeField("ks", "address", ("city", "text"))),
    "alter spare": ChangeSchema(AddTypeField("ks", "spare", ("more", "text"))),
}


class CaseHistory:
    """`values[e]` is the metadata of epoch e, `entries[e - 1]` made it."""

    def __init__(self, changes: Sequence[str] = ()) -> None:
        self.registry: Registry = every_kind()
        self._history = History(self.registry, "case")
        self._begin()
        #: The epoch at which a case begins unless it says otherwise.
        self.base_epoch = self.newest.epoch
        for name in changes:
            assert name in CHANGES, f"{name!r} is no change that a history can have"
            self._add(CHANGES[name])

    @property
    def values(self) -> list[ClusterMetadata]:
        return self._history.values

    @property
    def entries(self) -> list[LogEntry]:
        return self._history.entries

    @property
    def newest(self) -> ClusterMetadata:
        return self._history.now

    def _begin(self) -> None:
        version = self.registry.version
        founders = tuple(_founder(node, version) for node in range(1, len(KEYS) + 1))
        self._add(Initialize(CLUSTER_ID, "lockstep", founders, (NodeId(2),)))
        self._add(ChangeSchema(CreateKeyspace("ks", _REPLICATION)))
        self._add(ChangeSchema(CreateType("ks", "address", (("street", "text"),))))
        self._add(ChangeSchema(CreateType("ks", "spare", (("one", "text"),))))
        self._add(ChangeSchema(_table("ks", "t", 1)))
        self._add(ChangeSchema(_table("ks", "o", 2)))
        self._add(ChangeSchema(CreateKeyspace("far", _REPLICATION)))
        self._add(ChangeSchema(_table("far", "t", 3)))

    def _add(self, transformation: Any) -> None:
        refusal = self._history.tried(transformation)
        assert refusal is None, f"{transformation} is refused: {refusal}"
