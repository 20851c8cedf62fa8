"""Requests for data carry which ring they are planned with, where a cluster runs without a log: a coordinator
with the same epoch and another ring is refused.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockstep.internode import verbs
from lockstep.internode.frames import REQUEST, encode_frame, encode_request
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.ring_marks import RING_MARKS_MAX, RingMarks, mark_of
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.ring.carrying import ring_of
from lockstep.ring.ring import Mode, Ring
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.values.errors import RequestError
from lockstep.values.ids import Consistency
from tests.node.support import Outcome, keyspace
from tests.node.test_requests_while_moving import TIMEOUT_MS, rows_of, table_of
from tests.node.test_upgrade import RingTown

ALL = (1, 2, 3)


def founded() -> RingTown:
    town = RingTown(founders=3)
    town.found()
    town.finish(town.submit(1, keyspace("ks", 3)))
    columns = (
        NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
        NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "text"),
    )
    made = ChangeSchema(CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", columns))
    assert town.finish(town.submit(1, made)).error is None
    town.agreed(*ALL)
    return town


def write(town: RingTown, number: int, level: Consistency = Consistency.ALL) -> Outcome:
    async def work(node: Node) -> Any:
        change = Change("t", b"p", 1_000, level, TIMEOUT_MS, ((0, b"x"),))
        made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        return await node.data.coordinator.write(made, level, TIMEOUT_MS)

    return town.finish(town.begin(number, work))


def read(town: RingTown, number: int) -> Outcome:
    look = Look("t", b"p", None, Consistency.ALL, TIMEOUT_MS)
    return town.finish(town.begin(number, lambda node: rows_of(node, look)))


def in_another_mode(town: RingTown, number: int) -> Ring:
    """As if that node were of a ring of the same epoch, members and history that agrees by all members."""
    node = town.node(number)
    ring = ring_of(node.log.cluster)
    other = Ring(Mode.UNANIMOUS, ring.sequence, ring.members, ring.history)
    node.context.internode.own.note_ring(ring.sequence, other.fingerprint)
    return other


def test_a_coordinator_with_another_ring_of_the_same_epoch_is_refused() -> None:
    with founded() as town:
        assert write(town, 1).error is None and read(town, 2).value
        other = in_another_mode(town, 1)
        for outcome in (write(town, 1), read(town, 1)):
            assert isinstance(outcome.error, RequestError), outcome.error
            text = str(outcome.error)
            assert f"node 1 plans with another ring of epoch {other.sequence} than this node" in text
            assert f"{mark_of(other.fingerprint):016x} there" in text and "OTHER_RING" in text
        assert town.world.probes.counts["internode.other_ring"] >= 2
        # Those that agree serve on, as far as they need nobody else.
        assert write(town, 2, Consistency.QUORUM).error is None
        assert town.node(2).log.cluster.epoch == town.node(1).log.cluster.epoch
        # The next ring is the same everywhere, and so are its marks.
        town.changes(2, "after")
        town.agreed(*ALL)
        assert write(town, 1).error is None


def test_a_cluster_with_a_log_tells_no_marks() -> None:
    with founded() as town:
        assert all(town.node(n).context.internode.own.mark(verbs.WRITE) for n in ALL)
        assert not town.node(1).context.internode.own.mark(verbs.PING)
        assert town.finish(town.upgrade(1)).error is None
        town.until(town.built(*ALL))
        town.changes(1, "after")
        town.agreed(*ALL)
        assert not any(town.node(n).context.internode.own.mark(verbs.WRITE) for n in ALL)
        assert write(town, 1).error is None


def test_what_a_mark_costs() -> None:
    plain = encode_request(verbs.WRITE, 7, 20, b"body", 5.0, 6.0)
    assert plain == encode_frame(verbs.WRITE, 7, 20, REQUEST, b"body", 5000, 1000), "nothing without a ring"
    marked = encode_request(verbs.WRITE, 7, 20, b"body", 5.0, 6.0, mark=mark_of(b"\xff" * 32))
    assert len(marked) - len(plain) == 9


PEER = PeerInfo(3, "host", "127.0.0.3", 7000, "")


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=RING_MARKS_MAX + 5))
def test_marks_are_compared_with_those_of_the_same_epoch(prints: list[bytes]) -> None:
    marks = RingMarks()
    for epoch, fingerprint in enumerate(prints, 1):
        marks.note(epoch, fingerprint)
    for epoch, fingerprint in enumerate(prints, 1):
        mark = mark_of(fingerprint)
        assert mark and marks.refusal(PEER, epoch, mark) is None
        refused = marks.refusal(PEER, epoch, mark ^ 1)
        assert (refused is not None) is (epoch > len(prints) - RING_MARKS_MAX)
    assert marks.refusal(PEER, len(prints) + 1, 5) is None, "who is ahead is asked for what it has"
