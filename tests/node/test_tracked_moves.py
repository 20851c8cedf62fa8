"""Replicas of tracked tables that move: who is filled knows by ids what it holds; nothing seen is unseen."""

from __future__ import annotations

from lockstep.metadata.directory import NodeState
from lockstep.replica.tracked import group_of
from lockstep.schema.model import Replication
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import token_of
from tests.node.support import Town, leave
from tests.node.test_hints import away, back
from tests.node.test_tracked import ONE, lone_write, paused, rows_of, rows_read, tracked, unreconciled, write

KEYS = tuple(b"k%d" % number for number in range(8))
LONE = tuple(b"lone%d" % number for number in range(6))


def comes(town: Town, number: int) -> None:
    town.start(number)
    town.until(lambda: town.ready(number), 300)
    assert town.state_of(number) is NodeState.NORMAL


def alike(town: Town, *numbers: int) -> None:
    """Wait until each replica of each range holds the same, and knows it."""

    def same() -> bool:
        nodes = {int(town.node(number).context.own_id()): town.node(number) for number in numbers}
        for node in nodes.values():
            journal = node.data.reconciler.journal
            journal.validate()
            for shard, logs in journal.shards.items():
                group = group_of(node.log.cluster, shard)
                others = group.writes if group is not None else ()
                if any(nodes[one].data.reconciler.journal.held(shard) != logs.held for one in others):
                    return False
        return not any(unreconciled(town, number) for number in numbers)

    town.until(same, 60)


def has(town: Town, number: int, key: bytes) -> bool:
    """Whether a node is a replica of a partition."""
    node = town.node(number)
    journal = node.data.replica.journal
    assert journal is not None
    (group,) = node.log.cluster.schema.by_name["ks"].groups
    ring = node.log.cluster.placements.ring(group)
    return node.context.own_id() in ring.group_for(token_of(key)).reads


def test_scenario_21_who_joins_while_much_is_unreconciled_answers_alone_afterwards() -> None:
    with tracked(21) as town:
        paused(town, 1, 2, 3)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        for key in LONE:
            lone_write(town, key)
        assert unreconciled(town, 1) == len(KEYS) + len(LONE)
        seen = {key: rows_read(town, 2, key=key) for key in LONE[:3]}
        comes(town, 4)
        own = [key for key in KEYS if has(town, 4, key)]
        assert own, "some partitions are the newcomer's"
        for key in KEYS:
            assert rows_read(town, 4, key=key) == [b"v"] * 10
        for key in own:
            assert rows_of(town, 4, key) == 10
            assert rows_read(town, 4, level=ONE, key=key) == [b"v"] * 10
        for key, rows in seen.items():
            assert rows_read(town, 4, key=key) == rows or not rows, "what was seen is seen"
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3, 4)
        for key in LONE:
            assert rows_read(town, 3, key=key) == [b"v"] * 10


def test_who_leaves_holds_nothing_that_is_needed() -> None:
    with tracked(22, 4) as town:
        for key in KEYS:
            assert write(town, 3, key=key).error is None
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 3, value=b"w", key=key).error is None
        assert town.finish(town.submit(1, leave(3))).error is None
        town.until(lambda: town.state_of(3) is NodeState.LEFT, 300)
        paused(town, 1, 2, 4, is_paused=False)
        alike(town, 1, 2, 4)
        for key in KEYS:
            assert [rows_of(town, number, key) for number in (1, 2, 4)] == [10, 10, 10]
            assert rows_read(town, 4, key=key) == [b"w"] * 10


def test_scenario_22_a_join_with_a_replica_down_goes_on_once_it_is_back() -> None:
    with tracked(23) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        away(town, 3)
        for key in KEYS:
            assert write(town, 1, value=b"w", key=key).error is None
        town.start(4)
        town.wait(30)
        back(town, 3)
        town.until(lambda: town.ready(4), 300)
        alike(town, 1, 2, 3, 4)
        for key in KEYS:
            assert rows_read(town, 4, key=key) == [b"w"] * 10


def test_tracked_replicas_are_not_given_up_by_force() -> None:
    with tracked(24) as town:
        error = town.finish(town.submit(1, ForceRemove(NodeId(3), "it burned"))).error
        assert isinstance(error, Rejected) and "tracked" in error.message


def test_scenario_23_who_replaces_the_only_holder_of_a_write_has_all_that_was_acknowledged() -> None:
    with tracked(25) as town:
        paused(town, 1, 2, 3)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        lone_write(town, LONE[0], holder=3)
        away(town, 3)
        assert rows_read(town, 2, key=LONE[0]) == [], "nobody else has it"
        town.cluster_lines["n4"] = 'seeds=["127.0.0.1", "127.0.0.2"]\nreplaces=3'
        comes(town, 4)
        paused(town, 1, 2, is_paused=False)
        alike(town, 1, 2, 4)
        for key in KEYS:
            assert rows_read(town, 4, key=key) == [b"v"] * 10
        assert [rows_read(town, number, key=LONE[0]) for number in (1, 2, 4)] == [[], [], []]


def test_a_replication_that_grows_and_shrinks_takes_the_ids_along() -> None:
    with tracked(26, 4) as town:
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        for factor in (4, 3):
            target = Replication("SimpleStrategy", (("", factor),))
            asked = EnqueueRequest(ReplicationChange("ks", target), actor="operator")
            outcome = town.finish(town.submit(1, asked))
            assert outcome.error is None, outcome.error
            town.until(lambda: not town.newest.requests.live, 200)
            for key in KEYS:
                assert rows_read(town, 4, key=key) == [b"v"] * 10
            if factor == 4:
                assert all(rows_of(town, number, key) == 10 for number in (1, 2, 3, 4) for key in KEYS)
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
