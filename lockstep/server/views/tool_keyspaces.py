"""`system_auth`, `system_distributed` and `system_traces`: keyspaces whose tables tools of Cassandra look
for.

Invariant: the tables are views of the metadata; who may read them is judged as for any other table, and the
hashes of passwords are for superusers alone. The tables are views of what builds of materialized views keep;
nothing is kept here. Clients see the same keyspace, tables and ids before the first trace as after it. A
cluster that never traces stores, streams and repairs nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from lockstep.metadata.access.roles import Access
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.services import NodeServices
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import Schema
from lockstep.server.views.virtual import REPLICATION, VirtualRow, VirtualTable, define
from lockstep.server.views.work_views import status_rows


class AuthTables:
    """`access` gives the present roles and grants."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._access = access

    def tables(self) -> list[VirtualTable]:
        def auth(
            name: str,
            columns: str,
            key: tuple[str, ...],
            rows: Callable[[], Iterator[VirtualRow]],
            comment: str,
        ) -> VirtualTable:
            return define("system_auth", name, columns, key[:1], key[1:], rows, comment=comment)

        return [
            auth(
                "roles",
                "role text; can_login boolean; is_superuser boolean; member_of set<text>; salted_hash text",
                ("role",),
                self._roles,
                "Roles; their hashes are for superusers alone",
            ),
            auth(
                "role_members",
                "role text; member text",
                ("role", "member"),
                self._members,
                "Who is a member of a role",
            ),
            auth(
                "role_permissions",
                "role text; resource text; permissions set<text>",
                ("role", "resource"),
                self._permissions,
                "What was granted",
            ),
            auth(
                "resource_role_permissons_index",
                "resource text; role text",
                ("resource", "role"),
                self._by_resource,
                "Who was granted something",
            ),
            auth(
                "network_permissions",
                "role text; dcs frozen<set<text>>",
                ("role",),
                self._places,
                "Data centres that roles are bound to",
            ),
        ]

    def _roles(self) -> Iterator[VirtualRow]:
        for role in self._access().listed_roles():
            yield {
                "role": role.name,
                "can_login": role.login,
                "is_superuser": role.superuser,
                "member_of": list(role.member_of) or None,
                "salted_hash": role.salted_hash or None,
            }

    def _members(self) -> Iterator[VirtualRow]:
        for role in self._access().listed_roles():
            yield from ({"role": held, "member": role.name} for held in role.member_of)

    def _permissions(self) -> Iterator[VirtualRow]:
        for grant in self._access().listed_grants():
            yield {"role": grant.role, "resource": grant.resource, "permissions": sorted(grant.permissions)}

    def _by_resource(self) -> Iterator[VirtualRow]:
        for grant in self._access().listed_grants():
            yield {"resource": grant.resource, "role": grant.role}

    def _places(self) -> Iterator[VirtualRow]:
        for role in self._access().listed_roles():
            if role.data_centers:
                yield {"role": role.name, "dcs": list(role.data_centers)}


def distributed_tables(node: NodeServices) -> list[VirtualTable]:
    return [
        define(
            "system_distributed",
            "view_build_status",
            "keyspace_name text; view_name text; host_id uuid; status text",
            ("keyspace_name", "view_name"),
            ("host_id",),
            lambda: status_rows(node),
            comment="Which nodes have built which materialized views, or build them",
        )
    ]


KEYSPACE: Final = "system_traces"
_SESSIONS: Final = (
    "session_id uuid; client inet; command text; coordinator inet; coordinator_port int; duration int; "
    "parameters map<text, text>; request text; started_at timestamp"
)
_EVENTS: Final = (
    "session_id uuid; event_id timeuuid; activity text; source inet; source_port int; source_elapsed int; "
    "thread text"
)


def trace_tables() -> list[VirtualTable]:
    """The tables without a row, for as long as there are no others."""
    return [
        _kept_shortly(define(KEYSPACE, name, columns, ("session_id",), clustering, _nothing, comment=comment))
        for name, columns, clustering, comment in (
            ("sessions", _SESSIONS, (), "tracing sessions"),
            ("events", _EVENTS, ("event_id",), "tracing events"),
        )
    ]


def _nothing() -> tuple[VirtualRow, ...]:
    return ()


def _kept_shortly(found: VirtualTable) -> VirtualTable:
    """Rows expire and are never deleted."""
    options = (*found.table.options, ("gc_grace_seconds", "0"))
    return VirtualTable(msgspec.structs.replace(found.table, options=options), found.rows)


def changes_that_make_it(schema: Schema) -> list[ChangeSchema]:
    """What the schema lacks of it."""
    space = schema.by_name.get(KEYSPACE)
    found: list[ChangeSchema] = []
    if space is None:
        strategy, factors = REPLICATION[KEYSPACE].strategy, REPLICATION[KEYSPACE].factors
        replication = (("class", strategy), *(("replication_factor", str(factor)) for _, factor in factors))
        found.append(ChangeSchema(CreateKeyspace(KEYSPACE, replication, if_not_exists=True, by_server=True)))
    for made in trace_tables():
        table = made.table
        if space is None or table.name not in space.by_name:
            columns = tuple(NewColumn(c.name, c.type, c.kind, c.position) for c in table.columns)
            change = CreateTable(
                KEYSPACE, table.name, table.uuid, columns, table.options, if_not_exists=True, by_server=True
            )
            found.append(ChangeSchema(change))
    return found
