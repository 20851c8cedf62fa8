"""User aggregates: rows gathered group by group, and what the state function makes of them.

Invariant: gathering calls nothing; the whole fold of a group is one call, made when the group ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.cql.bind.evaluation import Evaluate, Moment, Record
from lockstep.cql.compile.context import Context
from lockstep.cql.ddl.function_ddl import initial_bytes
from lockstep.cql.functions.aggregates import Aggregate
from lockstep.cql.functions.user_functions import calls_of, code_of, scalar
from lockstep.schema import objects
from lockstep.schema.function_changes import parts_of
from lockstep.schema.model import Keyspace
from lockstep.schema.types import CqlType, parse_type
from lockstep.schema.user_types import type_in
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import USER_CALL_ROWS_MAX

_ROW = codec.decoder(tuple[bytes | None, ...])
_ROWS = codec.decoder(list[bytes])


class UserAggregate(msgspec.Struct, frozen=True):
    """An aggregate of a SELECT: what it takes, how its rows are gathered, and `finish`, from what was
    gathered to its value."""

    name: str
    arguments: tuple[CqlType, ...]
    returns: CqlType
    gather: Aggregate
    finish: Callable[[bytes, Context], bytes | None]


def _gathered(state: list[bytes] | None, row: bytes) -> list[bytes]:
    rows = [] if state is None else state
    if len(rows) >= USER_CALL_ROWS_MAX:
        raise InvalidRequest(
            f"A user-defined aggregate can take at most {USER_CALL_ROWS_MAX} rows of a group"
        )
    rows.append(row)
    return rows


_GATHER = Aggregate(parse_type("blob"), None, _gathered, lambda state: codec.encode(state or []))


def aggregates_in(space: Keyspace | None, name: str) -> tuple[UserAggregate, ...]:
    """The user aggregates of a name."""
    found = space.aggregates if space is not None else ()
    return tuple(_aggregate(space, one) for one in found if one.name == name and space is not None)


def _aggregate(space: Keyspace, aggregate: objects.Aggregate) -> UserAggregate:
    folds, final = parts_of(space, aggregate)
    code = code_of(space, folds)
    state_type = type_in(space, aggregate.state_type)
    initial = initial_bytes(aggregate.initial, state_type, space)
    last = scalar(space, final) if final is not None else None

    def finish(gathered: bytes, context: Context) -> bytes | None:
        rows = tuple(_ROW.decode(row) for row in _ROWS.decode(gathered))
        state = calls_of(context).fold(code, initial, rows)
        return state if last is None else last.run((state,), context)

    return UserAggregate(
        aggregate.name,
        tuple(type_in(space, text) for text in aggregate.argument_types),
        last.returns if last is not None else state_type,
        _GATHER,
        finish,
    )


def row_of(parts: Sequence[Evaluate]) -> Evaluate:
    """What one row gives an aggregate, as one value."""

    def evaluate(record: Record, moment: Moment) -> bytes:
        return codec.encode(tuple([part(record, moment) for part in parts]))

    return evaluate


def finished(aggregate: UserAggregate, gathered: Evaluate) -> Evaluate:
    """The aggregate's value from what was gathered of a group."""

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        data = gathered(record, moment)
        assert data is not None, "gathering gives a value"
        return aggregate.finish(data, moment.context)

    return evaluate
