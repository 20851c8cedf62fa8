"""What an operation has moved: never less than before, and still told after its end."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request
from lockstep.node.log.messages import WorkStatus
from lockstep.node.work.moved import COUNTED_BYTES_MIN, COUNTED_SHARE, OPERATIONS_KEPT_MAX, Amount, Moved
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.planning import streaming_session
from lockstep.topology.step import work_orders
from lockstep.topology.transformations import (
    AdvanceOperation,
    CancelOperation,
    CountMoved,
    PrepareOperation,
)
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started

REPORTS = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.sampled_from(["s1", "s2"]),
        st.integers(1, 3),
        st.integers(0, 100),
        st.sampled_from(["running", "failed", "done"]),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(REPORTS)
def test_counts_never_fall_and_are_the_sum_of_the_most_that_each_node_said(
    reports: list[tuple[int, str, int, int, str]],
) -> None:
    moved = Moved()
    most: dict[tuple[int, str, int], int] = {}
    before = {1: 0, 2: 0}
    for operation, session, node, count, state in reports:
        said = WorkStatus(state, moved_bytes=count, files_done=count, total_bytes=50)
        part = moved.note((operation, session, NodeId(node)), said)
        assert part.state == state and part.total_bytes >= part.moved_bytes
        key = (operation, session, node)
        most[key] = max(most.get(key, 0), count)
        for one in (1, 2):
            told = moved.parts(one)
            now = told.files_done if told is not None else 0
            assert now == sum(value for key, value in most.items() if key[0] == one)
            assert now >= before[one]
            before[one] = now


def test_only_the_latest_operations_are_kept() -> None:
    moved = Moved()
    for operation in range(1, OPERATIONS_KEPT_MAX + 2):
        moved.note((operation, "s", NodeId(1)), WorkStatus("done", moved_bytes=1))
    assert moved.parts(1) is None and moved.parts(2) is not None


def test_the_time_left_is_that_of_the_slowest_part_that_runs() -> None:
    moved = Moved()
    moved.note((1, "s", NodeId(1)), WorkStatus("running", rate_bytes_s=10, left_s=5))
    moved.note((1, "s", NodeId(2)), WorkStatus("done", rate_bytes_s=0, left_s=-1))
    total = moved.parts(1)
    assert total is not None and (total.rate_bytes_s, total.left_s) == (10, 5)
    moved.note((1, "s", NodeId(3)), WorkStatus("running", rate_bytes_s=0, left_s=-1))
    total = moved.parts(1)
    assert total is not None and total.left_s == -1, "nobody can tell"


class Leaving:
    """Node 4 of four leaves a keyspace of two replicas."""

    def __init__(self) -> None:
        self.moved = Moved()
        self.history: History = started([(100,), (200,), (300,), (400,)], ("ks", simple(2)))
        self.history.submit(PrepareOperation(Decommission(NodeId(4))))

    def advance(self) -> None:
        operation = self.operation
        brought = self.moved.brought(operation)
        self.history.submit(
            AdvanceOperation(operation.id, operation.stage, 0, 0, brought.bytes, brought.fragments)
        )

    @property
    def now(self) -> ClusterMetadata:
        return self.history.now

    @property
    def operation(self) -> Operation:
        return self.now.operations[0]

    @property
    def request(self) -> Request:
        return (*self.now.requests.live, *self.now.requests.ended)[0]

    @property
    def told(self) -> int:
        return self.moved.told(self.request).bytes

    def hear(self, node: int, taken_bytes: int, session: str | None = None) -> None:
        key = (self.operation.id, self.operation.session_id if session is None else session, NodeId(node))
        said = WorkStatus("running", taken_bytes=taken_bytes, taken_fragments=taken_bytes // 10)
        self.moved.heard(self.operation, key, said)

    def count(self) -> CountMoved | None:
        """What a coordinator does between two steps."""
        due = self.moved.due(self.now)
        if due is not None:
            self.history.submit(due)
        return due

    def stream(self) -> tuple[NodeId, NodeId]:
        """On to the stage that streams: the two that take something in."""
        while self.operation.stage is not Stage.WRITE_BOTH_READ_OLD:
            self.advance()
        first, second = sorted(order.node for order in work_orders(self.operation, self.now, ()))
        return first, second


MUCH: Final = 10 * COUNTED_BYTES_MIN


def test_what_is_told_is_what_the_metadata_counts() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    leaving.hear(first, MUCH)
    leaving.hear(second, 50)
    leaving.hear(first, 30)
    assert leaving.told == 0
    assert leaving.count() is not None
    assert leaving.told == MUCH + 50, "a node that says less has begun anew"
    assert leaving.count() is None, "nothing came since"
    leaving.hear(first, 3 * MUCH, session="operation-1-prepared")
    assert leaving.count() is None, "a report of another stage comes late"
    leaving.hear(second, -1)
    assert leaving.count() is None, "an older version does not say"
    leaving.hear(second, 60)
    assert leaving.count() is None, "too little for an entry"
    leaving.advance()
    assert (leaving.told, leaving.request.moved_fragments) == (MUCH + 60, MUCH // 10 + 6)
    assert leaving.operation.counted_bytes == 0, "the next streams begin at nothing"


def test_an_entry_counts_a_share_of_what_there_is_to_move() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    key = (leaving.operation.id, leaving.operation.session_id, first)
    leaving.moved.note(key, WorkStatus("running", total_bytes=int(2 * MUCH / COUNTED_SHARE)))
    leaving.hear(first, MUCH)
    assert leaving.count() is None
    leaving.hear(second, MUCH)
    assert leaving.count() is not None


def test_a_new_coordinator_that_heard_of_less_takes_nothing_back() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    leaving.hear(first, MUCH)
    leaving.hear(second, MUCH)
    leaving.count()
    leaving.moved = Moved()
    assert leaving.told == 2 * MUCH
    leaving.hear(first, MUCH + 5)
    assert leaving.count() is None
    leaving.advance()
    assert leaving.told == 2 * MUCH, "the receiver that was lost had taken in what was counted"


def test_what_came_before_a_cancel_is_counted_with_its_end() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    leaving.hear(first, MUCH)
    leaving.count()
    session = streaming_session(leaving.operation)
    leaving.history.submit(CancelOperation(leaving.operation.id, "changed our minds"))
    assert streaming_session(leaving.operation) == session != leaving.operation.session_id
    assert (leaving.told, leaving.operation.counted_bytes) == (MUCH, MUCH)
    leaving.hear(second, 2)
    leaving.hear(first, MUCH + 7)
    leaving.advance()
    assert (leaving.told, leaving.request.moved_bytes, leaving.now.operations) == (MUCH + 9, MUCH + 9, ())


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1)])
def test_no_stage_moves_less_than_nothing(counts: tuple[int, int]) -> None:
    leaving = Leaving()
    with pytest.raises(Rejected, match="less than nothing"):
        AdvanceOperation(leaving.operation.id, leaving.operation.stage, 0, 0, *counts).apply(leaving.now, 99)


@pytest.mark.parametrize(
    ("session", "moved_bytes", "fragments", "reason"),
    [
        ("operation-9-streaming", MUCH + 1, MUCH, "does not stream as"),
        ("", MUCH + 1, MUCH, "does not stream as"),
        (None, MUCH, MUCH, "has counted"),
        (None, MUCH + 1, MUCH // 10 - 1, "has counted"),
    ],
)
def test_a_count_that_is_late_or_less_is_refused(
    session: str | None, moved_bytes: int, fragments: int, reason: str
) -> None:
    leaving = Leaving()
    first, _ = leaving.stream()
    leaving.hear(first, MUCH)
    leaving.count()
    named = streaming_session(leaving.operation) if session is None else session
    with pytest.raises(Rejected, match=reason):
        CountMoved(leaving.operation.id, named, moved_bytes, fragments).apply(leaving.now, 99)


def test_a_request_tells_what_is_counted_and_the_rest_of_what_this_node_heard() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    for node, taken in ((first, MUCH), (second, 20)):
        said = WorkStatus("running", moved_bytes=90, total_bytes=200, ranges_done=1, ranges_total=2)
        leaving.moved.note((leaving.operation.id, leaving.operation.session_id, NodeId(node)), said)
        leaving.hear(node, taken)
    found = leaving.moved.of(leaving.request)
    assert found is not None
    assert (found.moved_bytes, found.total_bytes, found.ranges_done, found.ranges_total) == (0, 400, 2, 4)
    leaving.count()
    found = leaving.moved.of(leaving.request)
    assert found is not None and (found.moved_bytes, found.total_bytes) == (MUCH + 20, MUCH + 20)
    assert Moved().of(Leaving().request) is None
    assert Amount(1, 2).most(Amount(2, 1)) == Amount(2, 2)
