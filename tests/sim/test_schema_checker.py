"""SCH-1 on values that no log could give, and on histories that it could."""

from __future__ import annotations

import random

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.schema_part import SCHEMA
from lockstep.schema.changes import CreateKeyspace
from lockstep.schema.model import Column, ColumnKind, DroppedColumn, Schema
from lockstep.sim.checkers.log import WHOLE_EVERY, check_schema
from lockstep.sim.checkers.violation import Violation
from tests.metadata.histories import History
from tests.metadata.test_digest import create, history, some_change

OPTIONS = (("class", "SimpleStrategy"), ("replication_factor", "3"))


def some_history() -> History:
    made = history()
    made.submit(ChangeSchema(CreateKeyspace("ks", OPTIONS)))
    made.submit(ChangeSchema(create("ks", "one", 1)))
    return made


def value(after: ClusterMetadata, schema: Schema) -> ClusterMetadata:
    return after.changed(SCHEMA.set(schema))


def test_random_histories_are_not_objected_to() -> None:
    for seed in range(3):
        chosen, made = random.Random(seed), history()
        for number in range(2 * WHOLE_EVERY):
            made.tried(ChangeSchema(some_change(chosen, number)))
        for before, after in zip(made.values, made.values[1:], strict=False):
            check_schema(before, after)
        assert len(made.now.schema.by_name) >= 1


@pytest.mark.parametrize(
    "words", ["given before", "another one under its id", "no keyspace", "forgotten", "a type", "place"]
)
def test_what_no_log_gives_is_objected_to(words: str) -> None:
    now = some_history().now
    table = now.schema.tables_by_id[1]
    replace = msgspec.structs.replace
    dropped = (DroppedColumn(9, "w", "int", 5),)
    before = value(now, now.schema.with_table(replace(table, next_column_id=10, dropped=dropped)))
    held = before.schema.tables_by_id[1]
    broken = {
        "given before": replace(held, columns=(*held.columns, Column(9, "x", "int", ColumnKind.REGULAR))),
        "another one under its id": replace(held, uuid="other"),
        "forgotten": replace(held, dropped=()),
        "a type": replace(held, columns=(*held.columns, Column(10, "u", "gone", ColumnKind.REGULAR))),
        "place": replace(held, columns=(replace(held.columns[0], position=3), *held.columns[1:])),
    }
    if words == "no keyspace":
        after = msgspec.structs.replace(before.schema, by_name=before.schema.by_name.remove("ks"))
        tree = before.schema.table_tree.with_value(1, replace(held, epoch=77), bytes(32))
        after = msgspec.structs.replace(after, table_tree=tree)
    else:
        after = before.schema.with_table(broken[words])
    check_schema(now, before)
    with pytest.raises(Violation, match=words):
        check_schema(before, value(before, after))


def test_a_value_whose_maps_are_not_in_step_is_found_in_the_end() -> None:
    now = some_history().now
    broken = msgspec.structs.replace(now.schema, tables_by_id=now.schema.tables_by_id.remove(1))
    with pytest.raises(Violation, match="in step"):
        check_schema(now, msgspec.structs.replace(now.changed(SCHEMA.set(broken)), epoch=WHOLE_EVERY))
