"""The metadata log, from what nodes say they applied: LOG-1, LOG-2, SCH-1, CMS-1 to CMS-3, one leader per
term.

LOG-1 on disks: what a power cut would leave of the log begins at or before the newest snapshot, judged by
names and bytes that are durable. SCH-1: a schema has no dangling references, ids are given once, and of a
race one comes out; judged from two neighbouring epochs' values alone. CMS-1: the voters of the metadata group
change one at a time, only by a running change, of which there is one at most, and the record of them is what
Raft has in force. CMS-2: a freeze holds. CMS-3: no change of the voters leads to a group that survives fewer
losses than before, unless the cluster has no more members.

Invariant: the monitor sees every applied epoch of every incarnation; it remembers the first value seen at
each epoch, and all later ones must equal it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.ringed import RINGED
from lockstep.metadata.groups.service import Service
from lockstep.metadata.groups.voter_choice import choose_voters, dc_limit
from lockstep.metadata.log.apply import part_digests, state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.tip import Refused, Tip
from lockstep.node.node import Node
from lockstep.schema.changes import validate
from lockstep.schema.model import Schema, Table
from lockstep.schema.user_types import type_in
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.runtime.disk import SimDisk
from lockstep.topology.kinds.replace import Replace
from lockstep.values.errors import InvalidRequest
from lockstep.values.hash_tree import changed
from lockstep.values.memo import memo

_SEGMENT = "metadata/log-"
_SNAPSHOT = "metadata/snapshot-"


def check_metadata_files(name: str, disk: SimDisk) -> None:
    """Raises Violation when the node could not start from its files after a power cut now."""
    files = disk.durable_sizes()
    segments = sorted(_number(path, _SEGMENT) for path in files if path.startswith(_SEGMENT))
    snapshots = sorted(
        _number(path, _SNAPSHOT)
        for path, (durable, whole) in files.items()
        if path.startswith(_SNAPSHOT) and not path.endswith(".part") and durable == whole
    )
    newest = snapshots[-1] if snapshots else 0
    if segments and segments[0] > newest + 1:
        raise Violation(
            "LOG-1",
            f"{name}: after a power cut the log would begin at epoch {segments[0]}, the newest snapshot is "
            f"of {newest or 'none'}",
        )


def _number(path: str, prefix: str) -> int:
    digits = path.removeprefix(prefix)
    return int(digits) if digits.isdecimal() else 0


#: Told (value before, value after, label of the process) when an epoch is first applied anywhere.
FirstApplied = Callable[[ClusterMetadata, ClusterMetadata, str], None]


#: (process name, value, epoch) -> the values after it up to the epoch, from that node's own log. A node
#: that crashed between a sync and its telling is the first to be at several epochs when it is back.
Replayed = Callable[[str, ClusterMetadata, int], Iterable[ClusterMetadata]]


def _nothing_replayed(_name: str, _value: ClusterMetadata, _epoch: int) -> Iterable[ClusterMetadata]:
    return ()


class LogMonitor:
    """`values[e]` is the value of epoch e, `digests[e]` its digest; `seen` the newest epoch each node (by
    process name) applied."""

    def __init__(self, first_applied: FirstApplied, replayed: Replayed = _nothing_replayed) -> None:
        self.values: list[ClusterMetadata] = [empty_cluster()]
        self.seen: dict[str, int] = {}
        #: (group, term) -> who led it.
        self.leaders: dict[tuple[int, int], str] = {}
        self.digests: list[bytes] = [b""]
        #: The newest epoch that each incarnation (name.number) applied.
        self.incarnations: dict[str, int] = {}
        self._first_applied = first_applied
        self._replayed = replayed

    def __call__(self, _now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "metadata.applied":
            cluster = facts["cluster"]
            self.applied(label, cluster, state_digest(cluster), installed=facts["installed"])
        elif kind == "raft.role" and facts["role"] == "leader":
            self.elected(label, facts["group"], facts["term"])

    def forget(self, name: str) -> None:
        """The node's disk was emptied on purpose: it begins anew."""
        self.seen.pop(name, None)

    def begins_anew(self, label: str) -> None:
        """The process goes on with another life of its node, which reads its disk again."""
        self.incarnations.pop(label, None)

    def elected(self, label: str, group: int, term: int) -> None:
        former = self.leaders.setdefault((group, term), label)
        if former != label:
            raise Violation("LOG-1", f"{former} and {label} both lead term {term} of group {group}")

    def applied(
        self, label: str, cluster: ClusterMetadata, digest: bytes, *, installed: bool = False
    ) -> None:
        """`label` is name.incarnation. `installed`: a snapshot, which may cross a gap but never go back."""
        name, epoch = label.rpartition(".")[0], cluster.epoch
        if label not in self.incarnations:
            before = self.seen.get(name, 0)
            if epoch < before:
                raise Violation("LOG-1", f"{label} is back at epoch {epoch}, after {before}")
        elif epoch != self.incarnations[label] + 1 and not (installed and epoch > self.incarnations[label]):
            raise Violation("LOG-1", f"{label} applied {epoch} after {self.incarnations[label]}")
        self.incarnations[label] = epoch
        self.seen[name] = max(epoch, self.seen.get(name, 0))
        if epoch < len(self.values):
            self._same(label, cluster, digest)
            return
        for value in self._replayed(name, self.values[-1], epoch - 1):
            self._first(label, value, state_digest(value))
        if epoch > len(self.values):
            raise Violation("LOG-1", f"{label} is at epoch {epoch}; nobody applied {len(self.values)}")
        self._first(label, cluster, digest)

    def _first(self, label: str, cluster: ClusterMetadata, digest: bytes) -> None:
        before = self.values[-1]
        self.values.append(cluster)
        self.digests.append(digest)
        self._first_applied(before, cluster, label)

    def _same(self, label: str, cluster: ClusterMetadata, digest: bytes) -> None:
        epoch = cluster.epoch
        if epoch == 0:
            return
        if cluster.hash != self.values[epoch].hash:
            raise Violation("LOG-1", f"{label} applied another entry at epoch {epoch}")
        if digest != self.digests[epoch]:
            raise Violation("LOG-1", f"{label} has another state at epoch {epoch}")


