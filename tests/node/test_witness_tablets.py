"""Tablets of which each has a witness, on real nodes in a simulated world: it moves as a witness, and is cut
with its tablet."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.placement.tablets.resize import ResizeKind
from lockstep.schema.changes import CreateKeyspace, CreateTable
from lockstep.topology.roles import readers
from lockstep.topology.tablets.asked import AskResize
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.values.errors import Rejected
from tests.node.support import Town, leave
from tests.node.test_hints import away
from tests.node.test_tracked import ALL, COLUMNS, isolated, paused, rows_of, rows_read, write
from tests.node.test_tracked_moves import KEYS, alike
from tests.node.test_tracked_tablets import TABLETS, group_of, moved, own_number, resized, spare, tablet_of
from tests.node.test_tracked_witnesses import given_by, replication
from tests.node.test_witness_decisions import acceptor, decided


def witnessed(seed: int, nodes: int = 4, *, is_balanced: bool = False) -> Town:
    town = Town(seed, nodes)
    town.found()
    spread = (("initial", str(TABLETS)),)
    wanted = CreateKeyspace("ks", replication("3/1"), tablets=spread, replication_type="tracked")
    made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)
    changes = [ChangeSchema(wanted), ChangeSchema(made)]
    for change in changes if is_balanced else (SetBalancing(False), *changes):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(*range(1, nodes + 1))
    return town


def roles(town: Town, key: bytes) -> tuple[list[int], list[int]]:
    """Ids of the nodes that keep a partition, and of its witnesses."""
    cluster, placed = town.newest, tablet_of(town, key)
    shown = readers(cluster, cluster.placements.ring(group_of(town)), placed)
    return [int(node) for node in shown], [int(n) for n in placed.group.reads if n not in shown]


def whole(
    town: Town, keys: tuple[bytes, ...], value: bytes = b"v", asked: tuple[int, ...] = (1, 2, 3, 4)
) -> None:
    """Full replicas have all rows, witnesses none, and every node reads them."""
    for number, key in enumerate(keys):
        full, witnesses = roles(town, key)
        assert len(full) == 2 and len(witnesses) == 1
        assert [rows_of(town, own_number(town, node), key) for node in full] == [10, 10]
        assert [rows_of(town, own_number(town, node), key) for node in witnesses] == [0]
        assert rows_read(town, asked[number % len(asked)], key=key) == [value] * 10


def test_each_tablet_has_a_witness_and_data_is_spread() -> None:
    with witnessed(81) as town:
        for number, key in enumerate(KEYS):
            assert write(town, 1 + number % 4, key=key).error is None
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS)
        ring = town.newest.placements.ring(group_of(town))
        keeping = [node for placed in ring.ranges for node in readers(town.newest, ring, placed)]
        assert {keeping.count(node) for node in set(keeping)} == {2}, "four tablets, two copies, four nodes"


def test_a_witness_is_moved_as_a_witness_and_a_full_replica_as_a_full_one() -> None:
    with witnessed(82) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
            assert decided(town, 1, b"d" + key)
        alike(town, 1, 2, 3, 4)
        paused(town, 1, 2, 3, 4)
        for key in KEYS[:2]:
            assert write(town, 1, ALL, value=b"w", key=key).error is None
        for key, role in ((KEYS[0], 1), (KEYS[1], 0)):
            before, target = roles(town, key), spare(town, key)
            source = before[role][0]
            moved(town, key, source, target)
            after = roles(town, key)
            assert after[role] == [target if node == source else node for node in before[role]]
            assert after[1 - role] == before[1 - role]
        whole(town, KEYS[:2], b"w")
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS[2:])
        for key in KEYS:
            assert not decided(town, 3, b"d" + key, b"other")


def test_a_witness_that_moves_hands_on_what_it_alone_holds_and_promised() -> None:
    with witnessed(83) as town:
        paused(town, 1, 2, 3, 4)
        key = KEYS[0]
        full, (witness,) = roles(town, key)
        first, second, third = (own_number(town, node) for node in (*full, witness))
        isolated(town, second, (first, third))
        assert decided(town, first, key)
        isolated(town, second, (first, third), heal=True)
        given_by(town, third, key)
        known = acceptor(town, third, key)
        target = spare(town, key)
        moved(town, key, witness, target)
        assert acceptor(town, own_number(town, target), key).promised >= known.promised
        isolated(town, first, (1, 2, 3, 4))
        assert rows_read(town, second, key=key) == [b"v"] * 10
        assert not decided(town, second, key, b"other")


def test_each_replica_of_a_node_that_leaves_goes_on_in_its_role() -> None:
    with witnessed(84, is_balanced=True) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        alike(town, 1, 2, 3, 4)
        lost = roles(town, KEYS[0])[0][0]
        number = own_number(town, lost)
        others = tuple(n for n in (1, 2, 3, 4) if n != number)
        outcome = town.finish(town.submit(others[0], leave(lost)))
        assert outcome.error is None, outcome.error
        town.until(lambda: town.state_of(lost) is NodeState.LEFT, 300)
        town.until(lambda: not town.newest.transitions.count, 120)
        alike(town, *others)
        whole(town, KEYS, asked=others)


def test_a_tablet_is_split_with_its_witness_and_none_is_merged() -> None:
    with witnessed(85) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 2, value=b"w", key=key).error is None
        before = {key: roles(town, key) for key in KEYS}
        resized(town, ResizeKind.SPLIT, 2 * TABLETS)
        assert {key: roles(town, key) for key in KEYS} == before
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS, b"w")
        refused = town.finish(town.submit(1, AskResize(group_of(town), ResizeKind.MERGE)))
        assert isinstance(refused.error, Rejected) and "witness" in refused.error.message
        assert refused.error.hint


@pytest.mark.parametrize("role", [0, 1])
def test_quorums_hold_while_a_replica_of_a_tablet_is_down(role: int) -> None:
    with witnessed(86 + role) as town:
        key = KEYS[3]
        lost = own_number(town, roles(town, key)[role][0])
        away(town, lost, tuple(n for n in (1, 2, 3, 4) if n != lost))
        for asked in (n for n in (1, 2, 3, 4) if n != lost):
            assert write(town, asked, value=b"%d" % asked, key=key).error is None
            assert rows_read(town, asked, key=key) == [b"%d" % asked] * 10
            assert not decided(town, asked, key)
