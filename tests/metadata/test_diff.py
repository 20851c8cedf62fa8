"""Differences of two values as people read them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lockstep.metadata.access.role_changes import KINDS as ROLE_KINDS
from lockstep.metadata.access.role_changes import PERMISSION_KINDS as PERMISSION_KINDS
from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangePermissions,
    ChangeRole,
    CreateRole,
    DropRole,
)
from lockstep.metadata.access.roles import Role
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.directory import EXCLUDED, Exclusion
from lockstep.metadata.log.apply import diff
from lockstep.metadata.log.comparison import Difference, text_of
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.part import Change
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension, UpdateNode
from lockstep.schema.changes import (
    AlterKeyspace,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.requests import KINDS as REQUEST_KINDS
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History, founder, simple

COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)


def options(factor: int) -> tuple[tuple[str, str], ...]:
    return (("class", "SimpleStrategy"), ("replication_factor", str(factor)))


def create(keyspace: str, name: str, number: int) -> ChangeSchema:
    return ChangeSchema(CreateTable(keyspace, name, f"00000000-0000-4000-8000-{number:012}", COLUMNS))


def history(*more: Transformation) -> History:
    made = History(
        Registry(
            KINDS, TOPOLOGY_KINDS, REQUEST_KINDS, SCHEMA_KINDS, ROLE_KINDS, PERMISSION_KINDS, unions=UNIONS
        )
    )
    made.submit(Initialize("c", "test", tuple(founder(at, (at * 1_000,)) for at in range(1, 4))))
    for one in (
        ChangeSchema(CreateKeyspace("b", options(1))),
        ChangeSchema(CreateKeyspace("a", options(1))),
        create("b", "two", 1),
        create("a", "one", 2),
        SetExtension("x", b"\x01"),
        SetExtension("y", b"\x02"),
        ChangeRole(CreateRole("ann", salted_hash="$2a$10$old")),
        ChangePermissions("ann", "data", ("SELECT", "MODIFY"), True),
        *more,
    ):
        made.submit(one)
    return made


def lines(before: ClusterMetadata, after: ClusterMetadata) -> list[tuple[str, str, str]]:
    """Without what every entry changes."""
    return [
        (one.path, one.before, one.after) for one in diff(before, after) if one.path not in ("epoch", "hash")
    ]


def shown(*changes: Transformation) -> list[tuple[str, str, str]]:
    made = history()
    before = made.now
    for one in changes:
        made.submit(one)
    back = lines(made.now, before)
    forth = lines(before, made.now)
    assert sorted((path, new, old) for path, old, new in back) == sorted(forth), "both ways alike"
    return forth


# -- by entry


def test_equal_values_differ_in_nothing_and_every_entry_in_epoch_and_hash() -> None:
    made = history()
    assert diff(made.now, made.now) == () and diff(made.now, history().now) == ()
    made.submit(SetExtension("z", b"\x03"))
    found = diff(made.values[-2], made.now)
    assert [one.path for one in found] == ["epoch", "hash", "extensions[z]"], "the kept ids are not told"
    assert found[0] == Difference("epoch", str(made.now.epoch - 1), str(made.now.epoch))
    assert found[1].after == made.now.hash.hex()


def test_extensions_are_told_by_name() -> None:
    assert shown(SetExtension("x", b""), SetExtension("y", b"\x0a"), SetExtension("w", b"\xff")) == [
        ("extensions[w]", "-", "ff"),
        ("extensions[x]", "01", "-"),
        ("extensions[y]", "02", "0a"),
    ]


def test_a_node_is_told_by_its_id_and_only_what_changed_of_it() -> None:
    found = shown(UpdateNode(NodeId(2), "10.0.1.2", 7001, 9042, 7080, "2"))
    assert [(path, old, new) for path, old, new in found if not path.endswith((".features", ".epoch"))] == [
        ("directory.nodes[2].address", "10.0.0.2", "10.0.1.2"),
        ("directory.nodes[2].internode_port", "7000", "7001"),
        ("directory.nodes[2].version", "1", "2"),
    ]


def test_keyspaces_come_first_and_tables_by_keyspace() -> None:
    found = shown(
        create("b", "three", 3),
        ChangeSchema(DropTable("a", "one")),
        ChangeSchema(CreateKeyspace("aa", options(2))),
        create("aa", "four", 4),
    )
    paths = [path for path, _, _ in found]
    assert paths[:4] == [
        "schema.keyspaces[aa]", "schema.keyspaces[a].tables[2]", "schema.keyspaces[aa].tables[4]",
        "schema.keyspaces[b].tables[3]",
    ]  # fmt: skip
    assert [(old == "-", new == "-") for _, old, new in found[:4]] == [
        (True, False), (False, True), (True, False), (True, False),
    ]  # fmt: skip
    assert ("schema.next_table_id", "3", "5") in found
    assert any(path.startswith("placements.rings[") for path in paths)


def test_a_keyspace_that_goes_takes_its_tables_along_and_one_that_changes_is_told_in_part() -> None:
    found = shown(ChangeSchema(DropKeyspace("a")), ChangeSchema(AlterKeyspace("b", None, False)))
    told = {path: (old == "-", new == "-") for path, old, new in found}
    assert told["schema.keyspaces[a]"] == told["schema.keyspaces[a].tables[2]"] == (False, True)
    assert [path for path in told if path.startswith("schema.keyspaces[b]")] == [
        "schema.keyspaces[b].durable_writes", "schema.keyspaces[b].epoch",
    ]  # fmt: skip


def test_roles_are_told_without_their_hashes() -> None:
    made = history()
    before = made.now
    made.submit(ChangeRole(AlterRole("ann", salted_hash="$2a$10$new", login=True)))
    assert lines(before, made.now) == [
        ("access.roles[ann].login", "False", "True"),
        ("access.roles[ann].salted_hash", "***", "another one"),
    ]
    changed = made.now
    made.submit(ChangeRole(CreateRole("bob")))
    made.submit(ChangeRole(CreateRole("abe", superuser=True)))
    assert [path for path, _, _ in lines(changed, made.now)] == ["access.roles[abe]", "access.roles[bob]"]
    changed = made.now
    made.submit(ChangeRole(AlterRole("ann", salted_hash="")))
    assert lines(changed, made.now) == [("access.roles[ann].salted_hash", "***", "")]
    changed = made.now
    made.submit(ChangeRole(DropRole("ann")))
    assert lines(changed, made.now) == [
        ("access.roles[ann]", text_of(changed.access.role("ann")), "-"),
        ("access.grants[ann on data]", "[SELECT, MODIFY]", "-"),
    ]
    assert text_of(before.access.role("ann")) == (
        "Role(name=ann, superuser=False, login=False, salted_hash=***, data_centers=[], member_of=[])"
    )


def test_grants_are_told_by_role_and_resource() -> None:
    made = history(ChangeRole(CreateRole("abe")), ChangePermissions("abe", "roles", ("CREATE",), True))
    before = made.now
    made.submit(ChangePermissions("ann", "data", ("SELECT",), False))
    made.submit(ChangePermissions("abe", "data", ("ALTER",), True))
    made.submit(ChangePermissions("abe", "roles", ("CREATE",), False))
    assert lines(before, made.now) == [
        ("access.grants[abe on data]", "-", "[ALTER]"),
        ("access.grants[abe on roles]", "[CREATE]", "-"),
        ("access.grants[ann on data]", "[SELECT, MODIFY]", "[MODIFY]"),
    ]


def test_requests_are_told_by_their_ids() -> None:
    found = shown(EnqueueRequest(Decommission(NodeId(3)), actor="test"))
    told = {path: (old, new) for path, old, new in found}
    assert told["requests.live[1]"][0] == "-" and "node=3" in told["requests.live[1]"][1]
    assert told["requests.next_id"] == ("1", "2")


# -- by part


def numbered(value: ClusterMetadata, next_id: int) -> Change:
    return OPERATIONS.set(msgspec.structs.replace(value.running, next_id=next_id))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            lambda value: EXCLUDED.set((Exclusion(NodeId(2), 5, "old"), Exclusion(NodeId(4), 6, "x"))),
            lambda value: EXCLUDED.set((Exclusion(NodeId(3), 7, "y"), Exclusion(NodeId(4), 6, "z"))),
            [
                ("excluded[2]", "Exclusion(node=2, epoch=5, reason=old)", "-"),
                ("excluded[4].reason", "x", "z"),
                ("excluded[3]", "-", "Exclusion(node=3, epoch=7, reason=y)"),
            ],
        ),
        (
            lambda value: DEGRADED.set((Degraded(1, Range(0, 10), 5, (NodeId(1),)),)),
            lambda value: DEGRADED.set(()),
            [
                (
                    "degraded[(0, 10]]",
                    "Degraded(group=1, range=(0, 10], since_epoch=5, missing=[1], "
                    "inherited=[], keyspaces=[])",
                    "-",
                )
            ],
        ),
        (
            lambda value: numbered(value, 3),
            lambda value: numbered(value, 4),
            [("next_operation_id", "3", "4")],
        ),
        (
            lambda value: EXCLUDED.set(()),
            lambda value: Change(EXCLUDED, (1,)),
            [("excluded", "[]", "[1]")],
        ),
    ],
)
def test_elements_are_matched_by_name(
    before: Callable[[ClusterMetadata], Change],
    after: Callable[[ClusterMetadata], Change],
    expected: list[tuple[str, str, str]],
) -> None:
    value = history().now
    assert lines(value.changed(before(value)), value.changed(after(value))) == expected


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Range(-3, 5), "(-3, 5]"),
        (b"\x01\xff", "01ff"),
        (Colour.RED, "red"),
        (simple(2), simple(2).text()),
        ((), "[]"),
        ((1, (b"a", "b")), "[1, [61, b]]"),
        (Role("r", data_centers=("dc1",)), "Role(name=r, superuser=False, login=False, salted_hash=, "
         "data_centers=[dc1], member_of=[])"),
        (None, "None"),
    ],
)  # fmt: skip
def test_the_text_of_anything(value: Any, text: str) -> None:
    assert text_of(value) == text
