"""A failed request says to its client why, whatever version it speaks, and the logs say so once a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cassandra import ConsistencyLevel, WriteFailure
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from lockstep.values.errors import DiskRefused
from tests.server.parts import CQL_PORT, Member, Nodes

WHY = "less than 134217728 bytes are free"


@contextmanager
def full(*members: Member) -> Iterator[None]:
    """Their storage refuses writes, as on a full disk."""

    def refuse(*_: object, **__: object) -> int:
        raise DiskRefused(WHY)

    parts = [member.node.data for member in members]
    engines = [engine for data in parts for engine in (data.engine, data.outlined)]
    kept = [engine.apply for engine in engines]
    for engine in engines:
        engine.apply = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        for engine, apply in zip(engines, kept, strict=True):
            engine.apply = apply  # type: ignore[method-assign]


@contextmanager
def connected(three: Nodes, version: int) -> Iterator[Session]:
    first = three.members[0].address
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([first]))
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    cluster = Cluster([first], port=CQL_PORT, protocol_version=version, execution_profiles=profiles)
    try:
        session = cluster.connect()
        session.execute(
            "CREATE KEYSPACE IF NOT EXISTS causes WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        session.execute("CREATE TABLE IF NOT EXISTS causes.t (k int PRIMARY KEY, v int)")
        yield session
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "text", ["INSERT INTO causes.t (k, v) VALUES (1, 1)", "UPDATE causes.t SET v = 2 WHERE k = 1 IF v = 1"]
)
def test_a_client_is_told_which_replica_failed_and_why(three: Nodes, version: int, text: str) -> None:
    one, two = three.members[1:]
    with connected(three, version) as session, full(one, two), pytest.raises(WriteFailure) as caught:
        session.execute(SimpleStatement(text, consistency_level=ConsistencyLevel.QUORUM))
    message = str(caught.value)
    for member in (one, two):
        assert f"UNKNOWN from /{member.address} (DISK_REFUSED: {WHY})" in message
    codes = caught.value.error_code_map
    assert codes == ({one.address: 0, two.address: 0} if version == 5 else None)


def test_both_sides_log_refusals_at_once_and_then_count_them(three: Nodes) -> None:
    one, two = three.members[1:]
    text = "INSERT INTO causes.t (k, v) VALUES (1, 1)"
    insert = SimpleStatement(text, consistency_level=ConsistencyLevel.QUORUM)
    with connected(three, 5) as session, full(one, two):
        for _ in range(5):
            with pytest.raises(WriteFailure):
                session.execute(insert)
    told = [facts for event, facts in three.members[0].log if event == "replica.refused"]
    told = [facts for facts in told if facts["code"] == "DISK_REFUSED" and facts["kind"] == "write"]
    assert sorted(facts["address"] for facts in told) == sorted((one.address, two.address)), "one line each"
    assert all(facts["reason"] == WHY for facts in told)
    for member in (one, two):
        refused = [facts for event, facts in member.log if event == "internode.request_refused"]
        writes = [facts for facts in refused if facts["verb"] == "write" and facts["code"] == "DISK_REFUSED"]
        assert len(writes) == 1 and writes[0]["of_node"] == three.members[0].node.context.own_id()
