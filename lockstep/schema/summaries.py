"""What a change of the schema comes to: the words that drivers are told, and how a change is refused.

Invariant: a change that finds nothing to do has no summary.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.schema.model import Keyspace, Schema
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest, Rejected

CREATED, UPDATED, DROPPED = "CREATED", "UPDATED", "DROPPED"
#: Clients are not told of this one.
EMPTIED: Final = "EMPTIED"


class ChangeSummary(msgspec.Struct, frozen=True, array_like=True):
    """What drivers are told. `change`: CREATED, UPDATED, DROPPED (or EMPTIED, which they are not told);
    `target`: KEYSPACE, TABLE, TYPE, FUNCTION or AGGREGATE. `arguments`: types of a function's."""

    change: str
    target: str
    keyspace: str
    name: str = ""
    arguments: tuple[str, ...] = ()


Applied = tuple[Schema, ChangeSummary | None]


def declared_type(space: Keyspace, text: str) -> CqlType:
    """The type that a declaration names in a keyspace. Raises Rejected."""
    try:
        return type_in(space, text)
    except InvalidRequest as error:
        raise Rejected(error.message) from error


def no_keyspace(name: str) -> Rejected:
    return Rejected(f"Keyspace '{name}' doesn't exist", keyspace=name)
