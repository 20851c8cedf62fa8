"""Witnesses on real nodes in a simulated world: they journal, count and bring, and store and show nothing."""

from __future__ import annotations

from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import CreateKeyspace, CreateTable
from lockstep.schema.replication_options import parse_replication
from lockstep.sim.door import mutation_for
from lockstep.sim.load.cql_client import CQL_PORT, CqlClient, CqlError
from lockstep.sim.load.history import Change
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.roles import keepers, readers
from lockstep.values.errors import LockstepError, Overloaded, Unavailable, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.tokens import token_of
from tests.node.support import Town, leave
from tests.node.test_hints import away, back
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    ALL,
    COLUMNS,
    ONE,
    QUORUM,
    isolated,
    lone_write,
    looked_for,
    paused,
    rows_of,
    rows_read,
    unreconciled,
    write,
)
from tests.node.test_tracked_moves import alike, comes
from tests.node.test_tracked_statements import doors, told

KEYS = tuple(b"w%d" % number for number in range(8))


def replication(factor: str) -> tuple[tuple[str, str], ...]:
    return (("class", "NetworkTopologyStrategy"), ("replication_factor", factor))


def witnessed(seed: int, nodes: int = 3, factor: str = "3/1") -> Town:
    """Nodes with a table of which each partition has a witness."""
    town = Town(seed, nodes)
    town.found()
    wanted = CreateKeyspace("ks", replication(factor), replication_type="tracked")
    assert town.finish(town.submit(1, ChangeSchema(wanted))).error is None
    made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)
    assert town.finish(town.submit(1, ChangeSchema(made))).error is None
    town.agreed(*range(1, nodes + 1))
    return town


def roles(town: Town, key: bytes, asked: int = 1) -> tuple[list[int], list[int]]:
    """Numbers of the nodes that keep a partition, and of its witnesses, in ring order."""
    cluster = town.node(asked).log.cluster
    (group,) = cluster.schema.by_name["ks"].groups
    ring = cluster.placements.ring(group)
    placed = ring.range_at(token_of(key))
    numbers = {int(node.context.own_id()): int(name[1:]) for name, node in town.nodes.items()}
    keeping = keepers(cluster, ring, placed)
    assert not cluster.transitions.count or readers(cluster, ring, placed)
    return [numbers[one] for one in keeping], [numbers[n] for n in placed.group.writes if n not in keeping]


def whole(town: Town, *keys: bytes, asked: int = 1) -> None:
    """Each full replica has the rows, and no witness has any."""
    rows = 10
    for key in keys:
        full, witnesses = roles(town, key, asked)
        assert [rows_of(town, number, key) for number in full] == [rows] * len(full)
        assert [rows_of(town, number, key) for number in witnesses] == [0] * len(witnesses)


def test_a_witness_journals_until_all_full_replicas_hold_it_and_stores_no_rows() -> None:
    with witnessed(1) as town:
        paused(town, 1, 2, 3)
        for key in KEYS:
            assert write(town, 1, ALL, key=key).error is None
        assert unreconciled(town, 3) == len(KEYS)
        whole(town, *KEYS)
        for key in KEYS:
            assert [rows_read(town, number, key=key) for number in (1, 2, 3)] == [[b"v"] * 10] * 3
            assert rows_read(town, 2, level=ONE, key=key) == [b"v"] * 10
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3)
        assert {tuple(roles(town, key)[1]) for key in KEYS} > {(1,)}, "witnesses are spread over the nodes"


def test_scenario_24_with_a_full_replica_down_quorums_hold_and_its_journal_goes_afterwards() -> None:
    with witnessed(2) as town:
        (lost, other), (witness,) = roles(town, KEYS[0])
        away(town, lost, (other, witness))
        for value in (b"a", b"b"):
            assert write(town, witness, value=value, key=KEYS[0]).error is None
            assert rows_read(town, other, key=KEYS[0]) == [value] * 10
            assert rows_read(town, witness, key=KEYS[0]) == [value] * 10
        assert rows_of(town, witness, KEYS[0]) == 0
        town.wait(5)
        assert unreconciled(town, witness) == 2
        back(town, lost)
        alike(town, 1, 2, 3)
        assert rows_of(town, lost, KEYS[0]) == 10
        whole(town, KEYS[0])


def test_what_only_the_witness_holds_is_brought_to_the_data_of_a_read() -> None:
    with witnessed(3) as town:
        (first, second), (witness,) = roles(town, KEYS[1])
        paused(town, 1, 2, 3)
        given_by(town, witness, KEYS[1])
        isolated(town, second, (first, witness))
        assert rows_read(town, first, 3, key=KEYS[1]) == [b"v"]
        assert rows_of(town, first, KEYS[1]) == 10
        isolated(town, second, (first, witness), heal=True)
        isolated(town, witness, (first, second))
        assert rows_read(town, second, key=KEYS[1]) == [b"v"] * 10


