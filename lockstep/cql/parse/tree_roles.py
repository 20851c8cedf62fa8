"""Statements about roles and permissions as frozen nodes, exactly as written.

Invariant: as in `tree`; names of roles keep their case when they are quoted or given as strings.
"""

from __future__ import annotations

import msgspec

Struct = msgspec.Struct


class RoleOptions(Struct, frozen=True):
    """What was said of a role; None where nothing was. `custom`: the map after OPTIONS. `datacenters` ():
    access to all of them was asked for by ACCESS TO ALL DATACENTERS."""

    password: str | None = None
    hashed_password: str | None = None
    superuser: bool | None = None
    login: bool | None = None
    custom: tuple[tuple[str, str], ...] | None = None
    datacenters: tuple[str, ...] | None = None


class CreateRole(Struct, frozen=True):
    """`is_user`: CREATE USER, which makes a role that can log in."""

    name: str
    options: RoleOptions
    if_not_exists: bool
    is_user: bool = False


class AlterRole(Struct, frozen=True):
    name: str
    options: RoleOptions
    if_exists: bool
    is_user: bool = False


class DropRole(Struct, frozen=True):
    name: str
    if_exists: bool
    is_user: bool = False


class GrantRole(Struct, frozen=True):
    """`role` becomes a role of `to`."""

    role: str
    to: str


class RevokeRole(Struct, frozen=True):
    role: str
    from_: str


class ListRoles(Struct, frozen=True):
    """`of` None: of everybody. `users`: LIST USERS."""

    of: str | None = None
    recursive: bool = True
    users: bool = False


class Resource(Struct, frozen=True):
    """`kind`: keyspaces, keyspace, tables (all of a keyspace), table, roles, role, functions, functions_in,
    function, mbeans, mbean. `arguments`: the type texts of a function."""

    kind: str
    keyspace: str | None = None
    name: str | None = None
    arguments: tuple[str, ...] = ()


class GrantPermission(Struct, frozen=True):
    """`permissions` in upper case; ALL stands for those that fit the resource."""

    permissions: tuple[str, ...]
    resource: Resource
    to: str


class RevokePermission(Struct, frozen=True):
    permissions: tuple[str, ...]
    resource: Resource
    from_: str


class ListPermissions(Struct, frozen=True):
    permissions: tuple[str, ...]
    resource: Resource | None = None
    of: str | None = None
    recursive: bool = True


RoleChange = CreateRole | AlterRole | DropRole | GrantRole | RevokeRole | GrantPermission | RevokePermission
RoleStatement = RoleChange | ListRoles | ListPermissions
