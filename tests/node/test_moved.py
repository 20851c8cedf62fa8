"""What an operation has moved: never less than before, and still told after its end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.node.messages import WorkStatus
from lockstep.node.moved import OPERATIONS_KEPT_MAX, Moved
from lockstep.values.ids import NodeId

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


@settings(max_examples=200, deadline=None)
@given(REPORTS)
def test_counts_never_fall_and_are_the_sum_of_the_most_that_each_node_said(
    reports: list[tuple[int, str, int, int, str]],
) -> None:
    moved = Moved()
    most: dict[tuple[int, str, int], int] = {}
    before = {1: 0, 2: 0}
    for operation, session, node, count, state in reports:
        said = WorkStatus(state, moved_bytes=count, moved_fragments=count, total_bytes=50)
        part = moved.note((operation, session, NodeId(node)), said)
        assert part.state == state and part.total_bytes >= part.moved_bytes
        key = (operation, session, node)
        most[key] = max(most.get(key, 0), count)
        for one in (1, 2):
            total = moved.of(one)
            now = total.moved_bytes if total is not None else 0
            assert now == sum(value for key, value in most.items() if key[0] == one)
            assert now >= before[one]
            before[one] = now


def test_only_the_latest_operations_are_kept() -> None:
    moved = Moved()
    for operation in range(1, OPERATIONS_KEPT_MAX + 2):
        moved.note((operation, "s", NodeId(1)), WorkStatus("done", moved_bytes=1))
    assert moved.of(1) is None and moved.of(2) is not None


def test_the_time_left_is_that_of_the_slowest_part_that_runs() -> None:
    moved = Moved()
    moved.note((1, "s", NodeId(1)), WorkStatus("running", rate_bytes_s=10, left_s=5))
    moved.note((1, "s", NodeId(2)), WorkStatus("done", rate_bytes_s=0, left_s=-1))
    total = moved.of(1)
    assert total is not None and (total.rate_bytes_s, total.left_s) == (10, 5)
    moved.note((1, "s", NodeId(3)), WorkStatus("running", rate_bytes_s=0, left_s=-1))
    total = moved.of(1)
    assert total is not None and total.left_s == -1, "nobody can tell"