def given_by(town: Town, number: int, key: bytes) -> None:
    """A write that one replica stored, and told nobody of."""

    async def work(node: Node) -> None:
        data = node.data
        change = Change(
            "t", key, node.runtime.clock.wall_us(), QUORUM, 1, tuple((r, b"v") for r in range(10))
        )
        made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
        data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error


def test_without_a_full_replica_nothing_is_read_and_writes_go_on_where_they_may() -> None:
    with witnessed(4) as town:
        full, (witness,) = roles(town, KEYS[2])
        assert write(town, witness, ALL, key=KEYS[2]).error is None
        away(town, full[0], (full[1], witness))
        away(town, full[1], (witness,))

        async def read(node: Node) -> object:
            return await node.data.coordinator.read(looked_for(node, None, KEYS[2]), ONE, 1000)

        outcome = town.finish(town.begin(witness, read))
        assert isinstance(outcome.error, Unavailable | LockstepError)
        assert write(town, witness, ONE, value=b"x", key=KEYS[2]).error is None
        for number in full:
            back(town, number)
        alike(town, 1, 2, 3)
        assert rows_read(town, 1, key=KEYS[2]) == [b"x"] * 10


def test_a_witness_remembers_its_journal_over_a_power_loss() -> None:
    with witnessed(5) as town:
        (lost, other), (witness,) = roles(town, KEYS[0])
        away(town, lost, (other, witness))
        assert write(town, other, value=b"p", key=KEYS[0]).error is None
        town.process(witness).crash("power")
        back(town, witness)
        town.process(other).crash("power")
        back(town, lost)
        assert rows_read(town, lost, key=KEYS[0]) == [b"p"] * 10
        back(town, other)
        alike(town, 1, 2, 3)
        whole(town, KEYS[0])


def test_who_joins_gets_data_of_full_replicas_and_ids_of_witnesses() -> None:
    with witnessed(21) as town:
        for key in KEYS:
            assert write(town, 1, value=b"o", key=key).error is None
        alike(town, 1, 2, 3)
        paused(town, 1, 2, 3)
        for key in KEYS:
            (first, second), (witness,) = roles(town, key)
            isolated(town, second, (first, witness))
            assert write(town, first, key=key).error is None
            isolated(town, second, (first, witness), heal=True)
        comes(town, 4)
        for key in KEYS:
            assert [rows_read(town, number, key=key) for number in (1, 4)] == [[b"v"] * 10] * 2
            if 4 in roles(town, key)[0]:
                assert rows_read(town, 4, level=ONE, key=key) == [b"v"] * 10
        assert any(4 in roles(town, key)[0] for key in KEYS)
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, *KEYS)


def test_who_leaves_has_witnesses_become_full_replicas() -> None:
    with witnessed(22, 4) as town:
        before = {key: roles(town, key) for key in KEYS}
        gone = before[KEYS[0]][0][0]
        others = tuple(number for number in (1, 2, 3, 4) if number != gone)
        for key in KEYS:
            assert write(town, others[0], value=b"o", key=key).error is None
        alike(town, 1, 2, 3, 4)
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, others[0], key=key).error is None
            given_by(town, before[key][1][0], key)
        seen = {key: rows_read(town, others[1], key=key) for key in KEYS[:4]}
        node = int(town.node(gone).context.own_id())
        assert town.finish(town.submit(others[0], leave(node))).error is None
        town.until(lambda: town.state_of(node) is NodeState.LEFT, 300)
        after = {key: roles(town, key, others[0]) for key in KEYS}
        assert any(set(before[key][1]) & set(after[key][0]) for key in KEYS), "a witness is full now"
        assert town.world.probes.counts.get("tracked.promoted")
        for key in KEYS:
            for full in after[key][0]:
                assert rows_of(town, full, key) == 10
                assert rows_read(town, full, level=ONE, key=key) == [b"v"] * 10
            assert rows_read(town, others[0], key=key) == [b"v"] * 10
        assert seen
        paused(town, *others, is_paused=False)
        alike(town, *others)
        for key in KEYS:
            assert [rows_of(town, number, key) for number in after[key][1]] == [0] * len(after[key][1])


def replaced_by(town: Town, number: int, gone: int, others: tuple[int, ...]) -> None:
    """Have a new node take the place of one that is dead."""
    node = int(town.node(gone).context.own_id())
    away(town, gone, others)
    name, host = f"n{number}", f"127.0.0.{number}"
    town.cluster_lines[name] = f'seeds=["127.0.0.{others[0]}"]\nreplaces={node}'
    assert town.process(number).host == host
    town.start(number)
    town.until(lambda: town.ready(number), 300)
    assert town.state_of(node) is NodeState.LEFT


