"""The kinds of operations that this version knows.

Invariant: tags and precedences are unique; an operation, a request and the entry that asks for it are stored
with a body of the union, so no tag is ever reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.metadata.operations import Body
from lockstep.topology.kind import Kind, body_fields
from lockstep.topology.kinds import bootstrap, decommission, move, rebuild, remove, replace, replication
from lockstep.values.errors import Rejected

KINDS: Final[tuple[Kind, ...]] = (
    bootstrap.KIND,
    decommission.KIND,
    move.KIND,
    replace.KIND,
    remove.KIND,
    rebuild.KIND,
    replication.KIND,
)
BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}
#: What a registry of entries makes of a body: see `metadata.registry.Registry`.
UNIONS: Final[Mapping[Any, Any]] = {
    Body: bootstrap.Bootstrap
    | decommission.Decommission
    | move.Move
    | replace.Replace
    | remove.Remove
    | rebuild.Rebuild
    | replication.ReplicationChange
    | replication.Walk
}

#: What is wrong with a field that a kind about a node does not have.
_STRAY: Final[Mapping[str, str]] = {
    "keyspace": "a {kind} is told no keyspace",
    "target": "a {kind} is told no keyspace",
    "tokens": "a {kind} is told no tokens",
    "replaced": "a {kind} replaces no node",
    "source_dc": "a {kind} is told no data centre",
}


def asked(name: str, **fields: Any) -> Body:
    """The body of a kind of this name from what somebody filled in; raises Rejected for a field that it has
    no use for. That a node counts as dead only matters to some."""
    kind = BY_NAME[name]
    known = body_fields(kind)
    for field, value in fields.items():
        if not value or field in known or field == "presumed_dead":
            continue
        stray = "a {kind} is about a keyspace, not about a node" if kind.is_global else _STRAY[field]
        raise Rejected(stray.format(kind=name))
    return kind.body(**{field: value for field, value in fields.items() if field in known})
