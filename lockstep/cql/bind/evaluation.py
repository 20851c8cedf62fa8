"""Outputs worked out of records: the closures that a compiled SELECT list consists of.

Invariant: evaluating changes nothing; null in gives null out unless a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.terms import Values
from lockstep.cql.functions.signatures import Function, Run
from lockstep.schema.clustering import derived_key
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    UserDefinedType,
    parse_type,
)

Record = list[Any]


class Moment(msgspec.Struct, frozen=True):
    """What outputs may use beside the record; `folded`: the aggregates of the record's group."""

    values: Values
    context: Context
    folded: tuple[bytes | None, ...] = ()


Evaluate = Callable[[Record, Moment], bytes | None]


def take(slot: int) -> Evaluate:
    return lambda record, moment: record[slot]


def folded(index: int) -> Evaluate:
    return lambda record, moment: moment.folded[index]


def always(record: Record, moment: Moment) -> bytes:
    return b""


def applied(function: Function, parts: Sequence[Evaluate]) -> Evaluate:
    return applied_run(function.run, parts, takes_null=function.takes_null)


def applied_run(run: Run, parts: Sequence[Evaluate], *, takes_null: bool = False) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        arguments = []
        for part in parts:
            argument = part(record, moment)
            if argument is None and not takes_null:
                return None
            arguments.append(argument)
        return run(arguments, moment.context)

    return evaluate


def element_of(value_of: Evaluate, kind: CollectionType, key: Evaluate, behind: int) -> Evaluate:
    """The part `behind` the one that equals `key` in a collection: 1 for a map's value, 0 for itself."""
    step = kind.parts_per_entry

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        value, wanted = value_of(record, moment), key(record, moment)
        if value is None:
            return None
        parts = kind.split(value)
        for at in range(0, len(parts), step):
            if parts[at] == wanted:
                return parts[at + behind]
        return None

    return evaluate


def span_of(
    value_of: Evaluate, kind: CollectionType, of_key: CqlType, low: Evaluate | None, high: Evaluate | None
) -> Evaluate:
    """The entries between two keys, both included; None for an empty rest of what is not frozen."""
    step, sort_key = kind.parts_per_entry, of_key.sort_key

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        value = value_of(record, moment)
        if value is None:
            return None
        ends = [None if end is None else end(record, moment) for end in (low, high)]
        least, most = (None if end is None else sort_key(end) for end in ends)
        parts, kept = kind.split(value), []
        for at in range(0, len(parts), step):
            key = sort_key(parts[at])
            if (least is None or key >= least) and (most is None or key <= most):
                kept += parts[at : at + step]
        return kind.join(kept) if kept or kind.is_frozen else None

    return evaluate


def field_of(value_of: Evaluate, kind: UserDefinedType, position: int) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        value = value_of(record, moment)
        if value is None:
            return None
        parts = kind.split(value)
        return parts[position] if position < len(parts) else None

    return evaluate


def joined(join: Callable[[list[Any]], bytes], parts: Sequence[Evaluate], *, takes_null: bool) -> Evaluate:
    """A collection or tuple of parts; without `takes_null` a null part makes the whole null."""
    return applied_run(lambda found, context: join(list(found)), parts, takes_null=takes_null)


def token_of_key(parts: Sequence[Evaluate], of_key: Callable[[bytes], int]) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        found = [part(record, moment) for part in parts]
        key = [part for part in found if part is not None]
        if len(key) != len(found):
            return None
        return of_key(derived_key(key)).to_bytes(8, "big", signed=True)

    return evaluate


BIGINT = parse_type("bigint")
INT = parse_type("int")