def test_scenario_23_who_replaces_a_full_replica_gets_the_ids_that_only_the_witness_has() -> None:
    with witnessed(23) as town:
        (lost, other), (witness,) = roles(town, KEYS[0])
        for key in KEYS:
            assert write(town, other, value=b"o", key=key).error is None
        alike(town, 1, 2, 3)
        paused(town, 1, 2, 3)
        isolated(town, other, (lost, witness))
        assert write(town, lost, key=KEYS[0]).error is None
        isolated(town, other, (lost, witness), heal=True)
        replaced_by(town, 4, lost, (other, witness))
        assert rows_of(town, 4, KEYS[0]) == 10
        assert rows_read(town, 4, level=ONE, key=KEYS[0]) == [b"v"] * 10
        assert rows_read(town, other, key=KEYS[0]) == [b"v"] * 10
        paused(town, other, witness, is_paused=False)
        alike(town, other, witness, 4)
        del town.nodes[f"n{lost}"]
        whole(town, KEYS[0], asked=other)


def test_who_replaces_a_witness_gets_no_rows() -> None:
    with witnessed(24) as town:
        (first, second), (witness,) = roles(town, KEYS[0])
        paused(town, 1, 2, 3)
        isolated(town, second, (first, witness))
        assert write(town, first, key=KEYS[0]).error is None
        isolated(town, second, (first, witness), heal=True)
        replaced_by(town, 4, witness, (first, second))
        assert rows_of(town, 4, KEYS[0]) == 0
        isolated(town, first, (second, 4))
        assert rows_read(town, second, key=KEYS[0]) == [b"v"] * 10
        isolated(town, first, (second, 4), heal=True)
        paused(town, first, second, 4, is_paused=False)
        alike(town, first, second, 4)


def test_a_witness_refuses_what_its_journal_has_no_room_for_and_takes_it_afterwards() -> None:
    with witnessed(31) as town:
        (lost, other), (witness,) = roles(town, KEYS[0])
        away(town, lost, (other, witness))
        reconciler = town.node(witness).data.reconciler
        assert write(town, other, key=KEYS[0]).error is None
        assert reconciler.witness_bytes > 0
        reconciler.witness_bytes_max = 1
        town.wait(2)
        assert isinstance(write(town, witness, key=KEYS[0]).error, Overloaded)
        assert isinstance(write(town, other, value=b"x", key=KEYS[0]).error, WriteTimeout)
        assert rows_read(town, other, key=KEYS[0])
        codes = [one.code for one in town.node(witness).context.conditions.current()]
        assert [code for code in codes if "JOURNAL" in code] == ["WITNESS_JOURNAL_FULL"]
        reconciler.witness_bytes_max = reconciler.witness_bytes * 3 // 2
        town.wait(2)
        codes = [one.code for one in town.node(witness).context.conditions.current()]
        assert [code for code in codes if "JOURNAL" in code] == ["WITNESS_JOURNAL_LARGE"]
        back(town, lost)
        town.until(lambda: not reconciler.witness_bytes)
        town.wait(2)
        assert write(town, witness, ALL, value=b"y", key=KEYS[0]).error is None
        alike(town, 1, 2, 3)
        whole(town, KEYS[0])


def refused(town: Town, number: int, text: str) -> str:
    """With which words a statement is refused."""

    async def work(node: Node) -> str:
        host = node.context.configuration.network.address
        client = await CqlClient.connect(node.runtime, host, CQL_PORT, 1000)
        try:
            answer = await client.query(text, (), QUORUM)
        except CqlError as error:
            return str(error)
        finally:
            client.close()
        return f"not refused: {answer}"

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    return str(outcome.value)


def test_statements_say_what_a_keyspace_with_witnesses_has_and_refuse_what_it_has_not() -> None:
    with witnessed(32) as town:
        doors(town, 1, 2)
        described = told(town, 1, "DESCRIBE KEYSPACE ks")[0]
        assert b"'3/1'" in bytes(described[-1] or b"")
        (row,) = told(
            town, 1, "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'ks'", level=ONE
        )
        assert b"3/1" in bytes(row[0] or b"")
        told(town, 1, "CREATE INDEX by_v ON ks.t (v)")
        town.agreed(1, 2, 3)
        town.wait(2)
        rows = "; ".join(f"INSERT INTO ks.t (pk, ck, v) VALUES (0x0{n}, {n}, 'x')" for n in range(4))
        told(town, 1, f"BEGIN BATCH {rows}; APPLY BATCH")
        assert len(told(town, 2, "SELECT pk FROM ks.t")) == 4
        assert len(told(town, 2, "SELECT ck FROM ks.t WHERE v = 'x'")) == 4
        for text in (
            "CREATE TABLE ks.c (k int PRIMARY KEY, n counter)",
            "CREATE TABLE ks.u (k int PRIMARY KEY) WITH replication_type = 'untracked'",
            "CREATE MATERIALIZED VIEW ks.m AS SELECT * FROM ks.t WHERE pk IS NOT NULL AND ck IS NOT NULL "
            "AND v IS NOT NULL PRIMARY KEY (v, pk, ck)",
        ):
            assert "witnesses" in refused(town, 1, text), text
        alter = "ALTER KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '2'}"
        assert "added or removed" in refused(town, 1, alter)
        assert len(told(town, 2, "SELECT pk FROM ks.t")) == 4


