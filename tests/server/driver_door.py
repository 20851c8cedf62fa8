"""A driver's session that plays scripts of random statements in which nothing expires."""

from __future__ import annotations

import time
from typing import Any

from cassandra import protocol
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session
from cassandra.cqltypes import UserType, VectorType
from cassandra.protocol import ErrorMessage, ResultMessage, _ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement, SimpleStatement, Statement

from lockstep.cql.wire.messages import UNSET
from lockstep.schema.types import parse_type
from lockstep.sim.fuzz.door import Told, shape_of
from lockstep.sim.fuzz.kinds import Said


class _RawRows(ResultMessage):
    """Leaves cells as they came."""

    def recv_results_rows(
        self, f: Any, protocol_version: Any, user_type_map: Any, result_metadata: Any, policy: Any
    ) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        count = protocol.read_int(f)
        types = [parse_type(_named(kind)) for kind in self.column_types]
        rows = [self.recv_row(f, len(columns)) for _ in range(count)]
        self.parsed_rows = [
            tuple(None if c is None else shape_of(kind, c) for kind, c in zip(types, row, strict=True))
            for row in rows
        ]


class RawProtocol(_ProtocolHandler):
    message_types_by_opcode = {**_ProtocolHandler.message_types_by_opcode, _RawRows.opcode: _RawRows}


def _named(kind: Any) -> str:
    """A type of the driver as CQL; of a user's type the tuple of its fields."""
    if issubclass(kind, VectorType):
        return f"vector<{_named(kind.subtype)}, {kind.vector_size}>"
    if not kind.subtypes:
        return str(kind.typename)
    name = "tuple" if issubclass(kind, UserType) else kind.typename
    if name == "frozen":
        return _named(kind.subtypes[0])
    return f"{name}<{', '.join(_frozen(_named(part)) for part in kind.subtypes)}>"


def _frozen(name: str) -> str:
    return f"frozen<{name}>" if name.startswith(("list<", "set<", "map<")) else name


class _Anywhere(BoundStatement):
    """Asks any node: a key may be null or unset."""

    routing_key = None


class DriverDoor:
    def __init__(self, session: Session) -> None:
        self._session = session
        session.client_protocol_handler = RawProtocol
        self._clock = session.cluster.timestamp_generator
        session.get_execution_profile(EXEC_PROFILE_DEFAULT).row_factory = lambda names, rows: rows

    def now_s(self) -> int:
        """Nothing expires in the scripts that are played here."""
        return 0

    def settle(self) -> None:
        """Any moment will do."""

    def wait(self, seconds: int) -> None:
        """Nobody moves a real clock; what expires is left to simulated nodes."""

    def rest(self) -> None:
        time.sleep(1)

    def strike(self, what: str, node: int) -> None:
        raise AssertionError("faults are for simulated nodes")

    def run(self, text: str) -> Told:
        return self.ask(Said(text))

    def ask(self, said: Said, page_rows: int = 0) -> Told:
        self._session.cluster.timestamp_generator = self._clock if said.stamp is None else lambda: said.stamp
        try:
            answer = self._session.execute(self._statement(said, page_rows or None))
            names = answer.column_names
            return Told(rows=None if names is None else tuple(answer), names=tuple(names or ()))
        except ErrorMessage as error:
            return Told(error.code, error.message)
        except Exception as error:
            cause = _CODES.get(type(error).__name__)
            if cause is None:
                raise
            return Told(cause, str(error))

    def _statement(self, said: Said, page_rows: int | None) -> Statement:
        """The driver sends no bytes of values but with what it prepared."""
        if said.batched:
            batch = BatchStatement(_BATCHES[said.text])
            for one in said.batched:
                batch.add(self._statement(one, None))
            return batch
        if not said.values and not said.prepared:
            return SimpleStatement(said.text, fetch_size=page_rows)
        bound = _Anywhere(self._session.prepare(said.text), fetch_size=page_rows)
        bound.values = [UNSET_VALUE if value is UNSET else value for value in said.values]
        return bound


_BATCHES = {"": BatchType.LOGGED, "UNLOGGED": BatchType.UNLOGGED, "COUNTER": BatchType.COUNTER}
#: The driver's own exceptions for what nodes answer.
_CODES = {
    "InvalidRequest": 0x2200,
    "SyntaxException": 0x2000,
    "AlreadyExists": 0x2400,
    "FunctionFailure": 0x1400,
}