class Submitted(msgspec.Struct, kw_only=True):
    """One submission of the harness. outcome: ok (then `epoch` is set), unknown, rejected or failed.

    `base_epoch` was there before it was first sent; `refusals` are (epoch it was judged at, text).
    """

    entry_id: bytes
    outcome: str
    epoch: int = 0
    kind: int = 0
    body: bytes = b""
    base_epoch: int = 0
    refusals: list[tuple[int, str]] = []


def check_submissions(ids: Iterable[tuple[int, bytes]], submissions: Iterable[Submitted]) -> None:
    """LOG-2 over (epoch, entry id) of the whole log."""
    at: dict[bytes, int] = {}
    for epoch, entry_id in ids:
        if entry_id in at:
            raise Violation("LOG-2", f"one entry id at epochs {at[entry_id]} and {epoch}")
        at[entry_id] = epoch
    for submission in submissions:
        found = at.get(submission.entry_id)
        if submission.outcome == "ok" and found != submission.epoch:
            raise Violation("LOG-2", f"acknowledged at epoch {submission.epoch}, found at {found}")
        if submission.outcome in ("rejected", "failed") and found is not None:
            raise Violation("LOG-2", f"{submission.outcome}, but in the log at epoch {found}")
        if found is not None and found <= submission.base_epoch:
            raise Violation("LOG-2", f"at epoch {found}, before it was sent at {submission.base_epoch}")


