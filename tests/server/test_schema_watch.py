"""What a node tells drivers of the schema when it jumped over entries by a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Initialize
from lockstep.schema.changes import CreateKeyspace, CreateTable, DropTable, EmptyTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.summaries import ChangeSummary
from lockstep.server.cql.schema_watch import SchemaWatch, schema_version
from tests.metadata.histories import History, founder

_ONE = (("class", "SimpleStrategy"), ("replication_factor", "1"))
_KEY = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)


def table(name: str, number: int) -> CreateTable:
    return CreateTable("ks", name, f"00000000-0000-0000-0000-{number:012}", (_KEY,))


class Followed:
    """A watch of a node whose metadata is shown to it value by value."""

    def __init__(self, first: ClusterMetadata) -> None:
        self.listeners: list[Any] = []
        self.told: list[ChangeSummary] = []
        listen = SimpleNamespace(listen=lambda told, **_: self.listeners.append(told))
        self.log = SimpleNamespace(cluster=first, state=listen, registry=Registry(KINDS, SCHEMA_KINDS))
        node = SimpleNamespace(
            context=SimpleNamespace(own_id=lambda: 1),
            log=self.log,
            work=SimpleNamespace(topology=SimpleNamespace(listen=lambda listener: None)),
        )
        self.watch = SchemaWatch(node)  # type: ignore[arg-type]
        self.watch.listen(self.told.append)

    def show(self, after: ClusterMetadata) -> None:
        before, self.log.cluster = self.log.cluster, after
        for listener in self.listeners:
            listener(before, after, None)


def test_the_version_follows_a_jump_over_changes_that_leave_nothing_to_tell() -> None:
    history = History(Registry(KINDS, SCHEMA_KINDS))
    history.submit(Initialize("c", "n", (founder(1, (0,)),)))
    history.submit(ChangeSchema(CreateKeyspace("ks", _ONE)))
    followed = Followed(history.now)
    for change in (table("t", 1), DropTable("ks", "t")):
        history.submit(ChangeSchema(change))
    followed.show(history.now)
    assert followed.told == []
    assert followed.watch.version == schema_version(history.now.schema)
    jumped = history.now.epoch
    assert followed.watch.jumped_over(jumped) and not followed.watch.jumped_over(jumped + 1)


def test_a_jump_tells_each_thing_once() -> None:
    history = History(Registry(KINDS, SCHEMA_KINDS))
    history.submit(Initialize("c", "n", (founder(1, (0,)),)))
    history.submit(ChangeSchema(CreateKeyspace("ks", _ONE)))
    history.submit(ChangeSchema(table("old", 1)))
    followed = Followed(history.now)
    for change in (table("new", 2), DropTable("ks", "old"), EmptyTable("ks", "new"), EmptyTable("ks", "new")):
        history.submit(ChangeSchema(change))
    followed.show(history.now)
    assert followed.told == [
        ChangeSummary("CREATED", "TABLE", "ks", "new"),
        ChangeSummary("DROPPED", "TABLE", "ks", "old"),
    ]
    assert followed.watch.version == schema_version(history.now.schema)
