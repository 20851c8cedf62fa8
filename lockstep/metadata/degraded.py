"""Ranges some of whose replicas may lack acknowledged writes, and the entry that says they were repaired.

Invariant: a range gets here only when a node was given up without moving its data, or left with writes that
it kept for replicas and nobody took; it leaves only when it was repaired, when nobody is left that lacks
anything, or when its placement group is gone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lockstep.metadata.part import Part, Parts, tuple_part
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class Degraded(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`missing`: replicas that may lack writes of before `since_epoch`; empty when writes may be nowhere.

    `inherited`: those that owned the range at once at that epoch, whatever they had stored of it before.
    `keyspaces`: those of the group then; others may be by now. Empty: all.
    """

    group: int
    range: Range
    since_epoch: int
    missing: tuple[NodeId, ...]
    inherited: tuple[NodeId, ...] = ()
    keyspaces: tuple[str, ...] = ()

    def is_about(self, keyspace: str) -> bool:
        return not self.keyspaces or keyspace in self.keyspaces

    @property
    def lacking(self) -> tuple[NodeId, ...]:
        """Those that got nothing of what was there before; where writes may be nowhere, others lack some."""
        return self.missing or self.inherited


def without_node(degraded: Sequence[Degraded], node: NodeId) -> tuple[Degraded, ...]:
    """The list once `node` is gone: what only it lacked, nobody lacks any more."""
    kept = []
    for one in degraded:
        if node not in one.missing:
            kept.append(one)
        elif len(one.missing) > 1:
            missing = tuple(other for other in one.missing if other != node)
            kept.append(msgspec.structs.replace(one, missing=missing))
    assert all(node not in one.missing for one in kept), "who is gone lacks nothing"
    return tuple(kept)


def without_range(degraded: Sequence[Degraded], group: int, repaired: Range) -> tuple[Degraded, ...]:
    """The list without the tokens of one range."""
    kept: list[Degraded] = []
    for one in degraded:
        if one.group == group and one.range.intersects(repaired):
            kept.extend(msgspec.structs.replace(one, range=piece) for piece in _outside(one.range, repaired))
        else:
            kept.append(one)
    assert not any(one.group == group and one.range.intersects(repaired) for one in kept), (
        "nothing of the range is left"
    )
    return tuple(kept)


def with_missing(
    degraded: Sequence[Degraded],
    group: int,
    keyspace: str,
    range_: Range,
    missing: Sequence[NodeId],
    epoch: int,
) -> tuple[Degraded, ...]:
    """The list when replicas lack writes of before `epoch` in a range of one keyspace. What was said of the
    same range before is said again, for a repair that has begun since may have missed the writes."""
    assert missing, "somebody lacks something"
    kept, nodes = [], dict.fromkeys(missing)
    for one in degraded:
        is_same = (one.group, one.range, one.keyspaces) == (group, range_, (keyspace,))
        if is_same and one.missing and not one.inherited:
            nodes |= dict.fromkeys(one.missing)
        else:
            kept.append(one)
    return (*kept, Degraded(group, range_, epoch, tuple(sorted(nodes)), keyspaces=(keyspace,)))


def carried(degraded: Iterable[Degraded], keyspace: str, to: int) -> tuple[Degraded, ...]:
    """The lines of `degraded`, which are of one group, as they are of a keyspace that leaves it for another
    one."""
    return tuple(
        msgspec.structs.replace(line, group=to, keyspaces=(keyspace,))
        for line in degraded
        if line.is_about(keyspace)
    )


def of_groups(degraded: tuple[Degraded, ...], groups: Container[int]) -> tuple[Degraded, ...]:
    """The list without groups that are gone; the same object when all are there."""
    if all(one.group in groups for one in degraded):
        return degraded
    return tuple(one for one in degraded if one.group in groups)


def handed_on(
    degraded: tuple[Degraded, ...],
    group: int,
    moved: Range,
    old: Sequence[NodeId],
    gained: Sequence[NodeId],
) -> tuple[Degraded, ...]:
    """The list once `gained` were filled from `old`: what a source lacks they lack too; the same object when
    no source lacks anything. A line may then name them for tokens of its range that they do not have."""
    assert not {*gained} & {*old}, "who is filled was no replica"
    changed = []
    for one in degraded:
        touched = one.group == group and one.range.intersects(moved)
        if touched and gained and any(node in old for node in one.missing):
            missing = tuple(sorted({*one.missing, *gained}))
            changed.append(msgspec.structs.replace(one, missing=missing))
        else:
            changed.append(one)
    assert len(changed) == len(degraded), "no line comes or goes"
    return degraded if all(a is b for a, b in zip(changed, degraded, strict=True)) else tuple(changed)


def _outside(whole: Range, hole: Range) -> Iterator[Range]:
    if whole.left < hole.left:
        yield Range(whole.left, hole.left)
    if hole.right < whole.right:
        yield Range(hole.right, whole.right)


def _validate(now: Parts, before: Parts | None) -> None:
    groups = now[PLACEMENTS].by_id
    assert all(one.group in groups for one in now[DEGRADED]), "degraded ranges are used"
    for one in now[DEGRADED]:
        assert one.range.left < one.range.right, "what is degraded has tokens"
        assert len(set(one.missing)) == len(one.missing), "who lacks writes is named once"


#: Ranges with replicas that may lack writes, oldest first.
DEGRADED: Final[Part[tuple[Degraded, ...]]] = tuple_part("degraded", 10, Degraded, _validate, (PLACEMENTS,))
