"""`system_auth`: roles, memberships and permissions as tables, for tools that read those of Cassandra.

Invariant: the tables are views of the metadata; who may read them is judged as for any other table, and the
hashes of passwords are for superusers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.metadata.access.roles import Access
from lockstep.server.views.virtual import VirtualTable, define
from lockstep.server.views.virtual_rows import VirtualRow


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
