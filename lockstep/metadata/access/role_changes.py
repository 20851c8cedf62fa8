"""The entries that make, change and drop roles, say who is a member of which, and grant and revoke
permissions; and what happens to grants when the schema changes.

Passwords come hashed: whoever submits an entry salts and hashes, so that all nodes apply the same bytes.

Invariant: a change that finds nothing to do returns the very value it was given; a dropped role leaves
nothing behind that another role of its name could inherit. A grant is on something that is there: what is
dropped takes the grants on it along in the same entry, and of a grant and a drop at the same time the log's
order decides which is refused.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from lockstep.metadata.access import roles
from lockstep.metadata.access.roles import ACCESS, Access, Role
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.schema.changes import SYSTEM_KEYSPACES, CreateKeyspace, SchemaChange
from lockstep.schema.log_tables import SUFFIX
from lockstep.schema.model import Schema
from lockstep.values.errors import Rejected
from lockstep.values.limits import GRANTS_MAX, ROLE_MEMBERSHIPS_MAX, ROLE_NAME_CHARACTERS_MAX, ROLES_MAX


class CreateRole(msgspec.Struct, frozen=True, array_like=True, tag="create_role"):
    """`creator`: the role that gets all permissions on the new one; empty for nobody. `only_first`: refused
    unless it is the first role of the cluster."""

    name: str
    superuser: bool = False
    login: bool = False
    salted_hash: str = ""
    data_centers: tuple[str, ...] = ()
    if_not_exists: bool = False
    creator: str = ""
    only_first: bool = False


class AlterRole(msgspec.Struct, frozen=True, array_like=True, tag="alter_role"):
    """None leaves a property as it is."""

    name: str
    superuser: bool | None = None
    login: bool | None = None
    salted_hash: str | None = None
    data_centers: tuple[str, ...] | None = None
    if_exists: bool = False


class DropRole(msgspec.Struct, frozen=True, array_like=True, tag="drop_role"):
    name: str
    if_exists: bool = False


RoleChange = CreateRole | AlterRole | DropRole


class ChangeRole(msgspec.Struct, frozen=True, array_like=True):
    """The body of a ROLE_CHANGE entry."""

    change: RoleChange

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        change = self.change
        if isinstance(change, CreateRole):
            access = _created(cluster, change)
        elif isinstance(change, AlterRole):
            access = _altered(cluster, change)
        else:
            access = _dropped(cluster.access, change)
        return cluster if access is cluster.access else cluster.changed(ACCESS.set(access))


class ChangeMembership(msgspec.Struct, frozen=True, array_like=True):
    """The body of a ROLE_MEMBERSHIP entry: `grantee` becomes a member of `role`, or is one no longer."""

    role: str
    grantee: str
    member: bool

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        access = cluster.access
        _existing(access, self.role)
        grantee = _existing(access, self.grantee)
        held = grantee.member_of
        if not self.member:
            if self.role not in held:
                raise Rejected(f"{self.grantee} is not a member of {self.role}")
            kept = tuple(name for name in held if name != self.role)
        else:
            if self.role in access.closure(self.grantee):
                raise Rejected(f"{self.grantee} is a member of {self.role}")
            if self.grantee in access.closure(self.role):
                raise Rejected(f"{self.role} is a member of {self.grantee}")
            if len(held) >= ROLE_MEMBERSHIPS_MAX:
                raise Rejected(
                    f"{self.grantee} is a member of {ROLE_MEMBERSHIPS_MAX} roles, the most allowed"
                )
            kept = tuple(sorted((*held, self.role)))
        return cluster.changed(ACCESS.set(access.with_role(replace(grantee, member_of=kept))))


def _existing(access: Access, name: str) -> Role:
    """Rejected when there is no such role."""
    found = access.role(name)
    if found is None:
        raise Rejected(f"{name} doesn't exist")
    return found


def _created(cluster: ClusterMetadata, change: CreateRole) -> Access:
    access = cluster.access
    if change.only_first and access.roles.count:
        raise Rejected("the cluster has roles already")
    if not change.name:
        raise Rejected("Role name can't be an empty string")
    if len(change.name) > ROLE_NAME_CHARACTERS_MAX or "\x00" in change.name:
        raise Rejected(f"Role names have at most {ROLE_NAME_CHARACTERS_MAX} characters, none of them NUL")
    if access.role(change.name) is not None:
        if change.if_not_exists:
            return access
        raise Rejected(f"{change.name} already exists")
    if access.roles.count >= ROLES_MAX:
        raise Rejected(f"a cluster has at most {ROLES_MAX} roles")
    where = _data_centers(cluster, change.data_centers)
    made = access.with_role(Role(change.name, change.superuser, change.login, change.salted_hash, where))
    if change.creator and access.role(change.creator) is not None:
        about = roles.role(change.name)
        made = made.with_grant(change.creator, about, roles.applicable_to(about))
    assert made.roles.count == access.roles.count + 1, "one role comes"
    return made


def _altered(cluster: ClusterMetadata, change: AlterRole) -> Access:
    access = cluster.access
    found = access.role(change.name)
    if found is None:
        if change.if_exists:
            return access
        raise Rejected(f"{change.name} doesn't exist")
    given: dict[str, object] = {
        name: value
        for name, value in (
            ("superuser", change.superuser),
            ("login", change.login),
            ("salted_hash", change.salted_hash),
        )
        if value is not None
    }
    if change.data_centers is not None:
        given["data_centers"] = _data_centers(cluster, change.data_centers)
    altered: Role = replace(found, **given)
    assert (altered.name, altered.member_of) == (found.name, found.member_of), "nobody joins or leaves"
    after = access if altered == found else access.with_role(altered)
    assert after.roles.count == access.roles.count, "no role comes or goes"
    return after


def _dropped(access: Access, change: DropRole) -> Access:
    if access.role(change.name) is None:
        if change.if_exists:
            return access
        raise Rejected(f"{change.name} doesn't exist")
    left = access.without_role(change.name)
    assert left.role(change.name) is None and left.grants.count <= access.grants.count, "its grants go too"
    return left


def _data_centers(cluster: ClusterMetadata, names: tuple[str, ...]) -> tuple[str, ...]:
    known = cluster.directory.data_centers
    if any(name not in known for name in names):
        raise Rejected(
            f"Invalid value(s) for DATACENTERS '{', '.join(names)}',"
            f"All values must be valid datacenters: {', '.join(known)}"
        )
    return tuple(sorted(set(names)))


KINDS: dict[int, type] = {
    EntryKind.ROLE_CHANGE: ChangeRole,
    EntryKind.ROLE_MEMBERSHIP: ChangeMembership,
}


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
            raise Rejected(f"Resource {roles.text(self.resource)} doesn't exist")
        wanted = frozenset(self.permissions).intersection(roles.applicable_to(self.resource))
        if not wanted:
            raise Rejected("Resource type does not support any of the requested permissions")
        before = frozenset(access.granted(self.role, self.resource))
        after = before | wanted if self.granted else before - wanted
        if after == before:
            return cluster
        if not before and access.grants.count >= GRANTS_MAX:
            raise Rejected(f"a cluster has at most {GRANTS_MAX} grants")
        given = access.with_grant(self.role, self.resource, after)
        assert frozenset(given.granted(self.role, self.resource)) == after, "no other permission changes"
        return cluster.changed(ACCESS.set(given))


def exists(cluster: ClusterMetadata, resource: str) -> bool:
    """Whether there is such a resource now. Of MBeans everything is: nobody serves them."""
    parts = roles.split(resource)
    if len(parts) == 1 or parts[0] == roles.MBEANS:
        return True
    if parts[0] == roles.ROLES:
        return cluster.access.role(parts[1]) is not None
    if parts[0] == roles.DATA and parts[1] in SYSTEM_KEYSPACES:
        # Which tables are in them is known where they are served.
        return True
    space = cluster.schema.by_name.get(parts[1])
    if space is None or len(parts) == 2:
        return space is not None
    if parts[0] == roles.DATA:
        return resource == roles.all_tables(parts[1]) or parts[2] in space.by_name
    return resource in _functions_of(cluster.schema, parts[1])


def followed(access: Access, before: Schema, after: Schema, change: SchemaChange, creator: str) -> Access:
    """Roles and grants after a schema change: what is gone has none, and who created something has all.

    Of a log of changes of a table that was there before, whoever has it made gets what was granted to them on
    the table: the log tells what is in the table, and ALTER does not let anybody read that.
    """
    left = access.without_resources(_gone(before, after)) if access.grants.count else access
    if not creator or left.role(creator) is None:
        return left
    made = _permission_created(change, before, after)
    for resource in made:
        base = resource.removesuffix(SUFFIX)
        is_late_log = base != resource and base not in made
        given = left.granted(creator, base) if is_late_log else roles.applicable_to(resource)
        if given and (left.grants.count < GRANTS_MAX or left.granted(creator, resource)):
            left = left.with_grant(creator, resource, given)
    assert left.grants.count <= GRANTS_MAX, "grants are bounded, whoever creates what"
    return left


def _permission_created(change: SchemaChange, before: Schema, after: Schema) -> list[str]:
    if isinstance(change, CreateKeyspace):
        return [roles.keyspace(change.keyspace), roles.functions(change.keyspace)]
    known = _functions_of(before, change.keyspace)
    made = [name for name in _functions_of(after, change.keyspace) if name not in known]
    return [*_tables_only_in(after, before), *made]


def _gone(before: Schema, after: Schema) -> list[str]:
    """Keyspaces, tables and functions that are there no longer; costs what changed."""
    gone: list[str] = []
    for space, later in before.keyspaces_changed_in(after):
        if space is not None and later is None:
            gone += (roles.keyspace(space.name), roles.functions(space.name))
        elif space is not None:
            kept = _functions_of(after, space.name)
            gone += [name for name in _functions_of(before, space.name) if name not in kept]
    return gone + _tables_only_in(before, after)


def _tables_only_in(here: Schema, there: Schema) -> list[str]:
    """Tables and views of one schema that the other does not have; costs what differs."""
    tables = (here.tables_by_id[table_id] for table_id in here.table_ids_gone_in(there))
    # A table that is emptied has another id under the same name.
    alone = (table for table in tables if there.table(table.keyspace, table.name) is None)
    return [roles.table(table.keyspace, table.name) for table in alone]


def _functions_of(schema: Schema, keyspace: str) -> tuple[str, ...]:
    """The resources of a keyspace's functions and aggregates, in their order."""
    space = schema.by_name.get(keyspace)
    if space is None:
        return ()
    signatures = [one.signature for one in space.functions] + [one.signature for one in space.aggregates]
    return tuple(roles.function(keyspace, name, arguments) for name, arguments in signatures)


PERMISSION_KINDS: dict[int, type] = {EntryKind.PERMISSIONS: ChangePermissions}
