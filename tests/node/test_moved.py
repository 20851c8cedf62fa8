"""What an operation has moved: never less than before, and still told after its end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request
from lockstep.node.log.messages import WorkStatus
from lockstep.node.work.moved import OPERATIONS_KEPT_MAX, Amount, Moved
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.planning import streaming_session
from lockstep.topology.step import receivers
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
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
    moved = Moved(lambda: 1)
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
    moved = Moved(lambda: 1)
    for operation in range(1, OPERATIONS_KEPT_MAX + 2):
        moved.note((operation, "s", NodeId(1)), WorkStatus("done", moved_bytes=1))
    assert moved.parts(1) is None and moved.parts(2) is not None


def test_the_time_left_is_that_of_the_slowest_part_that_runs() -> None:
    moved = Moved(lambda: 1)
    moved.note((1, "s", NodeId(1)), WorkStatus("running", rate_bytes_s=10, left_s=5))
    moved.note((1, "s", NodeId(2)), WorkStatus("done", rate_bytes_s=0, left_s=-1))
    total = moved.parts(1)
    assert total is not None and (total.rate_bytes_s, total.left_s) == (10, 5)
    moved.note((1, "s", NodeId(3)), WorkStatus("running", rate_bytes_s=0, left_s=-1))
    total = moved.parts(1)
    assert total is not None and total.left_s == -1, "nobody can tell"


class Leaving:
    """Node 4 of four leaves a keyspace of two replicas; `term` is that of the node that counts."""

    def __init__(self) -> None:
        self.term: int | None = 1
        self.moved = Moved(lambda: self.term)
        self.history: History = started([(100,), (200,), (300,), (400,)], ("ks", simple(2)))
        self.submit(PrepareOperation(Decommission(NodeId(4))))

    def submit(self, body: Any) -> None:
        before = self.now
        self.history.submit(body)
        self.moved.applied(before, self.now, 1)

    def advance(self) -> None:
        operation = self.operation
        brought = self.moved.uncounted(operation, self.now)
        self.submit(AdvanceOperation(operation.id, operation.stage, 0, 0, brought.bytes, brought.fragments))

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
    def told(self) -> int | None:
        found = self.moved.told(self.request, self.now)
        return None if found is None else found.bytes

    def hear(self, node: int, taken_bytes: int, session: str | None = None) -> None:
        key = (self.operation.id, self.operation.session_id if session is None else session, NodeId(node))
        said = WorkStatus("running", taken_bytes=taken_bytes, taken_fragments=taken_bytes // 10)
        self.moved.heard(self.operation, self.now, key, said)

    def stream(self) -> tuple[int, ...]:
        """On to the stage that streams: who takes something in."""
        while self.operation.stage is not Stage.WRITE_BOTH_READ_OLD:
            self.advance()
        return tuple(sorted(receivers(self.operation, self.now)))


def test_one_leader_tells_from_the_beginning_and_never_less() -> None:
    leaving = Leaving()
    assert leaving.told == 0
    first, second = leaving.stream()
    assert leaving.told == 0, "it began the stage, so nobody was told of more"
    leaving.hear(first, 100)
    leaving.hear(second, 50)
    leaving.hear(first, 30)
    assert leaving.told == 150, "a node that says less has begun anew"
    leaving.hear(first, 999, session="operation-1-prepared")
    assert leaving.told == 150, "a report of another stage comes late"
    leaving.advance()
    assert (leaving.told, leaving.request.moved_fragments) == (150, 15)
    leaving.term = None
    assert leaving.told == 150, "every node can tell what the metadata counts"


def test_a_new_leader_tells_nothing_until_it_has_heard_of_all() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    leaving.hear(first, 100)
    leaving.term = None
    assert leaving.told is None, "another one may have heard of more"
    leaving.term = 3
    assert leaving.told is None
    leaving.hear(first, 120)
    assert leaving.told is None
    leaving.hear(second, -1)
    assert leaving.told is None, "an older version does not say"
    leaving.hear(second, 7)
    assert leaving.told == 127


def test_an_entry_of_an_earlier_leader_does_not_make_the_next_one_begin() -> None:
    leaving = Leaving()
    while leaving.operation.stage is not Stage.PREPARED:
        leaving.advance()
    leaving.term = 2
    leaving.stream()
    assert leaving.told is None, "the entries are those of term 1, whose leader may have told of more"


def test_what_came_before_a_cancel_is_counted_with_its_end() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    leaving.hear(first, 40)
    session = streaming_session(leaving.operation)
    leaving.submit(CancelOperation(leaving.operation.id, "changed our minds"))
    assert streaming_session(leaving.operation) == session != leaving.operation.session_id
    assert leaving.told == 40
    leaving.hear(second, 2)
    leaving.advance()
    assert (leaving.told, leaving.request.moved_bytes, leaving.now.operations) == (42, 42, ())


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1)])
def test_no_stage_moves_less_than_nothing(counts: tuple[int, int]) -> None:
    leaving = Leaving()
    with pytest.raises(Rejected, match="less than nothing"):
        AdvanceOperation(leaving.operation.id, leaving.operation.stage, 0, 0, *counts).apply(leaving.now, 99)


def test_a_request_tells_bytes_of_all_leaders_and_the_rest_of_what_this_one_heard() -> None:
    leaving = Leaving()
    first, second = leaving.stream()
    for node, taken in ((first, 60), (second, 20)):
        said = WorkStatus("running", moved_bytes=90, total_bytes=200, ranges_done=1, ranges_total=2)
        leaving.moved.note((leaving.operation.id, leaving.operation.session_id, NodeId(node)), said)
        leaving.hear(node, taken)
    found = leaving.moved.of(leaving.request, leaving.now)
    assert found is not None
    assert (found.moved_bytes, found.total_bytes, found.ranges_done, found.ranges_total) == (80, 400, 2, 4)
    leaving.term = 2
    found = leaving.moved.of(leaving.request, leaving.now)
    assert found is not None and (found.moved_bytes, found.total_bytes, found.ranges_done) == (0, 0, 2)
    leaving.term = 1
    assert Moved(lambda: None).of(leaving.request, leaving.now) is None
    assert Amount(1, 2).most(Amount(2, 1)) == Amount(2, 2)
