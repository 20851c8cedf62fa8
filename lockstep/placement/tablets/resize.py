"""Decisions to split and to merge: when they are made, kept, revoked and ready, and which tablets a merge
brings together.

Invariants. What is decided is kept until its opposite is nearer: a split is decided above twice the target
and kept while the average is not below the target, a merge below half of it and kept while it is not above.
So sizes that stay make one decision at most. Each decision of a table, also that there is none any more, has
the next sequence number, and only what is ready for that number is ready. Without statistics nothing is
decided by size. A pair is merged when both have the same replicas on the same shards; until then the second
one's replicas follow the first one's, each to the nearest that is missing: on its own node, then in its rack.
A tablet that something else has, or that a drain concerns, waits. What was decided by hand is nobody's to
revoke but by hand; and what a table has since is not made fewer by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.placement.quorums import DcOf
from lockstep.placement.tablets.counts import CountedTable, CountSettings, Rack, counts
from lockstep.placement.tablets.evenness import (
    in_even_ones,
    is_narrow,
    is_uneven,
    narrow_pairs,
    wide,
    widest,
    width,
)
from lockstep.placement.tablets.load import Drain, Host, LoadStatistics, TabletLoad
from lockstep.placement.tablets.map import Tablet, TabletMap, midpoint
from lockstep.placement.tablets.moves import Move, MoveKind, Why
from lockstep.placement.tablets.shards import Replica
from lockstep.placement.witnesses import full_of
from lockstep.schema.tablet_options import TABLET_COUNT_MAX
from lockstep.values.ids import NodeId

#: New decisions of one round; those for the largest tablets come first.
DECISIONS_MAX: Final = 10
#: Tablets of one table that are split, or pairs merged, alone by one decision.
ALONE_MAX: Final = 8
#: The same of a decision that makes a table of unlike tablets even, or that somebody asked for.
EVEN_MAX: Final = 64
#: Bytes that a pair has at the most to be merged for evenness, in targets; from a whole one on it is not.
_EVEN_BYTES: Final = 0.75
#: Requests that a pair has at the most for that, and with which the decision is kept, in those of the average
#: tablet: one that has four times as many is split alone.
_EVEN_RATE: Final = 2.0
_EVEN_RATE_KEPT: Final = 3.0
#: A tablet is split alone above so many targets, or so many times the requests of the average one.
ALONE_HUGE: Final = 4
ALONE_HOT: Final = 4
#: Requests a second below which no tablet is called hot: a shard serves them without noticing.
HOT_RATE_MIN: Final = 500.0
#: A tablet split alone stays at least so wide, as a share of an even one: one hot key is not split further.
_NARROWEST: Final = 1024


class ResizeKind(enum.IntEnum):
    NONE = 0
    SPLIT = 1
    MERGE = 2


class Resize(msgspec.Struct, frozen=True, array_like=True):
    """What was decided last for a table. `rights`: the last tokens of the tablets that are split alone, or of
    the first ones of pairs that are merged alone; empty for the whole table. `isolated`: the last token of
    the one that a merge of an odd number leaves alone. `by_hand`: somebody asked for it."""

    kind: ResizeKind = ResizeKind.NONE
    sequence: int = 0
    rights: tuple[int, ...] = ()
    isolated: int | None = None
    by_hand: bool = False


NO_RESIZE: Final = Resize()


class ResizedTable(msgspec.Struct, frozen=True):
    """A placement group that may be resized: `counted` has its size and what was said of it, `kept` is the
    number of tablets that somebody gave it by hand."""

    map: TabletMap
    counted: CountedTable
    resize: Resize = NO_RESIZE
    loads: Mapping[int, TabletLoad] = {}
    kept: int = 0

    def at_least(self, count: int) -> int:
        """The count, or the number given by hand where that is more; a maximum counts before both."""
        return max(count, min([self.kept, *_maxima(self.counted)]))


class Decided(msgspec.Struct, frozen=True):
    group: int
    resize: Resize
    reason: str


def average_bytes(map_: TabletMap, statistics: LoadStatistics, dc_of: DcOf) -> float | None:
    """Sum over all replicas that keep data, not witnesses, through their number; None when one of them is
    not known."""
    total = known = 0
    for tablet in map_.tablets():
        for node in full_of(map_.replication, tablet.nodes, dc_of):
            load = statistics.of(node, map_.id, tablet.right)
            if load is None:
                return None
            total += load.bytes
            known += 1
    return total / known if known else None


def tablet_loads(map_: TabletMap, statistics: LoadStatistics) -> dict[int, TabletLoad]:
    """By last token, what a replica weighs, and the requests of all replicas together."""
    found: dict[int, TabletLoad] = {}
    for tablet in map_.tablets():
        loads = [load for node in tablet.nodes if (load := statistics.of(node, map_.id, tablet.right))]
        if loads:
            found[tablet.right] = TabletLoad(
                max([load.bytes for load in loads]),
                sum([load.reads_per_s for load in loads]),
                sum([load.writes_per_s for load in loads]),
            )
    return found


def decide(
    tables: Sequence[ResizedTable], racks: Mapping[Rack, int], settings: CountSettings
) -> list[Decided]:
    """Decisions that differ from those that stand, revocations first, then those for the largest tablets. As
    many may stand as the cluster has shards."""
    counted = [table.counted for table in tables]
    wishes = counts(counted, racks, settings)
    floors = counts([_without_size(one) for one in counted], racks, settings)
    revoked: list[Decided] = []
    made: list[tuple[float, Decided]] = []
    standing = 0
    for table in tables:
        group, known = table.map.id, table.resize
        wish, floor = wishes[group].count, floors[group].count
        if known.kind is not ResizeKind.NONE:
            reason = _against(table, wish, floor, settings)
            if reason is None:
                standing += 1
            else:
                revoked.append(Decided(group, Resize(ResizeKind.NONE, known.sequence + 1), reason))
            continue
        ways = (
            _evened(table, wish, floor, settings),
            _whole(table, wish, wishes[group].rule),
            _alone(table, settings, table.at_least(floor)),
        )
        never = None if table.map.merges else ResizeKind.MERGE
        found = next((one for one in ways if one is not None and one.resize.kind is not never), None)
        if found is not None:
            made.append((-(table.counted.average_bytes or 0.0), found))
    assert standing + len(revoked) + len(made) <= len(tables), "a table has one decision"
    made.sort(key=lambda one: (one[0], one[1].group))
    room = min(DECISIONS_MAX, max(0, sum(racks.values()) - standing))
    return [*revoked, *[decided for _, decided in made[:room]]]


def _without_size(table: CountedTable) -> CountedTable:
    return CountedTable(table.group, table.replicas, table.hints, table.initial)


def _whole(table: ResizedTable, wish: int, rule: str) -> Decided | None:
    """Split or merge of the whole table, when it wants more, or no more than half as many."""
    current, sequence, group = table.map.count, table.resize.sequence + 1, table.map.id
    if wish > current and 2 * current <= TABLET_COUNT_MAX:
        return Decided(
            group, Resize(ResizeKind.SPLIT, sequence), f"{rule}: {wish} tablets instead of {current}"
        )
    if current > 1 and (current + 1) // 2 >= table.at_least(wish):
        resize = Resize(ResizeKind.MERGE, sequence, (), _isolated(table))
        return Decided(group, resize, f"{rule}: {wish} tablets instead of {current}")
    return None


def _maxima(table: CountedTable) -> list[int]:
    return [hints.max_tablet_count for hints in table.hints if hints.max_tablet_count]


def _evened(table: ResizedTable, wish: int, floor: int, settings: CountSettings) -> Decided | None:
    """For a table of unlike tablets, as one that lay on the ring has: a few are split, or pairs merged, until
    they are about even, and as many as asked for, `floor` or more. A number given by hand bounds what is
    merged, and says nothing of how wide tablets are to be."""
    tablets = list(table.map.tablets())
    current, group = len(tablets), table.map.id
    if current == 1 or not is_uneven(tablets) or wish >= 2 * current:
        return None
    sequence = table.resize.sequence + 1
    count = _even_count(table, floor, settings)
    room = min([TABLET_COUNT_MAX, *_maxima(table.counted)]) - current
    short = wish - current
    rights = widest(tablets, min(short, room, EVEN_MAX)) if short > 0 else []
    rights = rights or wide(tablets, count, min(room, EVEN_MAX))
    pairs: list[int] = []
    spare = current - table.at_least(floor)
    if spare > 0:
        may = _even_pair(table, settings, _EVEN_BYTES, _EVEN_RATE)
        pairs = narrow_pairs(tablets, count, min(spare, EVEN_MAX), may)
    if pairs:
        reason = (
            f"{len(pairs)} pairs of narrow tablets, of {current}, are no wider than one of {count} even ones"
        )
        return Decided(group, Resize(ResizeKind.MERGE, sequence, tuple(pairs)), reason)
    if rights:
        reason = f"{len(rights)} of {current} tablets are much wider than one of {count} even ones"
        return Decided(group, Resize(ResizeKind.SPLIT, sequence, tuple(rights)), reason)
    return None


def _even_count(table: ResizedTable, floor: int, settings: CountSettings) -> int:
    """How many even tablets the table would have: as many as are asked for, or as its size makes."""
    average, target = table.counted.average_bytes, settings.target_bytes / table.counted.members
    by_bytes = round(table.map.count * average / target) if average is not None else 0
    count = min([max(1, floor, by_bytes), TABLET_COUNT_MAX, *_maxima(table.counted)])
    assert count >= 1, "a table has a tablet"
    return count


def _even_pair(
    table: ResizedTable, settings: CountSettings, bytes_share: float, rate_share: float
) -> Callable[[Tablet, Tablet], bool]:
    """Whether a pair is small and cold enough to be merged for evenness; what nobody measured is."""
    target = settings.target_bytes / table.counted.members
    rate_max = max(HOT_RATE_MIN, rate_share * _mean_rate(table))
    nothing = TabletLoad(0)

    def may(one: Tablet, two: Tablet) -> bool:
        loads = (table.loads.get(one.right, nothing), table.loads.get(two.right, nothing))
        assert one.right != two.right, "a pair is two tablets"
        is_small = loads[0].bytes + loads[1].bytes < bytes_share * target
        return is_small and loads[0].rate + loads[1].rate <= rate_max

    return may


def _isolated(table: ResizedTable) -> int | None:
    """With an odd number, the largest one that has an even number of others before it."""
    if table.map.count % 2 == 0:
        return None
    rights = [placed.range.right for placed in table.map.ring.ranges][::2]
    nothing = TabletLoad(0)
    return max(rights, key=lambda right: (table.loads.get(right, nothing).bytes, -right))


def _against(table: ResizedTable, wish: int, floor: int, settings: CountSettings) -> str | None:
    """Why a decision that stands is revoked; None while it is kept."""
    current, average = table.map.count, table.counted.average_bytes
    target = settings.target_bytes / table.counted.members
    if table.resize.by_hand:
        return None
    if table.resize.rights:
        return _against_alone(table, floor, settings)
    if table.resize.kind is ResizeKind.SPLIT:
        if wish < current:
            return f"{wish} tablets are wanted instead of {current}"
        if wish == current and average is not None and average < target:
            return "the average tablet is below the target again"
        return None
    if (current + 1) // 2 < table.at_least(floor):
        return f"{table.at_least(floor)} tablets are asked for"
    # A maximum that somebody gave is kept to, however large the tablets are.
    if average is not None and average > target and (current + 1) // 2 < wish:
        return "the average tablet is above the target again"
    return None


# One tablet, one pair


def _alone(table: ResizedTable, settings: CountSettings, floor: int) -> Decided | None:
    """Tablets that are huge or hot are split alone, else pairs that are small and cold are merged, while
    `floor` are left: fewer would all be split again."""
    if table.counted.average_bytes is None or not table.loads:
        return None
    target = settings.target_bytes / table.counted.members
    group, sequence = table.map.id, table.resize.sequence + 1
    caps = [hints.max_tablet_count for hints in table.counted.hints if hints.max_tablet_count]
    room = min([TABLET_COUNT_MAX, *caps]) - table.map.count
    mean = _mean_rate(table)
    tablets = list(table.map.tablets())
    large = [one for one in tablets if _is_large(one, table, target, mean, 1.0)]
    if large and room > 0:
        large.sort(key=lambda one: (-_weight(table.loads[one.right], target, mean), one.right))
        rights = tuple(sorted([one.right for one in large[: min(ALONE_MAX, room)]]))
        reason = f"{len(rights)} of {len(tablets)} tablets have {ALONE_HUGE} times the bytes or requests"
        return Decided(group, Resize(ResizeKind.SPLIT, sequence, rights), reason)
    pairs = _cold_pairs(table, tablets, target, mean)
    if pairs and table.map.count - len(pairs) >= floor:
        reason = f"{len(pairs)} pairs of narrow tablets are small and cold"
        return Decided(group, Resize(ResizeKind.MERGE, sequence, tuple(pairs)), reason)
    return None


def _mean_rate(table: ResizedTable) -> float:
    return sum([load.rate for load in table.loads.values()]) / table.map.count


def _weight(load: TabletLoad, target: float, mean: float) -> float:
    return max(load.bytes / target, load.rate / mean if mean else 0.0)


def _is_large(tablet: Tablet, table: ResizedTable, target: float, mean: float, share: float) -> bool:
    """Whether a tablet has `share` of what it is split alone for, and can be."""
    load = table.loads.get(tablet.right)
    width = tablet.range.right - tablet.range.left
    if load is None or midpoint(tablet.range) is None or width < (1 << 64) // table.map.count // _NARROWEST:
        return False
    is_hot = load.rate >= share * max(HOT_RATE_MIN, ALONE_HOT * mean) and table.map.count > 1
    return load.bytes >= share * ALONE_HUGE * target or is_hot


def _cold_pairs(table: ResizedTable, tablets: Sequence[Tablet], target: float, mean: float) -> list[int]:
    """First ones of neighbours that together are small, cold and no wider than others are."""
    widest = max([one.range.right - one.range.left for one in tablets])
    found: list[int] = []
    at = 0
    while at + 1 < len(tablets) and len(found) < ALONE_MAX:
        one, two = tablets[at], tablets[at + 1]
        assert one.range.right == two.range.left, "only neighbours are merged"
        is_taken = _is_cold_pair(table, one, two, target / 2, mean / 2, widest)
        if is_taken:
            found.append(one.right)
        at += 1 + is_taken
    return found


def _is_cold_pair(
    table: ResizedTable, one: Tablet, two: Tablet, bytes_max: float, rate_max: float, widest: int
) -> bool:
    loads = (table.loads.get(one.right), table.loads.get(two.right))
    if loads[0] is None or loads[1] is None or two.range.right - one.range.left > widest:
        return False
    return loads[0].bytes + loads[1].bytes < bytes_max and loads[0].rate + loads[1].rate <= rate_max


def _against_alone(table: ResizedTable, floor: int, settings: CountSettings) -> str | None:
    if table.counted.average_bytes is None:
        return None
    target, count = settings.target_bytes / table.counted.members, _even_count(table, floor, settings)
    mean, rights = _mean_rate(table), table.resize.rights
    tablets = {one.right: one for one in table.map.tablets()}
    if any(right not in tablets for right in rights):
        return "a tablet is there no more"
    if table.resize.kind is ResizeKind.SPLIT:
        if any(_is_large(tablets[right], table, target, mean, 0.5) for right in rights):
            return None
        # What was decided for evenness is kept while any is wider than an even one.
        if is_uneven(list(tablets.values())) and any(
            in_even_ones(width(tablets[right]), count) > 1 for right in rights
        ):
            return None
        return "none of the tablets is large or hot any more"
    is_even = _even_pair(table, settings, 1.0, _EVEN_RATE_KEPT)
    for right in rights:
        pair = (tablets[right], table.map.at(right + 1))
        if is_narrow(*pair, max(1, count // 2)) and is_even(*pair):
            continue
        if not _is_cold_pair(table, *pair, target, max(mean, HOT_RATE_MIN), 1 << 64):
            return f"the pair that ends at {pair[1].right} is not small and cold any more"
    return None


# Readiness

#: By node, group and last token: the sequence number of the decision that its replica is ready for.
Ready = Mapping[NodeId, Mapping[int, Mapping[int, int]]]


def resized_tablets(map_: TabletMap, resize: Resize) -> list[Tablet]:
    """The tablets that are cut, or joined; of a merge of the whole table all, also one that is left alone."""
    assert resize.kind is not ResizeKind.NONE, "replicas get ready for a split or a merge"
    chosen = dict.fromkeys(resize.rights)
    if resize.kind is ResizeKind.MERGE:
        chosen.update([(map_.at(right + 1).right, None) for right in resize.rights])
    return [one for one in map_.tablets() if not chosen or one.right in chosen]


def unready(map_: TabletMap, resize: Resize, ready: Ready, hosts: Sequence[Host]) -> list[tuple[NodeId, int]]:
    """(node, tablets) that are not ready. A replica on a node that has left, is excluded, or
    whose data is to be built anew elsewhere is not, whatever it said."""
    sound = {host.node for host in hosts if not host.is_excluded and host.drain is not Drain.REMOVE}
    missing: dict[NodeId, int] = {}
    for tablet in resized_tablets(map_, resize):
        for node in tablet.nodes:
            said = ready.get(node, {}).get(map_.id, {}).get(tablet.right)
            if node not in sound or said != resize.sequence:
                missing[node] = missing.get(node, 0) + 1
    return sorted(missing.items())


def pairs_of(map_: TabletMap, resize: Resize) -> list[tuple[int, int]]:
    """(last token, last token) of the tablets that a decision to merge makes one."""
    assert resize.kind is ResizeKind.MERGE, "pairs are merged"
    if resize.rights:
        return [(right, map_.at(right + 1).right) for right in resize.rights]
    return map_.siblings(resize.isolated)


def apart(map_: TabletMap, resize: Resize) -> list[tuple[int, int]]:
    """The pairs whose replicas are not yet in the same places."""
    return [pair for pair in pairs_of(map_, resize) if map_.merge_refusal(pair[0]) is not None]


def moves_together(
    map_: TabletMap,
    resize: Resize,
    hosts: Sequence[Host],
    busy: Iterable[tuple[int, int]],
    bytes_of: Mapping[int, int],
) -> list[Move]:
    """One move for each pair that is apart: a tablet has one transition at a time, so a pair comes together
    move by move. `bytes_of`: what a replica weighs, by last token."""
    by_node = {host.node: host for host in hosts}
    taken = dict.fromkeys(busy)
    found: list[Move] = []
    for left, right in apart(map_, resize):
        if (map_.id, left) in taken or (map_.id, right) in taken:
            continue
        first, second = map_.ending(left), map_.ending(right)
        assert first is not None and second is not None, "siblings are tablets of the map"
        nodes = (*first.nodes, *second.nodes)
        if any(not _is_settled(by_node.get(node)) for node in nodes):
            continue
        wanted = [one for one in first.replicas if one not in second.replicas]
        spare = [one for one in second.replicas if one not in first.replicas]
        assert len(wanted) == len(spare) > 0, "what is apart lies in as many other places"
        source, target = _nearest(spare, wanted, second.nodes, by_node)
        kind = MoveKind.INTRANODE if source[0] == target[0] else MoveKind.MIGRATION
        found.append(Move(kind, Why.MERGE, map_.id, right, source, target, bytes_of.get(right, 0)))
    return found


def _is_settled(host: Host | None) -> bool:
    return host is not None and host.drain is Drain.NONE and host.is_up and not host.is_excluded


def _nearest(
    spare: Sequence[Replica],
    wanted: Sequence[Replica],
    nodes: Sequence[NodeId],
    by_node: Mapping[NodeId, Host],
) -> tuple[Replica, Replica]:
    """Which replica goes where: to another shard of its node, else to a node that has none, in its rack if
    that is possible."""
    at = {one[0]: one for one in spare}
    for target in wanted:
        if target[0] in at:
            return at[target[0]], target
    # A node that has one and is wanted was found above.
    free = [one for one in wanted if one[0] not in nodes]
    pairs = [(source, target) for source in spare for target in free]
    assert pairs, "as many are wanted as are spare"

    def distance(pair: tuple[Replica, Replica]) -> tuple[bool, bool, tuple[Replica, Replica]]:
        one, two = by_node[pair[0][0]], by_node[pair[1][0]]
        return one.dc != two.dc, one.rack != two.rack, pair

    return min(pairs, key=distance)


def resized(map_: TabletMap, resize: Resize, epoch: int) -> TabletMap:
    """The map after a split of tablets that are ready, or a merge of pairs that are together."""
    if resize.kind is ResizeKind.SPLIT:
        return map_.split(resize.rights, epoch) if resize.rights else map_.split_all(epoch)
    return map_.merge([left for left, _ in pairs_of(map_, resize)], epoch)
