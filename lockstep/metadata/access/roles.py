"""Roles, what they are members of and what they may do, the part of the metadata that says so, and what
permissions are about: resources by name, their hierarchy, and which permissions each takes.

A resource is its name, as Cassandra writes it in its tables: `data`, `data/ks`, `data/ks/*` (all tables of
ks), `data/ks/t`, `roles`, `roles/r`, `functions`, `functions/ks`, `functions/ks/f[int^text]`, `mbean`,
`mbean/pattern`.

Invariant: immutable; a change costs what it changes, also of the digest, and whatever is listed is sorted by
name. Every role that a role is a member of, or that holds a grant, is there, and no role is, through any
number of others, a member of itself. A role has what it was granted and what those roles have. `chain` begins
with the resource and ends with its root; a permission on any of them is one on the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from lockstep.metadata.log.comparison import ABSENT, Difference, compare_things, sides, text_of
from lockstep.metadata.part import Item, Part, Parts, collected
from lockstep.values import codec
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, changed, key_of_text, tree_of

DATA: Final = "data"
ROLES: Final = "roles"
FUNCTIONS: Final = "functions"
MBEANS: Final = "mbean"
#: In the order in which they are listed.
PERMISSIONS: Final = (
    "CREATE",
    "ALTER",
    "DROP",
    "SELECT",
    "MODIFY",
    "AUTHORIZE",
    "DESCRIBE",
    "EXECUTE",
    "UNMASK",
    "SELECT_MASKED",
)
_PLACE: Final = {name: at for at, name in enumerate(PERMISSIONS)}
_ALL_TABLES: Final = "*"
_TABLE: Final = ("ALTER", "DROP", "SELECT", "MODIFY", "AUTHORIZE", "UNMASK", "SELECT_MASKED")
#: (root, depth of the name below it, or -1 for any deeper) -> permissions.
_APPLICABLE: Final = {
    (DATA, 0): ("CREATE", *_TABLE),
    (DATA, 1): ("CREATE", *_TABLE),
    (DATA, -1): _TABLE,
    (ROLES, 0): ("CREATE", "ALTER", "DROP", "AUTHORIZE", "DESCRIBE"),
    (ROLES, -1): ("ALTER", "DROP", "AUTHORIZE"),
    (FUNCTIONS, 0): ("CREATE", "ALTER", "DROP", "AUTHORIZE", "EXECUTE"),
    (FUNCTIONS, 1): ("CREATE", "ALTER", "DROP", "AUTHORIZE", "EXECUTE"),
    (FUNCTIONS, -1): ("ALTER", "DROP", "AUTHORIZE", "EXECUTE"),
    (MBEANS, -1): ("SELECT", "MODIFY", "AUTHORIZE", "DESCRIBE", "EXECUTE"),
}


def keyspace(name: str) -> str:
    return f"{DATA}/{name}"


def all_tables(name: str) -> str:
    """All tables of a keyspace, also later ones."""
    return f"{DATA}/{name}/{_ALL_TABLES}"


def table(keyspace_name: str, name: str) -> str:
    return f"{DATA}/{keyspace_name}/{name}"


def role(name: str) -> str:
    return f"{ROLES}/{name}"


def functions(keyspace_name: str) -> str:
    """All functions of a keyspace."""
    return f"{FUNCTIONS}/{keyspace_name}"


def function(keyspace_name: str, name: str, arguments: tuple[str, ...]) -> str:
    """One function; `arguments` are the canonical texts of its argument types."""
    return f"{FUNCTIONS}/{keyspace_name}/{name}[{'^'.join(arguments)}]"


def split(resource: str) -> tuple[str, ...]:
    """The root, and the names below it."""
    root, _, rest = resource.partition("/")
    if not rest:
        return (root,)
    if root in (ROLES, MBEANS):
        return root, rest
    first, _, last = rest.partition("/")
    return (root, first, last) if last else (root, first)


def chain(resource: str) -> tuple[str, ...]:
    """The resource and all that hold it, the root last."""
    parts = split(resource)
    found = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if parts[0] == DATA and len(parts) == 3 and parts[2] != _ALL_TABLES:
        found.insert(1, all_tables(parts[1]))
    return tuple(found)


def applicable_to(resource: str) -> tuple[str, ...]:
    """The permissions that there can be on a resource, in the order of PERMISSIONS."""
    parts = split(resource)
    depth = 1 if parts[-1] == _ALL_TABLES and parts[0] == DATA else len(parts) - 1
    return _APPLICABLE.get((parts[0], depth)) or _APPLICABLE[parts[0], -1]


def ordered(permissions: frozenset[str] | set[str]) -> tuple[str, ...]:
    return tuple(sorted(permissions, key=_PLACE.__getitem__))


def text(resource: str) -> str:
    """The resource as messages and LIST PERMISSIONS name it."""
    parts = split(resource)
    if parts[0] == DATA:
        return _data_text(parts)
    if parts[0] == ROLES:
        return f"<role {parts[1]}>" if len(parts) > 1 else "<all roles>"
    if parts[0] == FUNCTIONS:
        return _function_text(parts)
    return f"<mbean {parts[1]}>" if len(parts) > 1 else "<all mbeans>"


def _data_text(parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return "<all keyspaces>"
    if len(parts) == 2:
        return f"<keyspace {parts[1]}>"
    return f"<all tables in {parts[1]}>" if parts[2] == _ALL_TABLES else f"<table {parts[1]}.{parts[2]}>"


def _function_text(parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return "<all functions>"
    if len(parts) == 2:
        return f"<all functions in {parts[1]}>"
    name, _, arguments = parts[2].partition("[")
    return f"<function {parts[1]}.{name}({', '.join(filter(None, arguments.rstrip(']').split('^')))})>"


class Role(msgspec.Struct, frozen=True, array_like=True):
    """`salted_hash` is a bcrypt hash, or empty: no password. `data_centers`: where it may log in, sorted; ()
    for everywhere. `member_of` is sorted."""

    name: str
    superuser: bool = False
    login: bool = False
    salted_hash: str = ""
    data_centers: tuple[str, ...] = ()
    member_of: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """`permissions` are in the order of resources.PERMISSIONS, and not empty."""

    role: str
    resource: str
    permissions: tuple[str, ...]


class Access(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `listed_roles` and `listed_grants` are the stored form. Roles lie by name, grants by
    role and resource."""

    roles: HashTree[Role] = EMPTY_TREE
    grants: HashTree[Grant] = EMPTY_TREE

    @cached_property
    def digest(self) -> bytes:
        return blake(self.roles.digest + self.grants.digest)

    @property
    def is_empty(self) -> bool:
        return not self.roles.count and not self.grants.count

    # Reading

    def role(self, name: str) -> Role | None:
        return self.roles.get(key_of_text(name))

    def listed_roles(self) -> list[Role]:
        return sorted((role for _, role in self.roles.items()), key=lambda role: role.name)

    def listed_grants(self) -> list[Grant]:
        """By role, then resource."""
        found = (grant for _, grant in self.grants.items())
        return sorted(found, key=lambda grant: (grant.role, grant.resource))

    def closure(self, name: str) -> tuple[str, ...]:
        """The role and all it is a member of, directly or not, sorted; () when there is no such role."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            role = self.role(waiting.pop())
            if role is not None and role.name not in found:
                found[role.name] = None
                waiting += role.member_of
        return tuple(sorted(found))

    def is_superuser(self, name: str) -> bool:
        """Whether the role, or one that it is a member of, has superuser status."""
        return any(role.superuser for role in map(self.role, self.closure(name)) if role is not None)

    def granted(self, role: str, resource: str) -> tuple[str, ...]:
        """What was granted to this very role on this very resource."""
        found = self.grants.get(_grant_key(role, resource))
        return found.permissions if found is not None else ()

    def permissions(self, name: str, resource: str) -> frozenset[str]:
        """What a role may do with a resource, by all its roles and all that hold the resource."""
        applicable = applicable_to(resource)
        if self.is_superuser(name):
            return frozenset(applicable)
        holders = chain(resource)
        return frozenset(
            permission
            for role in self.closure(name)
            for holder in holders
            for permission in self.granted(role, holder)
            if permission in applicable
        )

    # Changing

    def with_role(self, role: Role) -> Access:
        """Insert or replace."""
        digest = blake(codec.encode(role))
        return Access(self.roles.with_value(key_of_text(role.name), role, digest), self.grants)

    def without_role(self, name: str) -> Access:
        """Without the role, its memberships on both sides, its grants, and grants on it."""
        left = Access(self.roles.without(key_of_text(name)), self.grants)
        for member in [role for _, role in self.roles.items() if name in role.member_of]:
            rest = tuple(other for other in member.member_of if other != name)
            left = left.with_role(msgspec.structs.replace(member, member_of=rest))
        assert left.roles.count == self.roles.count - 1, "no other role goes"
        gone = role(name)
        return left.without_grants(grant.role == name or grant.resource == gone for grant in left._grants())

    def with_grant(self, role: str, resource: str, permissions: Iterable[str]) -> Access:
        """These permissions instead of those that were granted; none of them removes the grant."""
        key = _grant_key(role, resource)
        granted = ordered(frozenset(permissions))
        if granted:
            grant = Grant(role, resource, granted)
            return Access(self.roles, self.grants.with_value(key, grant, blake(codec.encode(grant))))
        return Access(self.roles, self.grants.without(key)) if self.grants.get(key) is not None else self

    def without_grants(self, leaving: Iterable[bool]) -> Access:
        """Without those grants, of all in the order of the tree, for which `leaving` is true."""
        gone = [key for (key, _), leaves in zip(self.grants.items(), leaving, strict=True) if leaves]
        return Access(self.roles, self.grants.without_all(gone)) if gone else self

    def without_resources(self, names: Iterable[str]) -> Access:
        """Without all grants on these resources and on what they hold; costs what is granted at all."""
        gone = dict.fromkeys(names)
        return self.without_grants(
            any(held in gone for held in chain(grant.resource)) for grant in self._grants()
        )

    def _grants(self) -> Iterator[Grant]:
        return (grant for _, grant in self.grants.items())

    def validate(self) -> None:
        """Assert what must hold whichever entries made it; costs all that there is."""
        for _, role in self.roles.items():
            assert role.member_of == tuple(sorted(set(role.member_of))), "memberships are sorted and unique"
            for other in role.member_of:
                assert self.role(other) is not None, f"{role.name} is a member of {other}, which is not there"
                assert role.name not in self.closure(other), f"{role.name} is a member of itself"
        for grant in self._grants():
            assert self.role(grant.role) is not None, f"{grant.role} has a grant and is not there"
            assert grant.permissions == ordered(frozenset(grant.permissions)) != ()


def _grant_key(role: str, resource: str) -> int:
    return key_of_text(f"{role}\x00{resource}")


def access_of(roles: Iterable[Role], grants: Iterable[Grant]) -> Access:
    """From roles and grants with unique names; what they say of each other is not looked at."""

    def digested(name: int, value: Any) -> tuple[int, Any, bytes]:
        return name, value, blake(codec.encode(value))

    return Access(
        tree_of(digested(key_of_text(role.name), role) for role in roles),
        tree_of(digested(_grant_key(grant.role, grant.resource), grant) for grant in grants),
    )


NO_ACCESS = Access()


def _compare(path: str, before: Access, after: Access) -> Iterator[Difference]:
    roles = [(old, new) for _, old, new in changed(before.roles, after.roles)]
    roles.sort(key=lambda pair: next(role.name for role in pair if role is not None))
    yield from compare_things(f"{path}.roles", *sides(roles))
    grants = [(old, new) for _, old, new in changed(before.grants, after.grants) if old != new]
    named = [(next((g.role, g.resource) for g in pair if g is not None), pair) for pair in grants]
    for (role, resource), pair in sorted(named):
        texts = (ABSENT if grant is None else text_of(grant.permissions) for grant in pair)
        yield Difference(f"{path}.grants[{role} on {resource}]", *texts)


def _of_items(items: Sequence[Item]) -> Access:
    return access_of(
        (value for kind, value in items if kind == 0), (value for kind, value in items if kind == 1)
    )


def _validate(now: Parts, before: Parts | None) -> None:
    """Only of a value that is looked at whole: it costs all roles and grants."""
    if before is None:
        now[ACCESS].validate()


ACCESS: Final[Part[Access]] = Part(
    name="access",
    number=14,
    empty=NO_ACCESS,
    items=lambda value: (
        *((0, role) for role in value.listed_roles()),
        *((1, grant) for grant in value.listed_grants()),
    ),
    kinds=(Role, Grant),
    builder=collected(_of_items),
    digest=lambda value: value.digest,
    validate=_validate,
    compare=_compare,
)
