"""LIST ROLES, LIST USERS and LIST PERMISSIONS.

Invariant: a role sees itself and what it is a member of; more only with DESCRIBE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lockstep.cql import tree_roles as tree
from lockstep.cql.wire import responses
from lockstep.cql.wire.responses import ColumnSpec
from lockstep.metadata import resources
from lockstep.metadata.roles import Access, Role
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest, Unauthorized

_KEYSPACE: Final = "system_auth"
_EVERYWHERE: Final = "ALL"


def _columns(table: str, text: str) -> tuple[ColumnSpec, ...]:
    pairs = (column.split(" ") for column in text.split("; "))
    return tuple(ColumnSpec(_KEYSPACE, table, name, parse_type(kind)) for name, kind in pairs)


_ROLES: Final = _columns(
    "roles", "role text; super boolean; login boolean; options map<text,text>; datacenters text"
)
_USERS: Final = _columns("users", "name text; super boolean; datacenters text")
_PERMISSIONS: Final = _columns("permissions", "role text; username text; resource text; permission text")


class RoleLists:
    """Answers from a value; holds nothing."""

    def roles(self, version: int, access: Access, user: str, statement: tree.ListRoles) -> bytes:
        """Body of the rows."""
        listed = [role for role in map(access.role, self._shown(access, user, statement)) if role is not None]
        if not statement.users:
            rows: list[Sequence[Any]] = [
                (role.name, role.superuser, role.login, {}, _places(role)) for role in listed
            ]
            return _rows(version, _ROLES, rows)
        users = [(role.name, access.is_superuser(role.name), _places(role)) for role in listed if role.login]
        return _rows(version, _USERS, users)

    def _shown(self, access: Access, user: str, statement: tree.ListRoles) -> Sequence[str]:
        """Names, sorted. Unauthorized when the user may not see them."""
        of = statement.of
        if of is not None and access.role(of) is None:
            raise InvalidRequest(f"{of} doesn't exist")
        describes = "DESCRIBE" in access.permissions(user, resources.ROLES)
        if of is None:
            return [role.name for role in access.listed_roles()] if describes else access.closure(user)
        if not describes and of not in access.closure(user):
            raise Unauthorized(f"You are not authorized to view roles granted to {of} ")
        if statement.recursive:
            return access.closure(of)
        role = access.role(of)
        assert role is not None, "looked at above"
        return sorted((of, *role.member_of))

    def permissions(
        self,
        version: int,
        access: Access,
        user: str,
        statement: tree.ListPermissions,
        resource: str | None,
        wanted: Sequence[str],
    ) -> bytes:
        """Body of the rows: the wanted permissions on a resource (None: on all) of one role or of all."""
        of = statement.of
        if of is not None and access.role(of) is None:
            raise InvalidRequest(f"{of} doesn't exist")
        if (of is None or of not in access.closure(user)) and "DESCRIBE" not in access.permissions(
            user, resources.ROLES
        ):
            raise Unauthorized(f"You are not authorized to view {of or 'everyone'}'s permissions")
        holders: Sequence[str] | None = None
        if of is not None:
            holders = access.closure(of)
        about: Sequence[str] | None = None
        if resource is not None:
            about = resources.chain(resource) if statement.recursive else (resource,)
        rows = [
            (grant.role, grant.role, resources.text(grant.resource), permission)
            for grant in access.listed_grants()
            if (holders is None or grant.role in holders) and (about is None or grant.resource in about)
            for permission in grant.permissions
            if permission in wanted
        ]
        return _rows(version, _PERMISSIONS, rows)


def _places(role: Role) -> str:
    return ", ".join(role.data_centers) or _EVERYWHERE


def _rows(version: int, columns: tuple[ColumnSpec, ...], rows: Iterable[Sequence[Any]]) -> bytes:
    encoded = [
        [column.type.serialize(value) for column, value in zip(columns, row, strict=True)] for row in rows
    ]
    return responses.rows(responses.encode_rows_metadata(version, columns), encoded)
