"""What a client says and hears to run one statement, without a connection.

Owns: preparing, binding, paging and decoding for the small sessions of the kit. Invariant: `conversation`
does no I/O: it yields (opcode, body) and is sent the answer's body, so that a socket and a simulation hold
it alike.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import UNSET, QueryParameters, Value
from lockstep.testing import plain_values
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency

#: What the kit's own sessions speak: one envelope a message, no segments.
VERSION = 4
#: Rows a page; a session asks for all pages.
PAGE_ROWS = 5000
_UNPREPARED = 0x2500

Conversation: TypeAlias = Generator[tuple[int, bytes], wire.Body, list[Any]]
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class CqlError(Exception):
    """The node refused or could not answer. `code` is the protocol's number, `details` what it adds
    (consistency, required, received, ...)."""

    def __init__(self, body: wire.ErrorResponse) -> None:
        super().__init__(f"{body.code:#06x}: {body.message}")
        self.code = body.code
        self.message = body.message
        self.details = body.details


def startup() -> tuple[int, bytes]:
    """The first thing that a client says."""
    return Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.4.7"})


def credentials(user: str, password: str) -> tuple[int, bytes]:
    """The answer to a node that asks who is there."""
    return Opcode.AUTH_RESPONSE, wire.auth_response(b"\0" + user.encode() + b"\0" + password.encode())


def level(name: str | Consistency) -> Consistency:
    """ConfigurationError when there is no such level."""
    if isinstance(name, Consistency):
        return name
    try:
        return Consistency[name.upper()]
    except KeyError:
        known = ", ".join(one.name for one in Consistency)
        raise ConfigurationError(f"there is no consistency level {name}", hint=f"one of {known}") from None


def conversation(
    prepared: dict[str, wire.PreparedResult], text: str, values: Values, consistency: str | Consistency
) -> Conversation:
    """Run one statement; returns its rows, as named tuples. CqlError when the node answers an error.

    With values the statement is prepared, and remembered in `prepared`, as only then their types are known.
    """
    asked = level(consistency)
    if not values:
        return (yield from _pages(Opcode.QUERY, text, None, (), asked))
    for attempt in (1, 2):
        statement = prepared.get(text)
        if statement is None:
            answer = _good((yield Opcode.PREPARE, wire.prepare(VERSION, text)))
            assert isinstance(answer, wire.PreparedResult)
            statement = prepared[text] = answer
        try:
            return (yield from _pages(Opcode.EXECUTE, text, statement, bound(statement, values), asked))
        except CqlError as error:
            del prepared[text]
            if error.code != _UNPREPARED or attempt == 2:
                raise
    raise AssertionError("the loop returns or raises")


def bound(statement: wire.PreparedResult, values: Values) -> tuple[Value, ...]:
    """Serialised values in the order of the markers. ConfigurationError when they are not as many."""
    specs = statement.bind
    if isinstance(values, Mapping):
        unknown = sorted(set(values) - {spec.name for spec in specs})
        if unknown:
            raise ConfigurationError(f"the statement has no marker :{unknown[0]}")
        return tuple(
            plain_values.serialized(spec.type, values[spec.name]) if spec.name in values else UNSET
            for spec in specs
        )
    if len(values) != len(specs):
        raise ConfigurationError(f"the statement has {len(specs)} markers, and {len(values)} values came")
    return tuple(plain_values.serialized(spec.type, value) for spec, value in zip(specs, values, strict=True))


def _pages(
    opcode: int,
    text: str,
    statement: wire.PreparedResult | None,
    values: tuple[Value, ...],
    consistency: Consistency,
) -> Conversation:
    rows: list[Any] = []
    state: bytes | None = None
    while True:
        parameters = QueryParameters(
            consistency=consistency, values=values, page_size=PAGE_ROWS, paging_state=state
        )
        if statement is None:
            body = wire.query(VERSION, text, parameters)
        else:
            body = wire.execute(VERSION, statement.statement_id, None, parameters)
        answer = _good((yield opcode, body))
        if not isinstance(answer, wire.RowsResult):
            return rows
        columns = answer.metadata.columns
        row = namedtuple("Row", [column.name for column in columns], rename=True)  # type: ignore[misc]
        types = [column.type for column in columns]
        for cells in answer.rows:
            decoded = [plain_values.deserialized(kind, data) for kind, data in zip(types, cells, strict=True)]
            rows.append(row(*decoded))
        state = answer.metadata.paging_state
        if state is None:
            return rows


def _good(answer: wire.Body) -> wire.Body:
    if isinstance(answer, wire.ErrorResponse):
        raise CqlError(answer)
    return answer
