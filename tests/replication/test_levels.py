"""Every level against factors and data centres: how many answers, of whom, and what too few are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lockstep.cql.wire import responses
from lockstep.quorum.failure_codes import causes_of, late, reasons_of
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import Target
from lockstep.values.errors import (
    CorruptFile,
    DiskRefused,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    ReadFailure,
    ReadTimeout,
    RequestError,
    StaleEpoch,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import ReadCommand, ReadResult

from .clusters import TABLE_ID, make_nodes, read_one, upsert, whole_ring
from .support import run
from .test_reads import give

C = Consistency
#: Replicas of each setting; ids have the tens of their data centre, and node 10 coordinates.
SETTINGS: dict[str, tuple[dict[str, int], list[int]]] = {
    "simple 1": ({"": 1}, [10]),
    "simple 3": ({"": 3}, [10, 11, 12]),
    "one dc 2": ({"dc1": 2}, [10, 11]),
    "one dc 3": ({"dc1": 3}, [10, 11, 12]),
    "dcs 3+3": ({"dc1": 3, "dc2": 3}, [10, 11, 12, 20, 21, 22]),
    "dcs 3+2+1": ({"dc1": 3, "dc2": 2, "dc3": 1}, [10, 11, 12, 20, 21, 30]),
    "away 3": ({"dc2": 3}, [20, 21, 22]),
}
#: (level, counts of each setting in their order: of all replicas, or of each data centre)
COUNTS: list[tuple[Consistency, tuple[int | dict[str, int], ...]]] = [
    (C.ONE, (1, 1, 1, 1, 1, 1, 1)),
    (C.TWO, (2, 2, 2, 2, 2, 2, 2)),
    (C.THREE, (3, 3, 3, 3, 3, 3, 3)),
    (C.QUORUM, (1, 2, 2, 2, 4, 4, 2)),
    (C.ALL, (1, 3, 2, 3, 6, 6, 3)),
    (C.LOCAL_ONE, tuple({"dc1": 1} for _ in SETTINGS)),
    (C.LOCAL_QUORUM, ({"dc1": 1}, *({"dc1": 2},) * 5, {"dc1": 1})),
    (
        C.EACH_QUORUM,
        (1, 2, {"dc1": 2}, {"dc1": 2}, {"dc1": 2, "dc2": 2}, {"dc1": 2, "dc2": 2, "dc3": 1}, {"dc2": 2}),
    ),
]
CASES = [
    (level, setting, count)
    for level, counts in COUNTS
    for setting, count in zip(SETTINGS, counts, strict=True)
]


def book(setting: str) -> PlanBook:
    factors, replicas = SETTINGS[setting]
    dcs = {node: f"dc{node // 10}" for node in {*replicas, 10}}
    cluster = whole_ring(5, replicas, factors=factors, dcs=dcs)
    return PlanBook(lambda: cluster, lambda: 10)


def total(count: int | Mapping[str, int]) -> int:
    return count if isinstance(count, int) else sum(count.values())


@pytest.mark.parametrize(("level", "setting", "count"), CASES)
def test_reads_and_writes_hear_as_many_as_the_level_says(
    level: Consistency, setting: str, count: int | dict[str, int]
) -> None:
    for plan in (book(setting).read_plan(TABLE_ID, 1, level), book(setting).write_plan(TABLE_ID, 1, level)):
        assert {need.dc: need.count for need in plan.needs} == (
            count if isinstance(count, dict) else {"": count}
        )
        assert plan.required == total(count)
        members = [target.node for target in plan.targets]
        local = [target.node for target in plan.targets if target.dc == "dc1"]
        if level in (C.LOCAL_ONE, C.LOCAL_QUORUM):
            assert plan.satisfied_by(local) == (len(local) >= plan.required)
            remote = [node for node in members if node not in local]
            assert not plan.satisfied_by(remote), "nobody elsewhere counts"


@pytest.mark.parametrize(("level", "setting", "count"), CASES)
def test_too_few_live_replicas_are_told_as_required_and_alive(
    level: Consistency, setting: str, count: int | dict[str, int]
) -> None:
    plan = book(setting).read_plan(TABLE_ID, 1, level)
    live = [target.node for target in plan.targets][:1]
    if plan.satisfied_by(live):
        return
    error = plan.shortage(live)
    local = sum(target.dc == "dc1" for target in plan.targets if target.node in live)
    message = f"Cannot achieve consistency level {level.name}"
    if isinstance(count, int):
        assert (error.required, error.alive) == (count, 1)
    elif level is C.EACH_QUORUM:
        dc = next(
            dc for dc, wanted in sorted(count.items()) if sum(n // 10 == int(dc[2]) for n in live) < wanted
        )
        message += f" in DC {dc}"
        assert (error.required, error.alive) == (count[dc], sum(n // 10 == int(dc[2]) for n in live))
    else:
        assert (error.required, error.alive) == (count["dc1"], local)
    assert error.message == message


@pytest.mark.parametrize("level", [C.LOCAL_ONE, C.LOCAL_QUORUM])
def test_a_local_level_asks_nobody_elsewhere_and_waits_for_nobody_there(level: Consistency) -> None:
    async def test() -> None:
        dcs = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
        cluster = whole_ring(5, [4, 5, 6, 1, 2, 3], factors={"a": 3, "b": 3}, dcs=dcs)
        wire, nodes = make_nodes(6, cluster)
        away = {("n4", 1), ("n5", 1), ("n6", 1)}
        wire.lose = lambda address, verb: address in away or address == ("n2", 1)
        await nodes[0].coordinator.read(read_one(1), level, 600)
        assert not away & {address for address, _ in wire.log}
        await nodes[0].coordinator.write(upsert(1), level, 600)

    run(test)


def broken(command: ReadCommand) -> ReadResult:
    raise CorruptFile("sst", 3, "checksum")


#: (what replicas 2 and 3 of three do, what a read and a write at QUORUM of node 1 are told)
FAULTS: list[tuple[str, str, type[RequestError], type[RequestError]]] = [
    ("seem dead", "seem dead", Unavailable, Unavailable),
    ("silent", "silent", ReadTimeout, WriteTimeout),
    ("unreachable", "unreachable", ReadTimeout, WriteTimeout),
    ("failing", "silent", ReadTimeout, WriteTimeout),
    ("failing", "failing", ReadFailure, WriteFailure),
]


@pytest.mark.parametrize(("second", "third", "reading", "writing"), FAULTS)
def test_what_is_known_of_a_failure_decides_how_it_is_told(
    second: str, third: str, reading: type[RequestError], writing: type[RequestError]
) -> None:
    """A failure is told only when too few replicas are left; what may still come is a timeout."""

    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1))
        acts = {2: second, 3: third}
        wire.lose = lambda address, verb: acts.get(int(address[0][1:])) == "silent"
        wire.down = {(f"n{node}", 1) for node, act in acts.items() if act == "unreachable"}
        nodes[0].dead = {node for node, act in acts.items() if act == "seem dead"}
        for node, act in acts.items():
            if act == "failing":
                nodes[node - 1].engine.answer = broken  # type: ignore[method-assign]
                nodes[node - 1].engine.sync_error = DiskRefused("the disk is full")
        errors: list[LockstepError] = []
        for work in (
            nodes[0].coordinator.read(read_one(1), C.QUORUM, 150),
            nodes[0].coordinator.write(upsert(1, b"z"), C.QUORUM, 150),
        ):
            with pytest.raises(RequestError) as caught:
                await work
            errors.append(caught.value)
        assert [type(error) for error in errors] == [reading, writing]
        for error in errors:
            assert error.required == 2  # type: ignore[attr-defined]
            if isinstance(error, Unavailable):
                assert error.alive == 1
                continue
            assert error.received == 1  # type: ignore[attr-defined]
            if isinstance(error, ReadFailure | WriteFailure):
                assert error.failures == 2 and not error.retriable
                assert error.reasons == (), "names of hosts are no addresses"
            if isinstance(error, ReadTimeout | ReadFailure):
                assert error.data_present, "this node gave its answer"
        assert not errors[1].outcome_known or isinstance(errors[1], Unavailable)

    run(test)


def test_a_failure_says_what_is_behind_a_number_that_says_nothing() -> None:
    targets = [Target(NodeId(n), (f"10.0.0.{n}", 1), "dc1") for n in range(1, 6)]
    failures = {
        NodeId(1): DiskRefused("less than 128 MiB free"),
        NodeId(2): NotReplica("node 2 receives no writes for token 7"),
        NodeId(3): StaleEpoch(9, "stale_placement"),
        NodeId(4): StaleEpoch(9, "stale_table"),
        NodeId(5): CorruptFile("sst", 3, "checksum " * 100),
    }
    assert [code for _, code in reasons_of(targets, failures)] == [0, 9, 10, 3, 0]
    causes = causes_of(targets, failures)
    error = WriteFailure(C.QUORUM, 1, 2, 5, "SIMPLE", reasons_of(targets, failures), causes)
    assert error.message.startswith(
        "Operation failed - received 1 responses and 5 failures: "
        "UNKNOWN from /10.0.0.1 (DISK_REFUSED: less than 128 MiB free), "
        "INVALID_ROUTING from /10.0.0.2 (NOT_REPLICA: node 2 receives no writes for token 7), "
        "COORDINATOR_BEHIND from /10.0.0.3 (STALE_EPOCH: "
    )
    assert len(causes) < 1000 and causes.endswith("…)")
    timeout = late(WriteTimeout(C.QUORUM, 1, 2, "SIMPLE"), targets, {NodeId(2): PeerTimeout("silent")})
    assert timeout.message == "Operation timed out - received only 1 responses.", "it says so already"
    told = late(WriteTimeout(C.QUORUM, 1, 2, "SIMPLE"), targets, {NodeId(1): Overloaded("too many writes")})
    assert told.message.endswith(" Failures: UNKNOWN from /10.0.0.1 (CQL_OVERLOADED: too many writes)")


def test_each_failed_replica_is_named_with_its_reason() -> None:
    targets = [Target(NodeId(n), (f"10.0.0.{n}" if n < 5 else "name", 1), "dc1") for n in range(1, 6)]
    failures = {
        NodeId(1): CorruptFile("sst", 3, "checksum"),
        NodeId(2): PeerTimeout("late"),
        NodeId(3): PeerUnreachable("down"),
        NodeId(5): CorruptFile("sst", 3, "checksum"),
    }
    reasons = reasons_of(targets, failures)
    assert reasons == (("10.0.0.1", 0), ("10.0.0.2", 2), ("10.0.0.3", 5)), "node 5 has no number as address"
    error = WriteFailure(C.QUORUM, 1, 2, 4, "SIMPLE", reasons)
    assert error.message == (
        "Operation failed - received 1 responses and 4 failures: UNKNOWN from /10.0.0.1, "
        "TIMEOUT from /10.0.0.2, NODE_DOWN from /10.0.0.3"
    )
    for version, wanted in ((5, 4), (4, 4)):
        body = responses.error(version, error)
        # Behind the code, the message, the level and two counts.
        at = 4 + 2 + len(error.message) + 2 + 8
        assert int.from_bytes(body[at : at + 4], "big") == wanted, "failures without an address count too"
