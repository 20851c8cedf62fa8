"""Repairs for the admin API: begin one, say what it would do, tell how it stands, end it.

Invariant: how a repair stands is told from the metadata, alike by every node; how far it is, by the node that
drives it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairPart, parts_by_group
from lockstep.node.repairing.progress import Disagreement, RepairProgress
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, get, later, now, number_in, read_body
from lockstep.server.reports.request_plans import changes
from lockstep.topology.repairs import BeginRepair, Way, units
from lockstep.values.errors import ConfigurationError, LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIR_RANGES_AT_ONCE_MAX, REPAIR_RANGES_NAMED_MAX
from lockstep.values.node_limits import REPAIR_WAITS_NAMED_MAX
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

Document = dict[str, Any]

PATH = "/v1/repairs"
BODY = {
    "type": "object",
    "properties": {
        "keyspace": {"type": "string", "description": "All keyspaces when absent"},
        "table": {"type": "string", "description": "One table of the keyspace"},
        "incremental": {"type": "boolean"},
        "full": {"type": "boolean", "description": "Compare data also where ids tell of everything"},
        "dcs": {"type": "array", "items": {"type": "string"}},
        "hosts": {"type": "array", "items": {"type": "integer"}},
        "ranges": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "dry_run": {"type": "boolean"},
    },
}


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyspace: str = ""
    table: str = ""
    incremental: bool = False
    full: bool = False
    dcs: tuple[str, ...] = ()
    hosts: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    dry_run: bool = False


class RepairRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        return [
            get(PATH, "Repairs that run, and that ended lately", now(lambda *_: self.all())),
            get(PATH + "/{id}", "One repair", now(lambda _, values: self.one(values["id"]))),
            Operation(
                "POST",
                PATH,
                "Begin a repair, or say with dry_run what it would do",
                later(lambda request, _: self.submit(request.body)),
                "The repair, or its plan",
                body=BODY,
            ),
            Operation(
                "DELETE",
                PATH + "/{id}",
                "End a repair",
                later(lambda _, values: self.cancel(values["id"])),
                "The repair",
            ),
        ]

    def all(self) -> Document:
        repairs = self._node.log.cluster.repairs
        listed = (*repairs.running, *reversed(repairs.ended))
        return {"schema": "repairs/1", "repairs": [self._document(one) for one in listed]}

    def one(self, text: str) -> Document:
        return {"schema": "repair/1", **self._document(self._found(text))}

    async def submit(self, body: Any) -> Document:
        """Begin a repair, or plan it. ConfigurationError, PreconditionError, Rejected."""
        wanted = read_body(body, Wanted, "not a repair")
        cluster = self._node.log.cluster
        if wanted.incremental and wanted.full:
            raise ConfigurationError("a repair is incremental or full")
        parts, nodes = parts_of(cluster, wanted), nodes_of(cluster, wanted)
        if wanted.dry_run:
            return await self._plan(parts, nodes, wanted)
        begun = await self._node.work.repairs.begin(
            parts, nodes, incremental=wanted.incremental, full=wanted.full
        )
        return {"schema": "repair/1", **self._document(begun)}

    async def cancel(self, text: str) -> Document:
        repair = self._found(text)
        await self._node.work.repairs.cancel(repair.id, "an operator ended it")
        return self.one(text)

    # -- documents ------------------------------------------------------------------------------------

    def _found(self, text: str) -> Repair:
        number = number_in(text)
        found = self._node.log.cluster.repairs.find(number) if number is not None else None
        if found is None:
            raise ConfigurationError(
                f"there is no repair {text}", hint="those that are known: GET /v1/repairs"
            )
        return found

    def _document(self, repair: Repair) -> Document:
        progress = self._node.work.repairs.progress.get(repair.id)
        return {
            "id": repair.id,
            "purpose": repair.purpose or "repair",
            "state": repair.state.value,
            "incremental": repair.incremental,
            "driver": int(repair.driver),
            "hosts": [int(node) for node in repair.nodes],
            "keyspaces": [
                {
                    "keyspace": part.keyspace,
                    "tables": [name for _, name in _names(self._node.log.cluster, part)],
                    "ranges": [[one.left, one.right] for one in part.ranges],
                }
                for part in repair.parts
            ],
            "began_epoch": repair.began_epoch,
            "ended_epoch": repair.ended_epoch or None,
            "began_s": repair.began_s,
            "ended_s": repair.ended_s or None,
            "reason": repair.reason or None,
            "progress": None if progress is None else _progress(progress),
        }

    async def _plan(
        self, parts: tuple[RepairPart, ...], nodes: tuple[NodeId, ...], wanted: Wanted
    ) -> Document:
        node, cluster = self._node, self._node.log.cluster
        now_s = node.context.runtime.clock.wall_us() // 1_000_000
        entry = BeginRepair(NodeId(node.context.own_id()), parts, now_s, nodes, wanted.incremental)
        refusal, changed = "", []
        try:
            node.work.repairs.refuse_dead(cluster, entry)
            after = entry.apply(cluster, cluster.epoch + 1)
            changed = changes(cluster, after)
        except LockstepError as error:
            refusal = error.message
        repair = Repair(0, entry.driver, parts, nodes, wanted.incremental, now_s)
        work = units(cluster, repair, REPAIR_RANGES_AT_ONCE_MAX, full=wanted.full)
        asked = {
            host: list(
                dict.fromkeys(
                    (parts[unit.part].group, range_)
                    for unit in work
                    if host in unit.nodes and unit.way is not Way.IDS
                    for range_ in unit.ranges
                )
            )
            for host in sorted({host for unit in work for host in unit.nodes})
        }
        sizes = await node.work.sizes.ask(asked)
        ways = {unit.way for unit in work}
        return {
            "schema": "repair-plan/1",
            "refused": refusal or None,
            "incremental": wanted.incremental,
            "driver": node.context.own_id(),
            "keyspaces": [
                {
                    "keyspace": part.keyspace,
                    "tables": [name for _, name in _names(cluster, part)],
                    "ranges": len({range_ for u in work if u.part == at for range_ in u.ranges}),
                }
                for at, part in enumerate(parts)
            ],
            "participants": [
                {"node": int(host), "bytes": sum(sizes[host].bytes) if host in sizes else None}
                for host in asked
            ],
            "steps": [
                _BEGINS,
                *(step for way in Way if way in ways for step in _STEPS[way]),
                _ENDS,
            ],
            "way_back": "can be ended at any time; what was sent until then stays, and is right",
            "records": "which ranges were repaired" if not nodes else "nothing: not every replica takes part",
            "changes": changed,
        }


_BEGINS = "an entry opens a session; ranges that move are refused"
_STEPS = {
    Way.DATA: (
        "every replica hashes what it holds of each range, and the hashes are compared",
        "where they differ, each replica is sent what it lacks of the merge of all",
    ),
    Way.IDS: ("of tracked tables: wait until all replicas hold what any of them holds by id",),
    Way.DATA_AGAINST_IDS: (
        "then hashes are compared of these too; where they differ, and not by a write under way, it is told, "
        "and each replica is sent what it lacks",
    ),
}
_ENDS = "an entry closes the session and records what was repaired"


def _progress(progress: RepairProgress) -> Document:
    waits = sorted(progress.lacking.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "ranges": progress.ranges,
        "ranges_done": progress.ranges_done,
        "ranges_failed": progress.ranges_failed,
        "leaves": progress.leaves,
        "leaves_different": progress.leaves_different,
        "changes_sent": progress.changes_sent,
        "bytes_sent": progress.bytes_sent,
        "full": progress.full,
        "ids_lacking": sum(progress.lacking.values()),
        "waits_for": [
            {"group": group, "left": left, "right": right, "lacking": count}
            for (group, left, right), count in waits[:REPAIR_WAITS_NAMED_MAX]
        ],
        "disagreements": progress.disagreements,
        "disagree": [_disagreement(one) for one in progress.named.values()],
    }


def _disagreement(one: Disagreement) -> Document:
    return {
        "keyspace": one.keyspace,
        "table": one.table,
        "range": [one.range.left, one.range.right],
        "token": one.token,
        "key": one.key.hex(),
        "lacks": [{"node": int(node), "count": count} for node, count in one.lacks],
        "holds": [int(node) for node in one.holds],
        "wrong": one.wrong,
    }


def parts_of(cluster: ClusterMetadata, wanted: Wanted) -> tuple[RepairPart, ...]:
    """What the request is about, by keyspace. ConfigurationError when a name is unknown."""
    ranges = _ranges(wanted)
    if wanted.keyspace and wanted.keyspace not in cluster.schema.by_name:
        raise ConfigurationError(f"there is no keyspace {wanted.keyspace}")
    found = []
    for keyspace in cluster.schema.keyspaces:
        if wanted.keyspace not in ("", keyspace.name):
            continue
        tables = tuple(one.id for one in keyspace.tables if wanted.table in ("", one.name))
        if wanted.table and not tables:
            raise ConfigurationError(f"keyspace {keyspace.name} has no table {wanted.table}")
        if tables:
            found += parts_by_group(keyspace, tables, ranges)
    if not found:
        raise ConfigurationError("there is no table to repair")
    return tuple(found)


def _ranges(wanted: Wanted) -> tuple[Range, ...]:
    if not wanted.ranges:
        return (FULL_RING,)
    if len(wanted.ranges) > REPAIR_RANGES_NAMED_MAX:
        raise ConfigurationError(f"a repair names at most {REPAIR_RANGES_NAMED_MAX} ranges")
    found = sorted(wanted.ranges)
    for left, right in found:
        if not TOKEN_MIN <= left < right <= TOKEN_MAX:
            raise ConfigurationError(
                f"({left}, {right}] is no range of tokens: the first is below the second"
            )
    for (_, end), (start, _) in itertools.pairwise(found):
        if start < end:
            raise ConfigurationError(f"two ranges overlap at {start}")
    return tuple(Range(left, right) for left, right in found)


def nodes_of(cluster: ClusterMetadata, wanted: Wanted) -> tuple[NodeId, ...]:
    """Who takes part; nobody named: all."""
    known = cluster.directory.present_ids
    for host in wanted.hosts:
        if host not in known:
            raise ConfigurationError(f"there is no node {host}")
    for dc in wanted.dcs:
        if dc not in cluster.directory.data_centers:
            raise ConfigurationError(
                f"there is no data centre {dc}",
                hint=f"there are: {', '.join(cluster.directory.data_centers)}",
            )
    if not wanted.hosts and not wanted.dcs:
        return ()
    dc_of: Mapping[NodeId, str] = cluster.directory.dc_by_id
    chosen = [
        node
        for node in known
        if (not wanted.hosts or node in wanted.hosts) and (not wanted.dcs or dc_of[node] in wanted.dcs)
    ]
    if len(chosen) < 2:
        raise ConfigurationError("a repair compares two nodes at least")
    return tuple(chosen)


def _names(cluster: ClusterMetadata, part: RepairPart) -> Iterator[tuple[int, str]]:
    for table in part.tables:
        found = cluster.table(table)
        if found is not None:
            yield table, found.name