def test_scenario_25_a_data_centre_of_witnesses_is_a_log_and_serves_no_data() -> None:
    """Three nodes keep the data, one at another place is a log alone; one of the three is lost, then the log
    is cut off: what was acknowledged at EACH_QUORUM is read."""
    town = Town(33, 4)
    town.placement["n4"] = 'num_tokens=2\ndc="dc2"'
    with town:
        town.found()
        options = (("class", "NetworkTopologyStrategy"), ("dc1", "3"), ("dc2", "1/1"))
        wanted = CreateKeyspace("ks", options, replication_type="tracked")
        assert town.finish(town.submit(1, ChangeSchema(wanted))).error is None
        made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        town.agreed(1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, Consistency.EACH_QUORUM, value=b"e", key=key).error is None
            assert roles(town, key)[1] == [4]
            assert rows_read(town, 4, key=key) == [b"e"] * 10, "by way of those that keep it"
        whole(town, *KEYS)

        async def read(node: Node) -> object:
            plain = looked_for(node, None, KEYS[0])
            return await node.data.coordinator.read(plain, Consistency.LOCAL_QUORUM, 1000)

        assert isinstance(town.finish(town.begin(4, read)).error, Unavailable)
        assert write(town, 4, Consistency.LOCAL_QUORUM, value=b"l", key=KEYS[0]).error is None
        away(town, 3, (1, 2, 4))
        for key in KEYS:
            assert write(town, 2, Consistency.EACH_QUORUM, value=b"f", key=key).error is None
        isolated(town, 4, (1, 2, 3))
        for key in KEYS:
            assert rows_read(town, 1, level=Consistency.LOCAL_QUORUM, key=key) == [b"f"] * 10
        isolated(town, 4, (1, 2, 3), heal=True)
        back(town, 3)
        alike(town, 1, 2, 3, 4)
        whole(town, *KEYS)


def altered(town: Town, factor: str) -> None:
    """Have the keyspace replicated otherwise, to the end."""
    target = parse_replication("ks", (("class", "NetworkTopologyStrategy"), ("dc1", factor)), ("dc1",))
    change = EnqueueRequest(ReplicationChange("ks", target), actor="operator")
    outcome = town.finish(town.submit(1, change))
    assert outcome.error is None, outcome.error

    def is_done() -> bool:
        now = town.newest
        return not now.operations and now.schema.by_name["ks"].replication == target

    town.until(is_done, 120)
    town.agreed(*(int(name[1:]) for name in town.nodes))


def test_a_keyspace_gets_a_witness_and_gives_it_up_while_ids_are_open() -> None:
    with witnessed(34, factor="3") as town:
        for key in KEYS:
            assert write(town, 1, value=b"o", key=key).error is None
        alike(town, 1, 2, 3)
        paused(town, 1, 2, 3)
        for key in KEYS[:4]:
            assert write(town, 1, value=b"p", key=key).error is None
        lone_write(town, b"lone")
        altered(town, "3/1")
        whole(town, *KEYS)
        for key in KEYS:
            wanted = [b"p" if key in KEYS[:4] else b"o"] * 10
            assert [rows_read(town, number, key=key) for number in (1, 2, 3)] == [wanted] * 3
        for key in KEYS[2:6]:
            (witness,) = roles(town, key)[1]
            given_by(town, witness, key)
        altered(town, "3")
        assert all(roles(town, key)[1] == [] for key in KEYS)
        for key in KEYS:
            wanted = [b"v" if key in KEYS[2:6] else b"p" if key in KEYS[:4] else b"o"] * 10
            assert rows_read(town, 2, level=ALL, key=key) == wanted
            (before,) = {1, 2, 3}.difference(_full_as_witnessed(town, key))
            assert rows_of(town, before, key) == 10
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3)
        assert rows_read(town, 3, key=b"lone") == [b"v"] * 10


def _full_as_witnessed(town: Town, key: bytes) -> list[int]:
    """Who kept the partition while there was one witness."""
    cluster = town.newest
    ring = cluster.placements.ring(cluster.schema.by_name["ks"].group)
    numbers = {int(node.context.own_id()): int(name[1:]) for name, node in town.nodes.items()}
    return [numbers[int(node)] for node in ring.group_for(token_of(key)).reads[:2]]
