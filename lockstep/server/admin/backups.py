"""Backups and restores for the admin API: make one, list, remove, restore, tell how it stands.

Invariant: what would be refused is refused before anything is changed; a restore touches no table that is
there unless it was said whether that is to be emptied or added to, and none before all parts were checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.cql.compile.prepared import cql_name
from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairPart, parts_by_group
from lockstep.node.services import NodeServices
from lockstep.node.work.backup_choice import Found, Restored
from lockstep.replica.backup_messages import KeptPart
from lockstep.schema.changes import SYSTEM_KEYSPACES
from lockstep.schema.log_tables import captured_by
from lockstep.schema.model import Schema
from lockstep.server.admin.operations import Operation, get, later, now, number_in, read_body
from lockstep.storage.backup_manifest import (
    BackedTable,
    Statement,
    columns_between,
    refuse_hidden,
    sealed,
    unsealed,
)
from lockstep.topology.repairs import BACKUP, PURPOSES, BeginRepair
from lockstep.values.errors import ConfigurationError, LockstepError, PreconditionError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING

if TYPE_CHECKING:
    from lockstep.server.statements.execution import Executor

Document = dict[str, Any]

PATH = "/v1/backups"
RUNS_PATH = "/v1/backup-runs"
_TABLES = {"type": "array", "items": {"type": "string"}, "description": "keyspace or keyspace.table"}
_BACKUP_BODY = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tables": _TABLES,
        "allow_absent": {"type": "boolean"},
        "dry_run": {"type": "boolean"},
    },
    "required": ["name"],
}
_RESTORE_BODY = {
    "type": "object",
    "properties": {
        "tables": _TABLES,
        "existing": {"enum": ["refuse", "truncate", "merge"]},
        "dry_run": {"type": "boolean"},
        "brought": {
            "type": "object",
            "properties": {
                "manifest": {
                    "type": "string",
                    "description": "of one, as if it had the files of all",
                },
                "parts": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"node": {"type": "integer"}, "host_id": {"type": "string"}},
                    },
                },
            },
            "description": "of a dry run: parts as if nodes kept them",
        },
    },
}
_CREATE = re.compile(r"CREATE (CUSTOM INDEX|MATERIALIZED VIEW|KEYSPACE|TYPE|TABLE|INDEX|FUNCTION|AGGREGATE) ")


_NOT_UNDERSTOOD: Final = "the body is not understood"


class WantedBackup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tables: tuple[str, ...] = ()
    allow_absent: bool = False
    dry_run: bool = False


class BroughtPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part that a node would keep."""

    node: int
    host_id: str