def check_refusals(
    values: Sequence[ClusterMetadata], submissions: Iterable[Submitted], registry: Registry
) -> int:
    """LOG-2: a refusal holds at the epoch it names, which is none older than what was known when it was
    first asked for (a repeated question has the first answer). The number of refusals judged."""
    judged = 0
    for submission in submissions:
        for epoch, text in submission.refusals:
            if epoch < submission.base_epoch:
                raise Violation(
                    "LOG-2", f"refused at epoch {epoch}, asked at {submission.base_epoch}: {text}"
                )
            if epoch >= len(values):
                raise Violation("LOG-2", f"refused at epoch {epoch}, which nobody has reached: {text}")
            outcome = Tip(values[epoch], registry).judge(
                submission.entry_id, submission.kind, submission.body, "checker", 0, 0
            )
            if not isinstance(outcome, Refused):
                raise Violation("LOG-2", f"refused at epoch {epoch}, where it is in order: {text}")
            judged += 1
    return judged


#: Every so many epochs the whole value is checked, also what did not change.
WHOLE_EVERY = 64


def check_schema(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """Raises Violation."""
    old, new = before.schema, after.schema
    if old is not new:
        _check_ids(old, new)
        for _, was, now in changed(old.table_tree, new.table_tree):
            if now is not None:
                _check_table(new, now)
            if was is not None and now is not None:
                _check_columns(was, now)
        _check_types(old, new)
        _check_rings(after)
    if after.epoch % WHOLE_EVERY == 0:
        try:
            validate(new)
        except AssertionError as broken:
            raise Violation("SCH-1", f"epoch {after.epoch}: {broken}") from broken


def _check_ids(old: Schema, new: Schema) -> None:
    if new.next_table_id < old.next_table_id:
        raise Violation("SCH-1", f"the next table id went from {old.next_table_id} to {new.next_table_id}")
    for table_id, was, now in changed(old.table_tree, new.table_tree):
        if was is None and not old.next_table_id <= table_id < new.next_table_id:
            raise Violation("SCH-1", f"table id {table_id} was given before")
        if was is not None and now is not None and was.uuid != now.uuid:
            raise Violation("SCH-1", f"table {was.keyspace}.{was.name} became another one under its id")


def _check_table(schema: Schema, table: Table) -> None:
    where = f"{table.keyspace}.{table.name}"
    space = schema.by_name.get(table.keyspace)
    if space is None or space.by_name.get(table.name) is not table:
        raise Violation("SCH-1", f"table {where} is in no keyspace, or another one has its name")
    if schema.table_ids.get(table.uuid) != table.id:
        raise Violation("SCH-1", f"two tables have the uuid of {where}")
    try:
        for column in table.columns:
            type_in(space, column.type)
    except InvalidRequest as missing:
        raise Violation("SCH-1", f"table {where} uses a type that is gone: {missing.message}") from missing


def _check_types(old: Schema, new: Schema) -> None:
    """Where types changed, also of the tables that did not."""
    for space in new.keyspaces:
        before = old.by_name.get(space.name)
        if before is not None and before.types is not space.types and before.types != space.types:
            for table in space.by_name.values():
                _check_table(new, table)


def _check_columns(was: Table, now: Table) -> None:
    """An id is of one column for ever; cells that a drop made dead stay dead when it comes back."""
    where = f"{now.keyspace}.{now.name}"
    gone = {column.id: column for column in was.dropped}
    for column in now.columns:
        known = was.by_id.get(column.id)
        back = gone.get(column.id) if known is None else None
        if known is None and column.id < was.next_column_id and (back is None or back.name != column.name):
            raise Violation("SCH-1", f"column {column.name} of {where} has an id that was given before")
        if known is not None and (known.kind, known.position) != (column.kind, column.position):
            raise Violation("SCH-1", f"column {column.name} of {where} changed its place")
    later = {column.id: column.dropped_at_us for column in now.dropped}
    if any(id_ not in later or later[id_] < column.dropped_at_us for id_, column in gone.items()):
        raise Violation("SCH-1", f"{where} has forgotten a dropped column")


def _check_rings(after: ClusterMetadata) -> None:
    keyspaces = after.schema.keyspaces
    used = {(group, keyspace.replication) for keyspace in keyspaces for group in keyspace.groups}
    if used != {(ring.id, ring.replication) for ring in after.placements.rings}:
        raise Violation("SCH-1", "the rings are not those of the keyspaces")


#: Kinds that the design lets pass while the service is frozen.
_WHILE_FROZEN = (
    EntryKind.UPDATE_NODE,
    EntryKind.SNAPSHOT,
    EntryKind.TRUNCATE_LOG,
    EntryKind.PREPARE_MEMBERSHIP,
    EntryKind.ADVANCE_MEMBERSHIP,
    EntryKind.CANCEL_MEMBERSHIP,
    EntryKind.SET_SERVICE,
    # Shutting a node out is a matter of safety, and of no data.
    EntryKind.EXCLUDE_NODES,
    EntryKind.INCLUDE_NODES,
    # What has begun may end: until then nothing is purged.
    EntryKind.END_REPAIR,
    EntryKind.RECORD_UNDELIVERED,
    EntryKind.END_LOAD,
    EntryKind.PUBLISH_GENERATIONS,
    # Where the other group lives is about the service itself.
    EntryKind.PLACE_MANAGEMENT,
    EntryKind.RESET_MANAGEMENT,
    # Nodes on a ring have no group that could be frozen.
    EntryKind.END_RING,
    EntryKind.BUILD_LOG,
    EntryKind.ABORT_UPGRADE,
)


def check_voters(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """At each new epoch: any majority of the voters before meets any majority of those after. Without a log
    nobody votes, and it gets one only by the entry that builds it, once no node is in the midst of
    anything."""
    if before.epoch and before.ring_mode != after.ring_mode:
        _check_built(before, after)
        return
    if after.is_on_ring:
        if after.service.members:
            raise Violation("CMS-1", f"epoch {after.epoch} has voters, and no log")
        return
    if not after.voters:
        raise Violation("CMS-1", f"epoch {after.epoch} has no voters")
    if before.epoch and len(set(before.voters) ^ set(after.voters)) > 1:
        raise Violation("CMS-1", f"epoch {after.epoch} takes voters {before.voters} to {after.voters}")
    if before.voters not in ((), after.voters) and before.service.change is None:
        raise Violation("CMS-1", f"epoch {after.epoch} changes voters without a change that runs")
    _check_change(before.service, after.service)
    _check_tolerance(before, after)
    for operation in after.operations:
        if operation.about.departing and operation.about.departing in after.service.members:
            raise Violation("CMS-1", f"{operation.title()} runs, and that node votes")
    for voter in after.voters:
        if after.directory.by_id[voter].state is NodeState.LEFT:
            raise Violation("CMS-1", f"voter {voter} has left")


def _check_built(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """UPG-1: an upgrade that had begun, with nothing under way, ends by one entry that changes no node, no
    token and no table, and names voters of whom all are there."""
    running, built = before.parts[RINGED].upgrading, after.parts[RINGED].built_epoch
    if not before.is_on_ring or running is None or built != after.epoch:
        raise Violation("UPG-1", f"epoch {after.epoch} has another way to agree")
    if before.operations:
        raise Violation("UPG-1", f"epoch {after.epoch} builds a log while operations run")
    was, now = dict(part_digests(before)), dict(part_digests(after))
    if any(was[name] != now[name] for name in ("directory", "schema")):
        raise Violation("UPG-1", f"epoch {after.epoch} builds a log and changes nodes or tables")
    if not after.voters or {*after.voters} & {*running.ignored} or len(after.voters) % 2 == 0:
        raise Violation("UPG-1", f"epoch {after.epoch} builds a log with voters {after.voters}")
    if not {*running.ignored} <= {*after.excluded_by_node}:
        raise Violation("UPG-1", f"epoch {after.epoch} lets in who was ignored")


def _check_change(before: Service, after: Service) -> None:
    """One change at a time, whose sub-steps follow each other and have their effect when they are over."""
    one, other = before.change, after.change
    if one is None:
        return
    if other is not None and other.id != one.id:
        raise Violation("CMS-1", f"{other.title()} begins while {one.title()} runs")
    if other is not None and other.index not in (one.index, one.index + 1):
        raise Violation("CMS-1", f"{other.title()} goes from sub-step {one.index} to {other.index}")
    over = other is None or other.index != one.index
    if over and not one.cancelled and (one.member in after.voters) != one.adds:
        raise Violation("CMS-1", f"{one.title()} ends sub-step {one.index} without its effect")


def _check_tolerance(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """CMS-3: judged when a change begins, by where it leads; on the way a group survives no less."""
    change = after.service.change
    if change is None or change.id != after.epoch:
        return
    led_to = len({*after.voters, *change.additions} - {*change.removals})
    survives, survived = (led_to - 1) // 2, (len(before.voters) - 1) // 2
    allowed = (_votes_allowed(before) - 1) // 2
    # An operator who names the voters, or their number, has asked for it.
    if not before.service.size and not after.service.size and survives < min(survived, allowed):
        raise Violation(
            "CMS-3",
            f"epoch {after.epoch}, {change.title()}: {led_to} voters survive {survives} losses; "
            f"{len(before.voters)} did survive {survived}, and the members allow {allowed}",
        )


def _votes_allowed(cluster: ClusterMetadata) -> int:
    """How many may vote at most, by how many nodes the cluster has once those have left that are to leave."""
    members = [node for node in cluster.directory.nodes if node.may_vote and _is_member(cluster, node)]
    able = [node.dc for node in members if node.id not in cluster.excluded_by_node]
    wanted = next((votes for most, votes in ((2, 1), (5, 3), (100, 5)) if len(members) <= most), 7)
    dcs = sorted(set(able))
    for votes in range(wanted, 1, -2):
        limit = dc_limit(votes, len(dcs))
        if sum(min(able.count(dc), limit) for dc in dcs) >= votes:
            return votes
    return 1


def _is_member(cluster: ClusterMetadata, node: NodeInfo) -> bool:
    if node.id in cluster.service.leaving or any(node.id == o.about.departing for o in cluster.operations):
        return False
    if node.state in (NodeState.NORMAL, NodeState.REBUILDING):
        return True
    return any(isinstance(one.body, Replace) and one.node == node.id for one in cluster.requests.live)


def check_entry(before: ClusterMetadata, entry: LogEntry) -> None:
    """CMS-2: while the service is frozen, nothing but the service itself changes."""
    if before.service.frozen and entry.kind not in _WHILE_FROZEN:
        raise Violation("CMS-2", f"epoch {entry.epoch} is an entry of kind {entry.kind}, and all is frozen")


def unsettled_voters(cluster: ClusterMetadata, leader: Node | None) -> str:
    """Why the voters are not yet those that should be, by the metadata and by Raft; empty when they are."""
    if cluster.is_on_ring:
        return ""
    service = cluster.service
    if service.change is not None:
        return f"{service.change.title()} runs"
    if service.leaving:
        return f"nodes {list(service.leaving)} wait to leave"
    if leader is None or leader.log.driver is None:
        return "nobody leads"
    configuration = leader.log.driver.raft.configuration
    if configuration.voters != service.voters or configuration.learners or configuration.outgoing:
        return f"Raft has {configuration}, recorded are {list(service.voters)}"
    if len(service.voters) % 2 == 0:
        return f"voters {list(service.voters)} are an even number"
    # A run that settles asks at each instant, mostly of the same value.
    wanted = memo(cluster, "_wanted_voters", choose_voters)
    if not service.paused and wanted != service.voters:
        return f"voters are {list(service.voters)}, wanted are {list(wanted)}"
    return ""
