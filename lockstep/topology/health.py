"""The verdict on a cluster: what is wrong with it, and how bad that is.

Findings are the conditions that nodes report of themselves, and those that follow from the metadata value and
from who seems alive to the node that is asked.

Invariant: a cluster is healthy only without any finding. What a single node lacks degrades the cluster; it is
unavailable when a range lacks a quorum, or anybody who has its data, or has lost its only replica, or when
the node that is asked does not serve itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.directory import OWNING_STATES, NodeState
from lockstep.placement.placements import PlacedRange, RingPlacement
from lockstep.schema.model import Keyspace
from lockstep.topology.roles import readers
from lockstep.topology.tablets.drains import held_tablets, left_holders
from lockstep.values.conditions import Condition, ConditionKind, Level, kind_of
from lockstep.values.ids import NodeId

#: Conditions that say already why a node serves no clients.
_NOT_SERVING = frozenset(("NODE_DRAINED", "METADATA_STOPPED"))
#: Conditions of one node that are as bad for all others: what it lost nobody has.
_OF_ALL = frozenset(("RANGE_LOST",))
#: Findings of which the sentence of a verdict speaks; all are listed below it.
_TOLD_MAX = 3


class Finding(msgspec.Struct, frozen=True):
    """A condition of `node`; 0: of the whole cluster. `level`: as it weighs for who asks."""

    node: int
    condition: Condition
    level: Level

    @property
    def kind(self) -> ConditionKind:
        return kind_of(self.condition)

    @property
    def hint(self) -> str:
        return self.kind.hint.format(id=self.node, subject=self.condition.subject)

    def sentence(self, own: int) -> str:
        node = "this node" if self.node == own else f"node {self.node}"
        said = self.condition
        return self.kind.summary.format(node=node, subject=said.subject, detail=said.detail).strip()


class View(msgspec.Struct, frozen=True):
    """What the node `own` (0: no id yet) knows of the others. `alive`: who seems alive, itself included.
    `reported`: the conditions that living nodes report of themselves. `not_serving`: living nodes that say
    that they serve no clients."""

    own: int
    alive: AbstractSet[int]
    reported: Mapping[int, Sequence[Condition]]
    not_serving: AbstractSet[int] = frozenset()


def findings(cluster: ClusterMetadata, view: View) -> tuple[Finding, ...]:
    """Everything that is wrong, the worst first."""
    found = [*_of_nodes(cluster, view)]
    found += _of_quorums(cluster, found)
    found += (_finding(0, condition, view.own) for condition in _of_metadata(cluster, view))
    if any(one.condition.code == "METADATA_NO_MAJORITY" for one in found):
        found = [one for one in found if one.condition.code != "METADATA_NO_LEADER"]
    return tuple(sorted(found, key=lambda one: -one.level))


def level_of(found: Sequence[Finding]) -> Level:
    return max((one.level for one in found), default=Level.HEALTHY)


def verdict(found: Sequence[Finding], own: int, *, running: bool) -> str:
    """One sentence that begins with the word of the level. `running`: topology changes are."""
    if not found:
        also = "; topology changes are running" if running else ""
        return f"{Level.HEALTHY.word}: every range has all its replicas{also}"
    parts = _sentences(found, own)
    if len(parts) > _TOLD_MAX:
        parts[_TOLD_MAX:] = [f"{len(parts) - _TOLD_MAX} more"]
    level = level_of(found)
    if level is Level.DEGRADED and any(one.kind.withholds != "nothing" for one in found):
        parts.append("every range has a quorum")
    return f"{level.word}: {'; '.join(parts)}"


def _sentences(found: Sequence[Finding], own: int) -> list[str]:
    """What each says; nodes of which nothing is to be said but that they are down share a sentence, and so do
    the keyspaces of which the same is to be said."""
    by_sentence: dict[tuple[str, int], list[Finding]] = {}
    for at, one in enumerate(found):
        is_shared = one.condition.code == "NODE_DOWN" or (one.node == 0 and not one.condition.detail)
        by_sentence.setdefault((one.condition.code, -1 if is_shared else at), []).append(one)
    return [_shared_sentence(same, own) for same in by_sentence.values()]


def _shared_sentence(same: Sequence[Finding], own: int) -> str:
    first = same[0]
    if len(same) == 1:
        return first.sentence(own)
    if first.condition.code == "NODE_DOWN":
        return f"nodes {', '.join(str(one.node) for one in same)} are down"
    subjects = ", ".join(one.condition.subject for one in same)
    together = msgspec.structs.replace(first.condition, subject=subjects)
    return msgspec.structs.replace(first, condition=together).sentence(own)


def _finding(node: int, condition: Condition, own: int) -> Finding:
    """One node's own trouble is no more than a degraded cluster to all others, who have what it has."""
    level = kind_of(condition).level
    is_whole = node in (0, own) or condition.code in _OF_ALL
    return Finding(node, condition, level if is_whole else min(level, Level.DEGRADED))


