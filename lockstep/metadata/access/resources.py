"""What permissions are about: resources by name, their hierarchy, and which permissions each can have.

A resource is its name, as Cassandra writes it in its tables: `data`, `data/ks`, `data/ks/*` (all tables of
ks), `data/ks/t`, `roles`, `roles/r`, `functions`, `functions/ks`, `functions/ks/f[int^text]`, `mbean`,
`mbean/pattern`. Invariant: `chain` begins with the resource and ends with its root; a permission on any of
them is one on the resource.
"""

from __future__ import annotations

from typing import Final

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


def applicable(resource: str) -> tuple[str, ...]:
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
