"""Tables of keyspaces with tablets: their groups, how many tablets they get, and what is refused."""

from __future__ import annotations

import pytest

from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablet_groups import spread
from lockstep.metadata.transformations import KINDS, Initialize
from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    EmptyTable,
    NewColumn,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.view_changes import CreateView, DropView
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.values.errors import Rejected
from tests.metadata.histories import History, founder

TOPOLOGY = (("class", "NetworkTopologyStrategy"), ("dc1", "3"))
Pairs = tuple[tuple[str, str], ...]


def keyspace(name: str = "k", tablets: Pairs | None = (("initial", "8"),), factor: int = 3) -> CreateKeyspace:
    replication = (("class", "NetworkTopologyStrategy"), ("dc1", str(factor)))
    return CreateKeyspace(name, replication, tablets=tablets)


def table(name: str = "t", hints: Pairs = (), keyspace: str = "k") -> CreateTable:
    columns = (
        NewColumn("a", "int", ColumnKind.PARTITION_KEY, 0),
        NewColumn("b", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("c", "int"),
    )
    options = (("tablets", hints),) if hints else ()
    return CreateTable(keyspace, name, f"00000000-0000-0000-0000-{ord(name[0]):012d}", columns, options)


@pytest.fixture
def history() -> History:
    made = History(Registry(KINDS, SCHEMA_KINDS, TOPOLOGY_KINDS, unions=UNIONS))
    made.submit(Initialize("c", "n", tuple(founder(n, (n * 10,)) for n in range(1, 5))))
    return made


def submit(history: History, *changes: SchemaChange) -> None:
    for change in changes:
        before = history.now
        history.submit(ChangeSchema(change))
        history.now.validate(before)


def refusal(history: History, change: SchemaChange) -> str:
    found = history.tried(ChangeSchema(change))
    assert found is not None, "it is refused"
    return found.message


def counts(history: History) -> dict[str, int]:
    now = history.now
    return {group.head.table: group.map(now.placements).count for group in now.tablets.groups}


def test_each_table_has_a_group_and_shares_none(history: History) -> None:
    submit(history, keyspace(), CreateKeyspace("r", TOPOLOGY), table("t"), table("u"))
    now = history.now
    assert counts(history) == {"t": 8, "u": 8}
    space = now.schema.by_name["k"]
    assert space.group == 0 and sorted(space.groups) == [group.id for group in now.tablets.groups]
    assert now.schema.by_name["r"].group in now.placements.by_id
    assert [ring.id for ring in now.shared_rings] == [now.schema.by_name["r"].group]
    now.validate()
    assert history.replayed() == now and state_digest(history.replayed()) == state_digest(now)


def test_tablets_are_spread_evenly_over_the_nodes(history: History) -> None:
    submit(history, keyspace(tablets=(("initial", "16"),)), table("t"))
    held: dict[int, int] = {}
    for tablet in history.now.tablets.groups[0].map(history.now.placements).tablets():
        assert len(set(tablet.nodes)) == 3
        for node in tablet.nodes:
            held[node] = held.get(node, 0) + 1
    assert held == {1: 12, 2: 12, 3: 12, 4: 12}


@pytest.mark.parametrize(
    ("hints", "count"),
    [
        ((("min_tablet_count", "5"),), 8),
        ((("min_tablet_count", "100"), ("max_tablet_count", "64")), None),
        ((("max_tablet_count", "3"),), 2),
        ((("expected_data_size_in_gb", "50"),), 16),
        ((("min_per_shard_tablet_count", "3"),), 4),
    ],
)
def test_hints_give_the_count(history: History, hints: Pairs, count: int | None) -> None:
    submit(history, keyspace(tablets=()))
    if count is None:
        assert "is above max_tablet_count" in refusal(history, table("t", hints))
    else:
        submit(history, table("t", hints))
        assert counts(history) == {"t": count}


def view(name: str, partition: tuple[str, ...], clustering: tuple[str, ...]) -> CreateView:
    uuid = f"00000000-0000-0000-0001-{ord(name[0]):012d}"
    return CreateView(
        "k", name, uuid, "k", "t", (), partition, clustering, where="", not_null=("a", "b", "c")
    )


def test_a_view_lies_with_its_base_where_their_keys_are_the_same(history: History) -> None:
    submit(history, keyspace(), table("t"), view("v", ("a",), ("c", "b")), view("w", ("c",), ("a", "b")))
    space = history.now.schema.by_name["k"]
    groups = {name: space.by_name[name].group for name in ("t", "v", "w")}
    assert groups["v"] == groups["t"] != groups["w"]
    assert counts(history) == {"t": 8, "w": 8}
    submit(history, DropView("k", "v"))
    assert counts(history) == {"t": 8, "w": 8}, "the base stays where its view was"
    submit(history, DropView("k", "w"), DropTable("k", "t"))
    assert counts(history) == {}


def test_a_truncated_table_keeps_its_tablets(history: History) -> None:
    submit(history, keyspace(), table("t"))
    before = history.now
    submit(history, EmptyTable("k", "t"))
    assert history.now.tablets is before.tablets and history.now.placements is before.placements


def test_groups_go_with_their_tables(history: History) -> None:
    submit(history, keyspace(), table("t"), table("u"), DropTable("k", "t"))
    assert counts(history) == {"u": 8}
    submit(history, DropKeyspace("k"))
    assert not history.now.tablets.groups and not history.now.placements.by_id
    assert history.replayed() == history.now


def test_what_is_refused(history: History) -> None:
    submit(history, keyspace(), CreateKeyspace("r", TOPOLOGY), table("t"))
    simple = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    before = history.now
    for change, reason in (
        (CreateKeyspace("s", simple, tablets=()), "tablets need NetworkTopologyStrategy"),
        (AlterKeyspace("k", simple), "tablets need NetworkTopologyStrategy"),
        (keyspace("s", (("initial", "-1"),)), "initial is a whole number"),
        (keyspace("s", (("initial", "99999999"),)), "initial is at most"),
        (keyspace("s", (("enabled", "false"), ("initial", "2"))), "they are not enabled"),
        (AlterKeyspace("k", tablets=(("enabled", "false"),)), "cannot be altered back from tablets"),
        (AlterKeyspace("r", tablets=()), "cannot be altered to tablets"),
        (table("w", (("min_tablet_count", "2"),), "r"), "have no tablets: they lie on its ring"),
        (AlterOptions("k", "t", (("tablets", (("max", "2"),)),)), "unknown tablet option 'max'"),
        (
            AlterKeyspace("k", (("class", "NetworkTopologyStrategy"), ("dc1", "2"))),
            "the new replication would move their data",
        ),
    ):
        assert reason in refusal(history, change), change
    assert history.now is before
    submit(
        history,
        keyspace("empty"),
        AlterKeyspace("empty", (("class", "NetworkTopologyStrategy"), ("dc1", "2"))),
    )
    assert history.now.schema.by_name["empty"].replication.total == 2
    submit(history, keyspace("five", factor=5))
    assert "data centre dc1 has 4 nodes" in refusal(history, table("v", keyspace="five"))


def test_what_the_setting_for_new_keyspaces_makes_of_them() -> None:
    plain, simple = keyspace(tablets=None), CreateKeyspace("s", (("class", "SimpleStrategy"),))
    assert spread(plain, "disabled").tablets is None
    assert spread(plain, "enabled").tablets == () == spread(plain, "enforced").tablets
    assert spread(keyspace(tablets=(("enabled", "false"),)), "enabled").tablets == (("enabled", "false"),)
    assert spread(simple, "enabled").tablets is None
    for refused in (simple, keyspace(tablets=(("enabled", "false"),))):
        with pytest.raises(Rejected, match="every keyspace of this cluster has tablets"):
            spread(refused, "enforced")