def _of_nodes(cluster: ClusterMetadata, view: View) -> Iterator[Finding]:
    excluded = {one.node: one for one in cluster.excluded}
    for info in cluster.directory.nodes:
        if info.state is NodeState.LEFT:
            continue
        if info.id in excluded:
            yield _finding(info.id, Condition("NODE_EXCLUDED", detail=excluded[info.id].reason), view.own)
        elif info.id not in view.alive:
            if info.state in OWNING_STATES or info.id in cluster.service.members:
                yield _finding(info.id, Condition("NODE_DOWN"), view.own)
            elif info.id in cluster.requests.by_node:
                yield _finding(info.id, Condition("JOINER_DOWN"), view.own)
        else:
            reported = view.reported.get(info.id, ())
            yield from (_finding(info.id, condition, view.own) for condition in reported)
            said = {condition.code for condition in reported}
            if info.id in view.not_serving and info.state in OWNING_STATES and not said & _NOT_SERVING:
                yield _finding(info.id, Condition("NODE_NOT_SERVING"), view.own)


def _of_metadata(cluster: ClusterMetadata, view: View) -> Iterator[Condition]:
    """What the metadata value itself says is wrong."""
    living = sum(1 for voter in cluster.voters if voter in view.alive)
    if cluster.voters and 2 * living <= len(cluster.voters):
        yield Condition("METADATA_NO_MAJORITY")
    if cluster.service.frozen:
        yield Condition("METADATA_FROZEN", detail=cluster.service.frozen)
    for node in left_holders(cluster):
        detail = f"{held_tablets(cluster, node)} of node {node}"
        yield Condition("TABLETS_LACK_REPLICAS", f"node {node}", detail=detail)
    for keyspace in cluster.schema.keyspaces if cluster.degraded else ():
        lines = degraded_of(cluster, keyspace)
        if lines:
            lacking = sorted({node for line in lines for node in line.lacking})
            who = (
                f"nodes {', '.join(map(str, lacking))} may lack" if lacking else "all that are left may lack"
            )
            since = min(line.since_epoch for line in lines)
            count = f"{len(lines)} range{'s' if len(lines) > 1 else ''}"
            detail = f"{count}, where {who} writes of before epoch {since}"
            yield Condition("RANGES_DEGRADED", keyspace.name, detail=detail)


def degraded_of(cluster: ClusterMetadata, keyspace: Keyspace) -> tuple[Degraded, ...]:
    """The degraded ranges of one keyspace."""
    return tuple(
        line for line in cluster.degraded if line.group in keyspace.groups and line.is_about(keyspace.name)
    )


def _of_quorums(cluster: ClusterMetadata, of_nodes: Sequence[Finding]) -> Iterator[Finding]:
    gone = _withholding(of_nodes, "everything")
    # Who has left counts as a replica until its tablets are built anew, and answers nobody.
    gone |= {*left_holders(cluster)}
    full, laden = gone | _withholding(of_nodes, "writes"), _withholding(of_nodes, "witnessed")
    dc_of = cluster.directory.dc_by_id
    for keyspace in cluster.schema.keyspaces if full or laden else ():
        rings = (cluster.placements.ring(group) for group in keyspace.groups)
        ranges = [_Range.of(cluster, ring, placed) for ring in rings for placed in ring.ranges]
        if any(one.shows_nothing(gone) for one in ranges):
            yield _finding(0, Condition("NO_QUORUM", keyspace.name), 0)
        elif any(_without_quorum(one.replicas, one.refusing(full, laden)) for one in ranges):
            yield _finding(0, Condition("NO_WRITE_QUORUM", keyspace.name), 0)
        else:
            for dc in sorted({dc_of[node] for node in full | laden if node in dc_of}):
                if any(one.lacks_local_quorum(dc, dc_of, full, laden) for one in ranges):
                    yield _finding(0, Condition("NO_LOCAL_QUORUM", f"{dc}, keyspace {keyspace.name}"), 0)


def _withholding(of_nodes: Sequence[Finding], what: str) -> frozenset[NodeId]:
    return frozenset(NodeId(one.node) for one in of_nodes if one.kind.withholds == what)


class _Range(msgspec.Struct, frozen=True):
    """Who are the replicas of a range, and who of them are its witnesses."""

    replicas: tuple[NodeId, ...]
    witnesses: tuple[NodeId, ...] = ()

    @staticmethod
    def of(cluster: ClusterMetadata, ring: RingPlacement, placed: PlacedRange) -> _Range:
        replicas = placed.group.reads
        if not ring.replication.has_witnesses:
            return _Range(replicas)
        shown = readers(cluster, ring, placed)
        return _Range(replicas, tuple(node for node in replicas if node not in shown))

    def shows_nothing(self, gone: AbstractSet[NodeId]) -> bool:
        """Whether no read at a quorum is answered: witnesses count for it, and have no data."""
        full = (node for node in self.replicas if node not in self.witnesses)
        return _without_quorum(self.replicas, gone) or all(node in gone for node in full)

    def refusing(self, full: AbstractSet[NodeId], laden: AbstractSet[NodeId]) -> AbstractSet[NodeId]:
        """Who takes no writes of the range. `laden`: who takes none as a witness."""
        return full | {node for node in self.witnesses if node in laden}

    def lacks_local_quorum(
        self,
        dc: str,
        dc_of: Mapping[NodeId, str],
        full: AbstractSet[NodeId],
        laden: AbstractSet[NodeId],
    ) -> bool:
        local = tuple(node for node in self.replicas if dc_of[node] == dc)
        return bool(local) and _without_quorum(local, self.refusing(full, laden))


def _without_quorum(replicas: Sequence[NodeId], gone: AbstractSet[NodeId]) -> bool:
    return sum(1 for replica in replicas if replica not in gone) <= len(replicas) // 2
