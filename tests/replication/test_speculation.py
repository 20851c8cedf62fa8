"""Asking one more replica: policies of tables, waits by what requests took, and read repair turned off."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.schema_part import SCHEMA
from lockstep.quorum.speculation import Histogram, Latencies, Part, Policy, policy_of
from lockstep.schema.model import KeyspaceHead, keyspace_of, schema_of
from lockstep.schema.table_options import checked_options
from lockstep.values.errors import ReadTimeout
from lockstep.values.ids import Consistency
from lockstep.values.limits import LATENCY_SAMPLES_MAX, LATENCY_SAMPLES_MIN, LATENCY_TABLES_MAX

from .clusters import TABLE_ID, make_nodes, read_one, shown, upsert, whole_ring
from .support import run
from .test_reads import give

QUORUM = Consistency.QUORUM
TEXTS = [
    ("NONE", Policy()),
    ("none", Policy()),
    ("ALWAYS", Policy(always=True)),
    ("99p", Policy((Part(99, True),))),
    ("99.5percentile", Policy((Part(99.5, True),))),
    ("99PERCENTILE", Policy((Part(99, True),))),
    ("50ms", Policy((Part(50, False),))),
    ("MIN(99p,50ms)", Policy((Part(99, True), Part(50, False)))),
    ("max( 99.9p , 20ms )", Policy((Part(99.9, True), Part(20, False)), longest=True)),
]


def with_options(cluster: ClusterMetadata, **options: str) -> ClusterMetadata:
    """The cluster with these options of its only table."""
    keyspace, table = cluster.schema.by_name["ks"], cluster.table(TABLE_ID)
    assert table is not None
    changed = msgspec.structs.replace(table, options=checked_options(tuple(options.items())))
    head = KeyspaceHead("ks", keyspace.replication, epoch=1, group=1)
    schema = schema_of([keyspace_of(head, (changed,))], 2)
    return cluster.changed(SCHEMA.set(schema))


@pytest.mark.parametrize(("text", "policy"), TEXTS)
def test_every_form_of_a_policy_is_understood(text: str, policy: Policy) -> None:
    assert dict(checked_options((("speculative_retry", text),)))["speculative_retry"] == text
    assert policy_of(text) == policy


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.01, 70_000), min_size=1, max_size=300),
    st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9]),
)
def test_a_percentile_is_that_of_the_sorted_list_within_a_bucket(times: list[float], percent: float) -> None:
    histogram = Histogram()
    for took_ms in times:
        histogram.add(took_ms)
    exact = sorted(times)[max(0, math.ceil(len(times) * percent / 100) - 1)]
    found = histogram.percentile(percent)
    assert max(exact, 0.1) * 0.999 <= found <= max(exact * 1.201, 0.1001)


def test_old_requests_fade_and_little_is_remembered() -> None:
    histogram = Histogram()
    for _ in range(LATENCY_SAMPLES_MAX):
        histogram.add(1000)
    for _ in range(LATENCY_SAMPLES_MAX * 8):
        histogram.add(1)
        assert histogram.total <= LATENCY_SAMPLES_MAX
    assert histogram.percentile(99) < 2
    known = Latencies()
    for table_id in range(LATENCY_TABLES_MAX + 5):
        known.add(table_id, 0.001)
    assert len(known._by_table) == LATENCY_TABLES_MAX


def test_how_long_a_request_waits() -> None:
    known = Latencies()
    percentile, fixed = policy_of("99p"), policy_of("50ms")
    assert known.wait_s(1, percentile, 10.0) == pytest.approx(0.2), "nothing is known yet"
    assert known.wait_s(1, percentile, 0.4) == pytest.approx(0.1), "a quarter of its time at most"
    for _ in range(LATENCY_SAMPLES_MIN):
        known.add(1, 0.010)
    assert known.wait_s(1, percentile, 10.0) == pytest.approx(0.010, rel=0.2)
    assert known.wait_s(2, percentile, 10.0) == pytest.approx(0.2), "of another table"
    assert known.wait_s(1, fixed, 0.01) == pytest.approx(0.05)
    assert known.wait_s(1, policy_of("MIN(99p,5ms)"), 10.0) == pytest.approx(0.005)
    assert known.wait_s(1, policy_of("MAX(99p,70ms)"), 10.0) == pytest.approx(0.07)
    assert known.wait_s(1, policy_of("NONE"), 10.0) is None
    assert known.wait_s(1, policy_of("ALWAYS"), 10.0) == 0.0


@pytest.mark.parametrize(("text", "answered"), [("ALWAYS", True), ("5ms", True), ("NONE", False)])
def test_a_table_says_when_one_more_replica_is_asked(text: str, answered: bool) -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, with_options(whole_ring(5, [1, 2, 3]), speculative_retry=text))
        give(nodes, upsert(1, b"a", b"x"))
        wire.lose = lambda address, verb: address == ("n2", 1)
        reading = nodes[0].coordinator.read(read_one(1), QUORUM, 150)
        if answered:
            assert shown(await reading) == [(1, b"a", b"x")]
            assert len(wire.log) == 2, "this node does not ask itself"
        else:
            with pytest.raises(ReadTimeout):
                await reading
        counters = nodes[0].coordinator.extra_requests()
        assert (counters.asked, counters.missed) == (int(answered), 0)

    run(test)


def test_what_came_of_it_is_counted() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, with_options(whole_ring(5, [1, 2, 3]), speculative_retry="5ms"))
        wire.lose = lambda address, verb: True
        with pytest.raises(ReadTimeout):
            await nodes[0].coordinator.read(read_one(1), QUORUM, 100)
        counters = nodes[0].coordinator.extra_requests()
        assert (counters.asked, counters.missed) == (1, 1)

    run(test)


def test_a_table_without_read_repair_merges_and_leaves_replicas_as_they_are() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, with_options(whole_ring(5, [1, 2, 3]), read_repair="NONE"))
        give(nodes[:1], upsert(1, b"a", b"x"))
        give(nodes[1:2], upsert(1, b"b", b"y", 1, 2))
        result = await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)
        assert shown(result) == [(1, b"a", b"x"), (1, b"b", b"y")]
        assert {verb for _, verb in wire.log} == {verbs.READ}
        assert [len(node.engine.applied) for node in nodes] == [1, 1, 0]

    run(test)


@pytest.mark.parametrize(("text", "extended"), [("5ms", 1), ("NONE", 0)])
def test_a_repair_turns_to_others_by_the_policy_of_additional_writes(text: str, extended: int) -> None:
    async def test() -> None:
        cluster = with_options(whole_ring(5, [1, 2, 3]), additional_write_policy=text)
        wire, nodes = make_nodes(3, cluster)
        give(nodes[:1], upsert(1, b"a", b"x"))
        wire.lose = lambda address, verb: verb == verbs.READ_REPAIR and address == ("n2", 1)
        reading = nodes[0].coordinator.read(read_one(1), QUORUM, 100)
        if extended:
            assert shown(await reading) == [(1, b"a", b"x")]
        else:
            with pytest.raises(ReadTimeout):
                await reading
        assert nodes[0].coordinator.extra_requests().repairs_extended == extended

    run(test)