class Brought(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of one backup, and a manifest that stands for all of them; see `backup_manifest.stand_in`."""

    manifest: str
    parts: tuple[BroughtPart, ...]


class WantedRestore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tables: tuple[str, ...] = ()
    existing: str = "refuse"
    dry_run: bool = False
    brought: Brought | None = None


class BackupRequests:
    def __init__(self, node: NodeServices, executor: Executor) -> None:
        self._node = node
        self._executor = executor

    def operations(self) -> list[Operation]:
        return [
            get(PATH, "Backups that nodes keep, and whether they are complete", later(lambda *_: self.all())),
            Operation(
                "POST",
                PATH,
                "Begin a backup, or say with dry_run what it would do",
                later(lambda request, _: self.create(request.body)),
                "How it stands, or its plan",
                body=_BACKUP_BODY,
            ),
            Operation(
                "DELETE",
                PATH + "/{name}",
                "Remove all parts of a backup that nodes keep",
                later(lambda _, values: self.remove(values["name"])),
                "What was removed",
            ),
            Operation(
                "POST",
                PATH + "/{name}/restore",
                "Begin a restore, or say with dry_run what it would do",
                later(lambda request, values: self.restore(values["name"], request.body)),
                "How it stands, or its plan",
                body=_RESTORE_BODY,
            ),
            get(
                RUNS_PATH + "/{id}",
                "How a backup or a restore stands",
                now(lambda _, values: self.run(values["id"])),
            ),
        ]

    # -- what is kept -------------------------------------------------------------------------------------

    async def all(self) -> Document:
        kept, silent = await self._node.work.backups.kept()
        backups: dict[str, Document] = {}
        for node, parts in kept.items():
            for part in parts:
                found = backups.setdefault(part.name, {"name": part.name, "parts": []})
                found["parts"].append(
                    {
                        "node": int(node),
                        "host_id": part.host_id,
                        "backup_id": part.backup_id or None,
                        "bytes": part.size_bytes,
                        "began_us": part.began_us or None,
                        "of": list(part.nodes),
                        "problem": part.problem or None,
                    }
                )
        listed = [_judged(backups[name]) for name in sorted(backups)]
        return {"schema": "backups/1", "backups": listed, "silent": [int(node) for node in silent]}

    async def remove(self, name: str) -> Document:
        kept, silent = await self._node.work.backups.kept(name, remove=True)
        parts = sum(len(found) for found in kept.values())
        if not parts and not silent:
            raise PreconditionError(
                f"there is no backup {name}", hint="those that are kept: `lockstep backup list`"
            )
        return {
            "schema": "backup-removed/1",
            "name": name,
            "parts": parts,
            "bytes": sum(part.size_bytes for found in kept.values() for part in found),
            "silent": [int(node) for node in silent],
        }

    def run(self, text: str) -> Document:
        repairs = self._node.log.cluster.repairs
        number = number_in(text)
        found = repairs.find(number) if number is not None else None
        if found is None or found.purpose not in PURPOSES:
            raise ConfigurationError(f"there is no backup or restore {text}")
        return self._document(found)

    def _document(self, repair: Repair) -> Document:
        progress = self._node.work.backups.progress.get(repair.id)
        return {
            "schema": "backup-run/1",
            "id": repair.id,
            "purpose": repair.purpose,
            "state": repair.state.value,
            "driver": int(repair.driver),
            "began_epoch": repair.began_epoch,
            "began_s": repair.began_s,
            "ended_s": repair.ended_s or None,
            "reason": repair.reason or None,
            "progress": None if progress is None else dict(vars(progress)),
        }

    # -- backups ------------------------------------------------------------------------------------------

    async def create(self, body: Any) -> Document:
        wanted = read_body(body, WantedBackup, _NOT_UNDERSTOOD)
        parts = backed_parts(self._node.log.cluster, wanted.tables)
        if wanted.dry_run:
            return await self._backup_plan(wanted, parts)
        schema = [one for part in parts for one in self._statements(part)]
        begun = await self._node.work.backups.begin(
            wanted.name, parts, schema, allow_absent=wanted.allow_absent
        )
        return self._document(begun)

    def _statements(self, part: RepairPart) -> Iterator[Statement]:
        """What makes the keyspace again, with the tables of the part only."""
        cluster, executor = self._node.log.cluster, self._executor
        text = f"DESCRIBE KEYSPACE {cql_name(part.keyspace)}"
        prepared = executor.statements.by_text(text, None).prepared
        facts = ClusterFacts(self._node.context.configuration.cluster.name)
        names = {table.name for id_ in part.tables if (table := cluster.table(id_)) is not None}
        for row in describe(prepared, executor.catalogs.current(), facts).rows:
            _, kind, name, cql = ((value or b"").decode() for value in row)
            if _is_about(kind, name, cql, part.keyspace, names):
                yield Statement(part.keyspace, kind, name, cql)

    async def _backup_plan(self, wanted: WantedBackup, parts: Sequence[RepairPart]) -> Document:
        node, cluster = self._node, self._node.log.cluster
        refusal, nodes, absent = "", cluster.directory.present_ids, tuple[NodeId, ...]()
        try:
            nodes, absent = node.work.backups.participants(cluster, parts, allow_absent=wanted.allow_absent)
            now_s = node.context.runtime.clock.wall_us() // 1_000_000
            entry = BeginRepair(NodeId(node.context.own_id()), tuple(parts), now_s, purpose=BACKUP)
            entry.apply(cluster, cluster.epoch + 1)
        except LockstepError as error:
            refusal = error.message
        asked = {
            host: [
                (part.group, placed.range)
                for part in parts
                for placed in cluster.placements.ring(part.group).ranges
                if host in placed.group.writes
            ]
            for host in nodes
        }
        sizes = await node.work.sizes.ask(asked)
        return {
            "schema": "backup-plan/1",
            "name": wanted.name,
            "refused": refusal or None,
            "tables": [
                f"{part.keyspace}.{table.name}"
                for part in parts
                for id_ in part.tables
                if (table := cluster.table(id_)) is not None
            ],
            "nodes": [
                {"node": int(host), "bytes_at_most": sum(sizes[host].bytes) if host in sizes else None}
                for host in nodes
            ],
            "absent": [int(host) for host in absent],
            "steps": [
                "an entry opens a session: nothing is purged, and ranges that move make the backup fail",
                "every node writes the fragments of the ranges it has into files of its own directory",
                "when all have, every node writes its manifest, and an entry closes the session",
            ],
            "way_back": "`lockstep backup remove`; no data is changed",
        }

    # -- restores -----------------------------------------------------------------------------------------

    async def restore(self, name: str, body: Any) -> Document:
        wanted = read_body(body if body is not None else {}, WantedRestore, _NOT_UNDERSTOOD)
        if wanted.existing not in ("refuse", "truncate", "merge"):
            raise ConfigurationError("existing is refuse, truncate or merge")
        if wanted.brought is not None and not wanted.dry_run:
            raise ConfigurationError("only a dry run takes parts that no node keeps")
        found = await self._node.work.backups.found(name, as_kept(name, wanted.brought))
        tables = wanted_tables(self._node.log.cluster.schema, found.tables(), wanted.tables)
        if not tables:
            known = ", ".join(f"{one.keyspace}.{one.name}" for one in found.tables()) or "no table"
            raise ConfigurationError(f"backup {name} holds {known}, nothing of what was named")
        self._check(tables, wanted.existing)
        if wanted.dry_run:
            return self._restore_plan(found, tables, wanted)
        schema = self._node.log.cluster.schema
        empty = to_empty(schema, tables) if wanted.existing == "truncate" else ()
        made = await self._make(found, tables)
        names = {one.id: (one.keyspace, one.name) for one in tables}
        return self._document(
            await self._node.work.backups.begin_restore(Restored(found, names, empty, made))
        )

    def _check(self, tables: Sequence[BackedTable], existing: str) -> None:
        schema = self._node.log.cluster.schema
        for backed in tables:
            table = schema.table(backed.keyspace, backed.name)
            if table is None:
                continue
            name = f"{backed.keyspace}.{backed.name}"
            if existing == "refuse":
                raise PreconditionError(
                    f"table {name} is there",
                    hint="empty it before with --truncate, or add to what it holds with --merge",
                )
            if existing == "merge" and table.is_counter:
                raise PreconditionError(
                    f"table {name} counts: what was backed up would be counted twice",
                    hint="empty it before: --truncate",
                )
            columns_between(backed, schema.by_name[backed.keyspace], table)
            if existing == "truncate":
                refuse_hidden(backed, table)

    async def _make(self, found: Found, tables: Sequence[BackedTable]) -> int:
        """Make what is missing; how many tables."""
        schema = self._node.log.cluster.schema
        missing: dict[str, set[str]] = {}
        for backed in tables:
            if schema.table(backed.keyspace, backed.name) is None:
                missing.setdefault(backed.keyspace, set()).add(backed.name)
        for one in found.first.schema:
            names = missing.get(one.keyspace)
            if names is not None and _is_about(one.kind, one.name, one.cql, one.keyspace, names):
                await self._executor.change_schema(_CREATE.sub(r"CREATE \1 IF NOT EXISTS ", one.cql, count=1))
        return sum(len(names) for names in missing.values())

    def _restore_plan(self, found: Found, tables: Sequence[BackedTable], wanted: WantedRestore) -> Document:
        schema, manifest = self._node.log.cluster.schema, found.first
        return {
            "schema": "restore-plan/1",
            "name": found.name,
            "cluster": manifest.cluster_name,
            "epoch": manifest.epoch,
            "began_us": manifest.began_us,
            "absent": list(manifest.absent),
            "sources": [
                {"node": int(node), "host_ids": list(ids)} for node, ids in sorted(found.host_ids.items())
            ],
            "tables": [
                {
                    "table": f"{one.keyspace}.{one.name}",
                    "bytes": one.size_bytes,
                    "action": _action(schema, one, wanted.existing),
                }
                for one in tables
            ],
            "steps": [
                "missing keyspaces, types and tables are made as they were",
                "an entry opens a session: nothing is purged",
                "nodes that keep parts check every file",
                "with --truncate, tables that were there are emptied",
                "every replica takes its ranges from all parts",
                "an entry closes the session, unless ranges got other replicas: then these take them too",
            ],
            "way_back": "none for a table that was emptied or added to: back it up before",
        }


def to_empty(schema: Schema, tables: Sequence[BackedTable]) -> tuple[tuple[str, str], ...]:
    """Views are emptied with what they are made of. A log of captured changes is not while its table
    captures: readers follow it, and what was backed up of it is added."""
    here = (schema.table(one.keyspace, one.name) for one in tables)
    return tuple(
        (one.keyspace, one.name)
        for one in here
        if one is not None and one.view is None and captured_by(schema, one) is None
    )


def _action(schema: Schema, backed: BackedTable, existing: str) -> str:
    here = schema.table(backed.keyspace, backed.name)
    if here is None:
        return "create"
    return "merge" if captured_by(schema, here) is not None else existing


def as_kept(name: str, brought: Brought | None) -> dict[NodeId, list[KeptPart]]:
    """The parts with a manifest each, the first of which has the files of all. CorruptFile when the one that
    stands for them is not whole."""
    found: dict[NodeId, list[KeptPart]] = {}
    if brought is None:
        return found
    whole = unsealed("the manifest of parts that are to be brought", brought.manifest.encode())
    for part in sorted(brought.parts, key=lambda part: part.host_id):
        manifest = sealed(msgspec.structs.replace(whole, host_id=part.host_id))
        found.setdefault(NodeId(part.node), []).append(KeptPart(name, part.host_id, manifest=manifest))
        # Who is asked whether all are there is the first.
        whole = msgspec.structs.replace(whole, nodes=(), tables=())
    return found


def backed_parts(cluster: ClusterMetadata, wanted: Sequence[str]) -> tuple[RepairPart, ...]:
    """What is to be backed up, by keyspace; nothing named: all of it. ConfigurationError for unknown ones."""
    found: list[RepairPart] = []
    used: set[str] = set()
    for keyspace in cluster.schema.keyspaces:
        if keyspace.name in SYSTEM_KEYSPACES:
            continue
        names = {name for name in wanted if name.partition(".")[0] == keyspace.name}
        whole = not wanted or keyspace.name in names
        tables = [one for one in keyspace.tables if whole or f"{keyspace.name}.{one.name}" in names]
        used |= {f"{keyspace.name}.{one.name}" for one in tables} | ({keyspace.name} if whole else set())
        if tables:
            found += parts_by_group(keyspace, [table.id for table in tables], (FULL_RING,))
    unknown = [name for name in wanted if name not in used]
    if unknown:
        raise ConfigurationError(f"there is no keyspace or table {', '.join(unknown)}")
    if not found:
        raise ConfigurationError("there is no table to back up")
    return tuple(found)


def wanted_tables(schema: Schema, backed: Sequence[BackedTable], wanted: Sequence[str]) -> list[BackedTable]:
    """What is named, and the views that are made of it here, as a restore does not work their rows out anew.
    PreconditionError for a view that was not backed up."""
    chosen = {(one.keyspace, one.name) for one in backed if _is_wanted(one, wanted)}
    known = {(one.keyspace, one.name) for one in backed}
    for keyspace, name in sorted(chosen):
        table = schema.table(keyspace, name)
        for view in table.views if table is not None else ():
            if (keyspace, view) not in known:
                raise PreconditionError(
                    f"view {keyspace}.{view} was not backed up, and would lack what is restored",
                    hint="drop it, restore, and create it again",
                )
            chosen.add((keyspace, view))
    return [one for one in backed if (one.keyspace, one.name) in chosen]


def _is_wanted(table: BackedTable, wanted: Sequence[str]) -> bool:
    return not wanted or table.keyspace in wanted or f"{table.keyspace}.{table.name}" in wanted


def _is_about(kind: str, name: str, cql: str, keyspace: str, tables: set[str]) -> bool:
    """Whether a statement is needed for these tables of its keyspace. DESCRIBE quotes names where needed."""
    quoted = {cql_name(table) for table in tables}
    if kind in ("table", "materialized view"):
        return name in quoted
    if kind == "index":
        return any(f" ON {cql_name(keyspace)}.{table} (" in cql for table in quoted)
    return True


def _judged(backup: Document) -> Document:
    """With what all its parts tell together."""
    parts = backup["parts"]
    whole = [part for part in parts if not part["problem"]]
    ids = {part["backup_id"] for part in whole}
    wanted = set(whole[0]["of"]) if whole else set()
    missing = sorted(wanted - {part["host_id"] for part in whole})
    return {
        **backup,
        "complete": len(ids) == 1 and not missing,
        "missing": missing,
        "bytes": sum(part["bytes"] for part in parts),
        "began_us": whole[0]["began_us"] if whole else None,
    }
