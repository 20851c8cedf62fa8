"""The entries that make, change and drop roles, and say who is a member of which.

Passwords come hashed: whoever submits an entry salts and hashes, so that all nodes apply the same bytes.
Invariant: a change that finds nothing to do returns the very value it was given; a dropped role leaves
nothing behind that another role of its name could inherit.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from lockstep.metadata.access import resources
from lockstep.metadata.access.roles import ACCESS, Access, Role
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.limits import ROLE_MEMBERSHIPS_MAX, ROLE_NAME_CHARACTERS_MAX, ROLES_MAX


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
        about = resources.role(change.name)
        made = made.with_grant(change.creator, about, resources.applicable(about))
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
    return access if altered == found else access.with_role(altered)


def _dropped(access: Access, change: DropRole) -> Access:
    if access.role(change.name) is None:
        if change.if_exists:
            return access
        raise Rejected(f"{change.name} doesn't exist")
    return access.without_role(change.name)


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
