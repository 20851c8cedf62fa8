"""A workload's requests in CQL, through the door that drivers use.

Invariant: every statement is prepared on its connection and carries the request's timestamp; an answer
means the same as one from the simulator's own door.
"""

from __future__ import annotations

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.runtime.ports import Runtime
from lockstep.sim.door import KEYSPACE, Answer
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.load.history import Change, Look, SeenRow

CQL_PORT = 9042
_VERSION = 4
#: Errors after which a request certainly has no effect: refused before anything was sent.
KNOWN_CODES = (0x1000, 0x1001, 0x1002, 0x2000, 0x2200, 0x2400, 0x2500)

Statement = tuple[str, list[Value]]


class CqlSession:
    """`ask` answers as DoorClient.ask does."""

    def __init__(self, client: CqlClient) -> None:
        self._client = client
        self._prepared: dict[str, bytes] = {}

    @classmethod
    async def connect(cls, runtime: Runtime, host: str, timeout_ms: int) -> CqlSession:
        """OSError or TimeoutError when the node does not answer."""
        try:
            return cls(await CqlClient.connect(runtime, host, CQL_PORT, timeout_ms))
        except CqlError as error:
            raise ConnectionError(str(error)) from error

    @property
    def closed(self) -> bool:
        return self._client.closed

    def close(self) -> None:
        self._client.close()

    async def ask(self, request: Change | Look) -> Answer:
        """ConnectionError when the connection ended: the outcome is unknown."""
        try:
            if isinstance(request, Change):
                text, values = change_statement(request)
                await self._execute(text, request, values, None)
                return Answer(0)
            return Answer(0, rows=await self._rows(request))
        except CqlError as error:
            if error.code == 0x2500:
                self._prepared.clear()
            return Answer(0, f"CQL_{error.code:#06x}", str(error), error.code in KNOWN_CODES)

    async def _rows(self, look: Look) -> tuple[SeenRow, ...]:
        text, values = look_statement(look)
        rows: list[SeenRow] = []
        state: bytes | None = None
        while True:
            answer = await self._execute(text, look, values, state)
            assert isinstance(answer, wire.RowsResult), answer
            for key, clustering, value in answer.rows:
                if key is not None and clustering is not None and value is not None:
                    rows.append((key, int.from_bytes(clustering, "big", signed=True), value))
            state = answer.metadata.paging_state
            if state is None:
                return tuple(rows)

    async def _execute(
        self, text: str, request: Change | Look, values: list[Value], state: bytes | None
    ) -> wire.Body:
        statement = self._prepared.get(text)
        if statement is None:
            statement = self._prepared[text] = await self._client.prepare(text)
        parameters = QueryParameters(
            consistency=request.consistency,
            values=tuple(values),
            page_size=request.page_rows if isinstance(request, Look) else None,
            paging_state=state,
        )
        return await self._client.request(Opcode.EXECUTE, wire.execute(_VERSION, statement, None, parameters))


def change_statement(change: Change) -> Statement:
    table = f"{KEYSPACE}.{change.table}"
    at = change.timestamp_us.to_bytes(8, "big", signed=True)
    if change.puts:
        insert = f"INSERT INTO {table} (pk, ck, v) VALUES (?, ?, ?)"
        if len(change.puts) == 1:
            clustering, value = change.puts[0]
            return f"{insert} USING TIMESTAMP ?", [change.key, _int(clustering), value, at]
        values: list[Value] = [at]
        for clustering, value in change.puts:
            values += [change.key, _int(clustering), value]
        inserts = "; ".join([insert] * len(change.puts))
        return f"BEGIN UNLOGGED BATCH USING TIMESTAMP ? {inserts}; APPLY BATCH", values
    delete = f"DELETE FROM {table} USING TIMESTAMP ? WHERE pk = ?"
    if change.delete_row is not None:
        return f"{delete} AND ck = ?", [at, change.key, _int(change.delete_row)]
    if change.delete_rows is not None:
        first, last = change.delete_rows
        return f"{delete} AND ck >= ? AND ck < ?", [at, change.key, _int(first), _int(last)]
    return delete, [at, change.key]


def look_statement(look: Look) -> Statement:
    select = f"SELECT pk, ck, v FROM {KEYSPACE}.{look.table}"
    if look.key is None:
        return select, []
    if look.clustering is None:
        return f"{select} WHERE pk = ?", [look.key]
    return f"{select} WHERE pk = ? AND ck = ?", [look.key, _int(look.clustering)]


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
