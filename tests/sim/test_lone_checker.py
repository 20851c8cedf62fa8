"""The checker of transitions that move by themselves: it looks at each stage that one leaves, or enters."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import TRANSITIONS, Lone, Transition
from lockstep.sim.checkers.lone import LoneWatch
from tests.topology.lone import World
from tests.topology.tablets.test_migrations import FORWARD, until
from tests.topology.tablets.worlds import begin, cluster, move


def read_again(value: ClusterMetadata) -> ClusterMetadata:
    """The value with equal transitions that are other objects."""
    lone = [one for one in value.transitions.listed() if one.position is not None]
    copies = [msgspec.structs.replace(one) for one in lone]
    changed: ClusterMetadata = value.changed(TRANSITIONS.set(value.transitions.moved(copies)))
    assert all(a is not b and a == b for a, b in zip(lone, changed.transitions.listed(), strict=True))
    return changed


def test_each_stage_that_is_left_is_judged_and_who_is_written_and_read_first() -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    until(World(history, random.Random(2)), wanted, None)
    left: list[Stage] = []
    written: list[tuple[Stage, int]] = []
    read: list[tuple[Stage, int]] = []

    def noted(found: list[tuple[Stage, int]], cluster: ClusterMetadata, moving: Sequence[Transition]) -> None:
        for one in moving:
            assert one.position is not None and cluster.epoch == one.position.stage_epoch
            found.append((one.position.stage, one.range.right))

    def released(before: ClusterMetadata, mover: Lone) -> None:
        assert before.transitions.at(wanted.group, wanted.right) is mover.transition
        left.append(mover.stage)

    watch = LoneWatch(
        released,
        lambda cluster, moving: noted(written, cluster, moving),
        lambda cluster, moving: noted(read, cluster, moving),
    )
    for before, after in zip(history.values, history.values[1:], strict=False):
        # A node that installed a snapshot has equal transitions, and none of them moved on by that.
        watch.applied(before, read_again(before))
        watch.applied(read_again(before), after)
    assert left == list(FORWARD)
    assert written == [(Stage.WRITE_BOTH_READ_OLD, wanted.right)]
    assert read == [(Stage.WRITE_BOTH_READ_NEW, wanted.right)]
