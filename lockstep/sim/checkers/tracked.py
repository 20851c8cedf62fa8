"""REP-2b and TRK-1 of tracked tables: a mutation is seen whole or not at all, and ids that are held are data.

A read of a partition that shows a value shows everything else that the same write put there, or something
newer in its place. Once nothing is under way any more, all replicas of a range hold the same ids, all of them
reconciled. That each id has its entry, and each entry its id, is asked of the journals at every few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lockstep.node.node import Node
from lockstep.replica.tracked import group_of
from lockstep.sim.checkers.registers import has_quorum
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.checkers.whole import WholeReads
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.sim.watch import Watch
from lockstep.topology.roles import keepers
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

Partition = tuple[str, bytes]


def check_whole(events: Sequence[Event]) -> int:
    """REP-2b: how many reads were judged."""
    written: dict[Partition, list[Event]] = {}
    by_value: dict[tuple[Partition, int, bytes], Change] = {}
    for event in events:
        if isinstance(event.request, Change):
            change = event.request
            place = (change.table, change.key)
            written.setdefault(place, []).append(event)
            by_value.update({(place, at, value): change for at, value in change.puts})
    judged = 0
    for event in events:
        look = event.request
        if isinstance(look, Look) and event.outcome is Outcome.OK and has_quorum(event, ""):
            if look.key is None or look.clustering is not None or len(event.rows) >= look.page_rows:
                continue  # Of several partitions, of one row, or in several reads.
            judged += 1
            place = (look.table, look.key)
            seen = {at: value for _, at, value in event.rows}
            _check_read(event, place, seen, written.get(place, ()), by_value)
    return judged


def _check_read(
    event: Event,
    place: Partition,
    seen: Mapping[int, bytes],
    written: Iterable[Event],
    by_value: Mapping[tuple[Partition, int, bytes], Change],
) -> None:
    for at, value in seen.items():
        change = by_value.get((place, at, value))
        for other, put in change.puts if change is not None else ():
            assert change is not None, "it has puts"
            shown = seen.get(other)
            if shown is not None:
                newer = by_value.get((place, other, shown))
                torn = newer is None or (newer.timestamp_us, shown) < (change.timestamp_us, put)
            else:
                torn = not any(_deletes(one, event, other, change.timestamp_us) for one in written)
            if torn:
                raise Violation(
                    "REP-2b",
                    f"{event.request.text()} by {event.client} shows row {at} of {change.text()} and not "
                    f"row {other}, which has {shown!r}",
                )


def _deletes(one: Event, read: Event, row: int, after_us: int) -> bool:
    """Whether a write that the read may have seen deletes what was written to the row at that time."""
    change = one.request
    assert isinstance(change, Change), "only these are listed"
    deletes = change.touches(row) and all(put != row for put, _ in change.puts)
    return deletes and change.timestamp_us > after_us and one.start_ns < read.end_ns


def judge_whole(events: Sequence[Event], rows: int) -> WholeReads:
    """What reads at a quorum saw of partitions that are written whole: the timestamp is the version."""
    found, floors = WholeReads(rows), dict[int, int]()
    # Who begins at the instant at which another one ends may have been first.
    moments = [(event.start_ns, False, number) for number, event in enumerate(events)]
    moments += [
        (event.end_ns, True, number) for number, event in enumerate(events) if event.outcome is Outcome.OK
    ]
    for _, is_over, number in sorted(moments):
        event = events[number]
        asked = event.request
        if asked.key is None or not has_quorum(event, ""):
            continue
        place = (asked.table, asked.key)
        if not is_over:
            floors[number] = found.begun(place)
        elif isinstance(asked, Look):
            seen = {at: int(value.partition(b"/")[0]) for _, at, value in event.rows}
            found.saw(place, floors[number], seen, asked.clustering)
        else:
            found.reached(place, asked.timestamp_us)
    return found


def check_none_torn(events: Sequence[Event], rows: int) -> int:
    """REP-2b and REP-2a of partitions that are written whole: how many reads of all of one were judged."""
    found = judge_whole(events, rows)
    if found.torn or found.back:
        raise Violation("REP-2b" if found.torn else "REP-2a", "; ".join(found.examples))
    return found.whole


def _nodes(cluster: SimCluster) -> dict[int, Node]:
    return {int(node.context.own_id()): node for node in cluster.nodes.values() if node.ready}


def has_open_ids(cluster: SimCluster) -> bool:
    """Whether a node holds ids that it does not know to be everywhere, is getting what it missed of a range,
    knows somebody that lacks ids, or has not heard of somebody. It is asked after each event of a run."""
    nodes = [node for node in cluster.nodes.values() if node.ready]
    for node in nodes:
        for logs in node.data.reconciler.journal.shards.values():
            if logs.taking is not None or logs.open or logs.apart:
                return True
    lags = (lag for one in nodes for lag in one.data.reconciler.lags())
    return any(lag.lacks or lag.is_lacked or not lag.heard for lag in lags)


def check_reconciled(watch: Watch) -> int:
    """TRK-1, of nodes at rest: replicas hold the same ids, and the same data. How many ids were compared."""
    by_id, cluster, compared = _nodes(watch.cluster), watch.cluster.newest, 0
    for node in by_id.values():
        for shard, logs in node.data.reconciler.journal.shards.items():
            group = group_of(cluster, shard)
            for other in group.writes if group is not None else ():
                if other in by_id:
                    theirs = by_id[other].data.reconciler.journal.held(shard)
                    if theirs != logs.held:
                        raise Violation(
                            "TRK-1",
                            f"of the range up to {shard[1]} node {node.context.own_id()} holds {logs.held} "
                            f"and node {other} {theirs}",
                        )
                    compared += logs.held.count
    for table in cluster.schema.by_name[KEYSPACE].tables:
        if table.view is None:  # Views are untracked: what changes in them may be on its way.
            watch.check_equal(table.name)
    _check_witnesses(watch, by_id)
    return compared


def _check_witnesses(watch: Watch, nodes: Mapping[int, Node]) -> None:
    """TRK-1, of witnesses at rest: no rows, and no mutations any more."""
    cluster, disks = watch.cluster.newest, watch.disks(watch.cluster.newest)
    for ring in cluster.placements.rings:
        tables = [table.id for table in cluster.schema.tables_in(ring.id)]
        for placed in ring.ranges if ring.replication.has_witnesses else ():
            keeping = keepers(cluster, ring, placed)
            for node in placed.group.writes:
                if node in keeping or node not in nodes or node not in disks:
                    continue
                disks[node].refresh()
                shard = ring.id, placed.range.right
                rows = disks[node].held(tables, placed.range)
                kept = nodes[node].data.reconciler.journal.logs_of(shard).open.count
                if kept or (rows and not _kept_once(watch, node, ring.id, placed.range)):
                    raise Violation(
                        "TRK-1",
                        f"node {node}, a witness of the range up to {shard[1]}, has {rows} partitions and "
                        f"{kept} mutations",
                    )
                watch.cluster.fact("a witness was empty")


def _kept_once(watch: Watch, node: NodeId, group: int, tokens: Range) -> bool:
    """Whether a node kept the data of some tokens at any epoch: who was dead when it was to drop that does so
    before it may keep the range again."""
    for value in watch.log.values:
        ring = value.placements.by_id.get(group)
        if ring is not None and any(node in keepers(value, ring, one) for one in ring.overlapping(tokens)):
            return True
    return False
