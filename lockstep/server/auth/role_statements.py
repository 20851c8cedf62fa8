"""Statements about roles and permissions: who may give which, and their entries.

Invariant: a statement is judged by what this node has applied, and once more, in the log's order, when its
entry is; passwords are hashed before they are in an entry. An answer means that live nodes have applied it.

LIST ROLES, LIST USERS and LIST PERMISSIONS.

Invariant: a role sees itself and what it is a member of; more only with DESCRIBE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.parse import tree
from lockstep.cql.wire import responses
from lockstep.cql.wire.responses import ColumnSpec
from lockstep.metadata.access import roles
from lockstep.metadata.access.role_changes import (
    AlterRole,
    ChangeMembership,
    ChangePermissions,
    ChangeRole,
    CreateRole,
    DropRole,
    exists,
)
from lockstep.metadata.access.roles import Access, Role
from lockstep.node.services import NodeServices
from lockstep.schema.model import Schema
from lockstep.schema.types import parse_type
from lockstep.server.auth.authentication import Passwords, check_hash
from lockstep.server.auth.permits import NOT_LOGGED_IN, Permits, Session, function_resource
from lockstep.server.statements.schema_statements import SchemaStatements
from lockstep.values.errors import InvalidRequest, SyntaxError_, Unauthorized

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
        describes = "DESCRIBE" in access.permissions(user, roles.ROLES)
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
            user, roles.ROLES
        ):
            raise Unauthorized(f"You are not authorized to view {of or 'everyone'}'s permissions")
        holders: Sequence[str] | None = None
        if of is not None:
            holders = access.closure(of)
        about: Sequence[str] | None = None
        if resource is not None:
            about = roles.chain(resource) if statement.recursive else (resource,)
        rows = [
            (grant.role, grant.role, roles.text(grant.resource), permission)
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


Answered = tuple[bytes, tuple[str, ...]]
_DONE: Final[Answered] = (responses.VOID, ())


class RoleStatements:
    """Of one node; `permits` is None where nobody logs in. `virtual`: the system tables."""

    def __init__(
        self,
        node: NodeServices,
        permits: Permits | None,
        passwords: Passwords,
        entries: SchemaStatements,
        virtual: Schema,
    ) -> None:
        self._node = node
        self._permits = permits
        self._passwords = passwords
        self._entries = entries
        self._virtual = virtual
        self._lists = RoleLists()

    async def run(self, session: Session, prepared: Prepared) -> Answered:
        """Body of the result, and warnings. Raises Unauthorized, or what `SchemaStatements` raises."""
        if self._permits is None or session.user is None:
            raise Unauthorized(NOT_LOGGED_IN)
        access = self._permits.admit(session)
        statement: Any = prepared.statement
        if isinstance(statement, tree.ListRoles):
            return self._lists.roles(session.version, access, session.user, statement), ()
        if isinstance(statement, tree.CreateRole):
            return await self._create(access, session, statement)
        if isinstance(statement, tree.AlterRole):
            return await self._alter(access, session, statement)
        if isinstance(statement, tree.DropRole):
            return await self._drop(access, session, statement)
        if isinstance(statement, tree.GrantRole):
            return await self._member(access, session, statement.role, statement.to, member=True)
        if isinstance(statement, tree.RevokeRole):
            return await self._member(access, session, statement.role, statement.from_, member=False)
        return await self._about_permissions(access, session, prepared, statement)

    # -- roles ------------------------------------------------------------------------------------

    async def _create(self, access: Access, session: Session, statement: tree.CreateRole) -> Answered:
        options, user = statement.options, str(session.user)
        self._may(access, session, "CREATE", roles.ROLES)
        if options.superuser and not access.is_superuser(user):
            raise Unauthorized("Only superusers can create a role with superuser status")
        _check_options(options)
        if access.role(statement.name) is not None and statement.if_not_exists:
            return _DONE
        change = CreateRole(
            statement.name,
            bool(options.superuser),
            statement.is_user if options.login is None else options.login,
            await self._hash_of(options) or "",
            options.datacenters or (),
            statement.if_not_exists,
            creator=user,
        )
        await self._entries.submitted(ChangeRole(change))
        return _DONE

    async def _alter(self, access: Access, session: Session, statement: tree.AlterRole) -> Answered:
        options, user = statement.options, str(session.user)
        superuser = access.is_superuser(user)
        if options.superuser is not None and statement.name in access.closure(user):
            raise Unauthorized(
                "You aren't allowed to alter your own superuser status or that of a role granted to you"
            )
        if options.superuser is not None and not superuser:
            raise Unauthorized("Only superusers are allowed to alter superuser status")
        if statement.name == user and not superuser:
            for name, value in (("LOGIN", options.login), ("DATACENTERS", options.datacenters)):
                if value is not None:
                    raise Unauthorized(f"You aren't allowed to alter {name}")
        else:
            self._may(access, session, "ALTER", roles.role(statement.name))
            if access.is_superuser(statement.name) and not superuser:
                raise Unauthorized("Only superusers are allowed to alter a role with superuser status")
        _check_options(options)
        change = AlterRole(
            statement.name,
            options.superuser,
            options.login,
            await self._hash_of(options),
            options.datacenters,
            statement.if_exists,
        )
        await self._entries.submitted(ChangeRole(change))
        return _DONE

    async def _drop(self, access: Access, session: Session, statement: tree.DropRole) -> Answered:
        self._may(access, session, "DROP", roles.role(statement.name))
        if access.is_superuser(statement.name) and not access.is_superuser(str(session.user)):
            raise Unauthorized("Only superusers can drop a role with superuser status")
        if statement.name == session.user:
            raise InvalidRequest("Cannot DROP primary role for current login")
        await self._entries.submitted(ChangeRole(DropRole(statement.name, statement.if_exists)))
        return _DONE

    async def _member(
        self, access: Access, session: Session, role: str, grantee: str, *, member: bool
    ) -> Answered:
        self._may(access, session, "AUTHORIZE", roles.role(role))
        await self._entries.submitted(ChangeMembership(role, grantee, member))
        return _DONE

    async def _hash_of(self, options: tree.RoleOptions) -> str | None:
        if options.password is not None:
            return await self._passwords.hashed(options.password)
        return options.hashed_password

    # -- permissions ------------------------------------------------------------------------------

    async def _about_permissions(
        self,
        access: Access,
        session: Session,
        prepared: Prepared,
        statement: tree.GrantPermission | tree.RevokePermission | tree.ListPermissions,
    ) -> Answered:
        assert self._permits is not None, "somebody is logged in"
        if not self._permits.checks:
            verb = type(statement).__name__.removesuffix("Permission").upper()
            what = "LIST PERMISSIONS" if isinstance(statement, tree.ListPermissions) else verb
            raise InvalidRequest(f"{what} operation is not supported by AllowAllAuthorizer")
        resource = None
        if statement.resource is not None:
            resource = self._resource(statement.resource, prepared.session_keyspace)
        if isinstance(statement, tree.ListPermissions):
            wanted = _expanded(statement.permissions, None)
            user = str(session.user)
            return self._lists.permissions(session.version, access, user, statement, resource, wanted), ()
        assert resource is not None, "the grammar asks for a resource"
        granted = isinstance(statement, tree.GrantPermission)
        role = statement.to if isinstance(statement, tree.GrantPermission) else statement.from_
        return await self._change(access, session, role, resource, statement.permissions, granted=granted)

    async def _change(
        self,
        access: Access,
        session: Session,
        role: str,
        resource: str,
        permissions: Sequence[str],
        *,
        granted: bool,
    ) -> Answered:
        if access.role(role) is None:
            raise InvalidRequest(f"Role {role} doesn't exist")
        wanted = _expanded(permissions, resource)
        if not wanted:
            kind = _CLASSES[roles.split(resource)[0]]
            raise SyntaxError_(f"Resource type {kind} does not support any of the requested permissions")
        for permission in ("AUTHORIZE", *wanted):
            self._require(session, permission, resource)
        before = access.granted(role, resource)
        await self._entries.submitted(ChangePermissions(role, resource, wanted, granted))
        idle = [name for name in wanted if (name in before) is granted]
        if "ALL" in permissions or not idle:
            return _DONE
        said = "was already granted" if granted else "was not granted"
        return responses.VOID, (f"Role '{role}' {said} {', '.join(idle)} on {roles.text(resource)}",)

    def _resource(self, named: tree.Resource, session_keyspace: str | None) -> str:
        """The resource that a statement names. InvalidRequest when there is none of this name."""
        resource = self._name_of(named, session_keyspace)
        parts = roles.split(resource)
        if parts[0] == roles.FUNCTIONS and parts[1:2] == ("system",):
            raise InvalidRequest("Altering permissions on builtin functions is not supported")
        known = exists(self._node.log.cluster, resource)
        space = self._virtual.by_name.get(parts[1]) if parts[0] == roles.DATA and len(parts) > 1 else None
        if space is not None:
            known = len(parts) == 2 or parts[2] in space.by_name or resource == roles.all_tables(parts[1])
        if not known:
            raise InvalidRequest(f"Resource {roles.text(resource)} doesn't exist")
        return resource

    def _name_of(self, named: tree.Resource, session_keyspace: str | None) -> str:
        whole = _WHOLE.get(named.kind)
        if whole is not None:
            return whole
        name = named.name or ""
        if named.kind == "role":
            return roles.role(name)
        if named.kind == "mbean":
            return f"{roles.MBEANS}/{name}"
        keyspace = named.keyspace or session_keyspace
        if keyspace is None:
            raise InvalidRequest(
                "No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename"
            )
        if named.kind == "keyspace":
            return roles.keyspace(keyspace)
        if named.kind == "tables":
            return roles.all_tables(keyspace)
        if named.kind == "functions_in":
            return roles.functions(keyspace)
        if named.kind == "function":
            space = self._node.log.cluster.schema.by_name.get(keyspace)
            return function_resource(space, keyspace, name, named.arguments)
        return roles.table(keyspace, name)

    def _may(self, access: Access, session: Session, permission: str, resource: str) -> None:
        """Unauthorized unless the user has this permission on a role, or on all."""
        assert self._permits is not None, "somebody is logged in"
        if self._permits.checks and permission not in access.permissions(str(session.user), resource):
            raise Unauthorized(
                f"User {session.user} does not have sufficient privileges to perform the requested operation"
            )

    def _require(self, session: Session, permission: str, resource: str) -> None:
        assert self._permits is not None, "somebody is logged in"
        self._permits.require(session, ((permission, resource),))


#: What Cassandra calls the sorts of resources.
_CLASSES: Final = {
    roles.DATA: "DataResource",
    roles.ROLES: "RoleResource",
    roles.FUNCTIONS: "FunctionResource",
    roles.MBEANS: "JMXResource",
}
_WHOLE: Final = {
    "keyspaces": roles.DATA,
    "roles": roles.ROLES,
    "functions": roles.FUNCTIONS,
    "mbeans": roles.MBEANS,
}


def _expanded(permissions: Sequence[str], resource: str | None) -> tuple[str, ...]:
    """ALL as what it stands for, and without what the resource cannot have."""
    fitting = roles.PERMISSIONS if resource is None else roles.applicable_to(resource)
    return fitting if "ALL" in permissions else tuple(name for name in fitting if name in permissions)


def _check_options(options: tree.RoleOptions) -> None:
    if options.custom is not None:
        raise InvalidRequest("CassandraRoleManager doesn't support OPTIONS")
    if options.password is not None and options.hashed_password is not None:
        raise InvalidRequest("Properties 'password' and 'hashed password' are mutually exclusive")
    if options.hashed_password is not None:
        check_hash(options.hashed_password)
