"""The entry that grants and revokes permissions, and what happens to grants when the schema changes.

Invariant: a grant is on something that is there: what is dropped takes the grants on it along in the same
entry, and of a grant and a drop at the same time the log's order decides which is refused.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.access import resources
from lockstep.metadata.access.roles import ACCESS, Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.schema.changes import SYSTEM_KEYSPACES, CreateKeyspace, SchemaChange
from lockstep.schema.model import Schema
from lockstep.values.errors import Rejected
from lockstep.values.limits import GRANTS_MAX


class ChangePermissions(msgspec.Struct, frozen=True, array_like=True):
    """The body of a PERMISSIONS entry: a role has, or has no longer, permissions on a resource."""

    role: str
    resource: str
    permissions: tuple[str, ...]
    granted: bool

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        access = cluster.access
        if access.role(self.role) is None:
            raise Rejected(f"Role {self.role} doesn't exist")
        if not exists(cluster, self.resource):
            raise Rejected(f"Resource {resources.text(self.resource)} doesn't exist")
        wanted = frozenset(self.permissions).intersection(resources.applicable(self.resource))
        if not wanted:
            raise Rejected("Resource type does not support any of the requested permissions")
        before = frozenset(access.granted(self.role, self.resource))
        after = before | wanted if self.granted else before - wanted
        if after == before:
            return cluster
        if not before and access.grants.count >= GRANTS_MAX:
            raise Rejected(f"a cluster has at most {GRANTS_MAX} grants")
        return cluster.changed(ACCESS.set(access.with_grant(self.role, self.resource, after)))


def exists(cluster: ClusterMetadata, resource: str) -> bool:
    """Whether there is such a resource now. Of MBeans everything is: nobody serves them."""
    parts = resources.split(resource)
    if len(parts) == 1 or parts[0] == resources.MBEANS:
        return True
    if parts[0] == resources.ROLES:
        return cluster.access.role(parts[1]) is not None
    if parts[0] == resources.DATA and parts[1] in SYSTEM_KEYSPACES:
        # Which tables are in them is known where they are served.
        return True
    space = cluster.schema.by_name.get(parts[1])
    if space is None or len(parts) == 2:
        return space is not None
    if parts[0] == resources.DATA:
        return resource == resources.all_tables(parts[1]) or parts[2] in space.by_name
    return resource in _functions_of(cluster.schema, parts[1])


def followed(access: Access, before: Schema, after: Schema, change: SchemaChange, creator: str) -> Access:
    """Roles and grants after a schema change: what is gone has none, and who created something has all."""
    left = access.without_resources(_gone(before, after)) if access.grants.count else access
    if not creator or left.role(creator) is None:
        return left
    for resource in _created(change, before, after):
        if left.grants.count < GRANTS_MAX or left.granted(creator, resource):
            left = left.with_grant(creator, resource, resources.applicable(resource))
    return left


def _created(change: SchemaChange, before: Schema, after: Schema) -> list[str]:
    if isinstance(change, CreateKeyspace):
        return [resources.keyspace(change.keyspace), resources.functions(change.keyspace)]
    known = _functions_of(before, change.keyspace)
    made = [name for name in _functions_of(after, change.keyspace) if name not in known]
    return [*_tables_only_in(after, before), *made]


def _gone(before: Schema, after: Schema) -> list[str]:
    """Keyspaces, tables and functions that are there no longer; costs what changed."""
    gone: list[str] = []
    for space, later in before.keyspaces_changed_in(after):
        if space is not None and later is None:
            gone += (resources.keyspace(space.name), resources.functions(space.name))
        elif space is not None:
            kept = _functions_of(after, space.name)
            gone += [name for name in _functions_of(before, space.name) if name not in kept]
    return gone + _tables_only_in(before, after)


def _tables_only_in(here: Schema, there: Schema) -> list[str]:
    """Tables and views of one schema that the other does not have; costs what differs."""
    tables = (here.tables_by_id[table_id] for table_id in here.table_ids_gone_in(there))
    # A table that is emptied has another id under the same name.
    alone = (table for table in tables if there.table(table.keyspace, table.name) is None)
    return [resources.table(table.keyspace, table.name) for table in alone]


def _functions_of(schema: Schema, keyspace: str) -> tuple[str, ...]:
    """The resources of a keyspace's functions and aggregates, in their order."""
    space = schema.by_name.get(keyspace)
    if space is None:
        return ()
    signatures = [one.signature for one in space.functions] + [one.signature for one in space.aggregates]
    return tuple(resources.function(keyspace, name, arguments) for name, arguments in signatures)


KINDS: dict[int, type] = {EntryKind.PERMISSIONS: ChangePermissions}
