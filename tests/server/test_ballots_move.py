"""What replicas accepted and nobody decided yet is there when others have taken their place."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cassandra.cluster import Cluster

from lockstep.consensus.paxos import Ballot, Proposal
from lockstep.coordination.ballot_rounds import Patience
from lockstep.replica.messages import Place, ProposeRequest
from lockstep.values.codec import encode
from lockstep.values.ids import Consistency
from lockstep.values.rows import ALL_ROWS, Cell, Liveness, Mutation, ReadCommand, Row
from lockstep.values.tokens import token_of
from tests.server.parts import CQL_PORT, Member, Nodes, nodes

_KEYS = [number.to_bytes(4, "big") for number in range(24)]
_VALUE = (7).to_bytes(4, "big")


def _until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.05)


def _make_table(member: Member) -> None:
    driver = Cluster([member.address], port=CQL_PORT)
    session = driver.connect()
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
    session.execute(f"CREATE KEYSPACE b WITH replication = {replication}")
    session.execute("CREATE TABLE b.t (k int PRIMARY KEY, v int)")
    driver.shutdown()


async def _accept(member: Member, key: bytes) -> None:
    """As if a coordinator had died after this replica accepted."""
    cluster = member.node.log.cluster
    table = cluster.schema.table("b", "t")
    assert table is not None
    at = Ballot(time.time_ns() // 1000, 1)
    cells = (Cell(table.by_name["v"].id, _VALUE, at.time_us),)
    rows = (Row(b"", Liveness(at.time_us), None, cells),)
    mutation = Mutation(table.id, token_of(key), key, b"\x01" * 14, at.time_us, rows=rows)
    place = Place(table.id, mutation.token, key)
    proposal = Proposal(at, at, encode(mutation))
    reply = await member.node.data.conditionals.shared.ballots.answer(
        ProposeRequest(cluster.epoch, cluster.epoch, place, proposal)
    )
    assert reply.accepted


async def _read(member: Member, key: bytes) -> bytes | None:
    table = member.node.log.cluster.schema.table("b", "t")
    assert table is not None
    token = token_of(key)
    command = ReadCommand(table.id, token - 1, token, key, ALL_ROWS, (), False, False, 1, 0, 0)
    found = await member.node.data.conditionals.read(command, Consistency.SERIAL, Patience(5000, 5000))
    cells = [cell for part in found.partitions for row in part.rows for cell in row.cells]
    return cells[0].value if cells else None


def _group(member: Member, key: bytes) -> set[int]:
    plans = member.node.data.conditionals.shared.plans
    table = member.node.log.cluster.schema.table("b", "t")
    assert table is not None
    plan = plans.write_plan(table.id, token_of(key), Consistency.QUORUM)
    return {target.node for target in plan.targets}


def _replaced(cluster: Nodes) -> list[bytes | None]:
    """Two of three accept; one of them leaves, the other one stops: what the two others say."""
    first, second = cluster.members[:2]
    leaving = cluster.add()
    _until(lambda: leaving.node.ready and not first.node.log.cluster.operations)
    _make_table(first)
    _until(lambda: all(m.node.log.cluster.epoch == first.node.log.cluster.epoch for m in cluster.members))
    accepting = {leaving.node.context.own_id(), second.node.context.own_id()}
    keys = [key for key in _KEYS if accepting <= _group(first, key)]
    assert keys, "some keys are on both"
    for key in keys:
        cluster.call(_accept(leaving, key))
        cluster.call(_accept(second, key))
    cluster.decommission(leaving)
    _until(lambda: all(leaving.node.context.own_id() not in _group(first, key) for key in keys))
    _until(lambda: not first.node.log.cluster.operations)
    cluster.stop(second)
    return [cluster.call(_read(first, key)) for key in keys]


def test_what_was_accepted_outlives_its_replicas() -> None:
    with tempfile.TemporaryDirectory() as directory, nodes(Path(directory), 3) as cluster:
        found = _replaced(cluster)
        assert found == [_VALUE] * len(found)
