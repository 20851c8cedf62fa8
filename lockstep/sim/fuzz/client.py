"""Sends statements to simulated nodes, and reads what they answer.

Invariant: of each node and version one connection is kept, and what was prepared there; rows are read as a
driver reads them: what an answer leaves out of its columns was told when the statement was prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import BATCH_COUNTER, BATCH_LOGGED, BATCH_UNLOGGED, Opcode
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.runtime.ports import Runtime
from lockstep.schema.types import CqlType, ListType
from lockstep.sim.fuzz.binding import Said
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.values.ids import Consistency

_CQL_PORT: Final = 9042
_CONNECT_MS: Final = 5000
_UNPREPARED: Final = 0x2500
_KINDS: Final = {"": BATCH_LOGGED, "UNLOGGED": BATCH_UNLOGGED, "COUNTER": BATCH_COUNTER}


class Told(msgspec.Struct, frozen=True):
    """An answer: `error` is its code, or -1 when there was none; rows as shapes of their types."""

    error: int = 0
    message: str = ""
    names: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None
    pages: int = 1


class Asking:
    """`host_of` gives a node's address by its name."""

    def __init__(self, host_of: Callable[[str], str]) -> None:
        self._host_of = host_of
        self._clients: dict[tuple[str, int], CqlClient] = {}
        #: By node, version and text: they outlive changes of their tables.
        self._prepared: dict[tuple[str, int, str], wire.PreparedResult] = {}

    async def told(self, runtime: Runtime, said: Said, page_rows: int, nodes: Sequence[str]) -> Told:
        """All pages: from the first of the nodes, or from each in turn, of growing sizes."""
        try:
            rows: list[tuple[Any, ...]] = []
            state: bytes | None = None
            names: tuple[str, ...] = ()
            pages = 0
            while not pages or state is not None:
                size = page_rows + pages % 3 if said.wanders else page_rows
                turn = pages % len(nodes) if said.wanders else 0
                client = await self._client(runtime, nodes[turn], said.version)
                answer = await self._answer(client, nodes[turn], said, _parameters(said, size, state))
                if not isinstance(answer, wire.RowsResult):
                    return Told()
                pages += 1
                columns = answer.metadata.columns
                for cells in answer.rows:
                    shapes = zip(columns, cells, strict=True)
                    rows.append(tuple(None if c is None else shape_of(one.type, c) for one, c in shapes))
                state = answer.metadata.paging_state
                names = tuple(column.name for column in columns)
            return Told(names=names, rows=tuple(rows), pages=pages)
        except CqlError as error:
            return Told(error.code, error.body.message)
        except (OSError, TimeoutError) as error:
            return Told(-1, str(error))

    async def _client(self, runtime: Runtime, node: str, version: int) -> CqlClient:
        client = self._clients.get((node, version))
        if client is None or client.closed:
            client = await CqlClient.connect(runtime, self._host_of(node), _CQL_PORT, _CONNECT_MS, version)
            self._clients[node, version] = client
        return client

    async def _answer(
        self, client: CqlClient, node: str, said: Said, parameters: QueryParameters
    ) -> wire.Body:
        try:
            return await self._once(client, node, said, parameters)
        except CqlError as error:
            if error.code != _UNPREPARED:
                raise
        for one in (said, *said.batched):
            self._prepared.pop((node, said.version, one.text), None)
        return await self._once(client, node, said, parameters)

    async def _once(self, client: CqlClient, node: str, said: Said, parameters: QueryParameters) -> wire.Body:
        if said.batched:
            entries = []
            for one in said.batched:
                known = await self._known(client, node, one.text) if one.prepared else None
                entries.append(BatchStatement(known.statement_id if known else one.text, one.values))
            body = wire.batch(client.version, _KINDS[said.text], entries, parameters)
            return await client.request(Opcode.BATCH, body)
        if not said.prepared:
            return await client.request(Opcode.QUERY, wire.query(client.version, said.text, parameters))
        known = await self._known(client, node, said.text)
        parameters = msgspec.structs.replace(parameters, skip_metadata=said.version > 4)
        body = wire.execute(client.version, known.statement_id, known.result_metadata_id, parameters)
        answer = await client.request(Opcode.EXECUTE, body)
        return self._complete(answer, known, (node, client.version, said.text))

    async def _known(self, client: CqlClient, node: str, text: str) -> wire.PreparedResult:
        known = self._prepared.get((node, client.version, text))
        if known is None:
            known = self._prepared[node, client.version, text] = await client.prepared(text)
        return known

    def _complete(
        self, answer: wire.Body, known: wire.PreparedResult, place: tuple[str, int, str]
    ) -> wire.Body:
        """The answer with its columns."""
        if not isinstance(answer, wire.RowsResult):
            return answer
        metadata = answer.metadata
        if metadata.new_metadata_id is not None:
            self._prepared[place] = msgspec.structs.replace(
                known, result_metadata_id=metadata.new_metadata_id, result=metadata
            )
        if metadata.columns:
            return answer
        told = msgspec.structs.replace(metadata, columns=known.result.columns)
        return msgspec.structs.replace(answer, metadata=told)


def shape_of(kind: CqlType, data: bytes) -> Any:
    """The value; a list of times of cells may hold nulls."""
    if not isinstance(kind, ListType) or b"\xff\xff\xff\xff" not in data:
        return kind.deserialize(data)
    count, at, found = int.from_bytes(data[:4], "big"), 4, []
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        found.append(None if size < 0 else kind.element.deserialize(data[at + 4 : at + 4 + size]))
        at += 4 + max(size, 0)
    return tuple(found)


def _parameters(said: Said, page_rows: int, state: bytes | None) -> QueryParameters:
    values, names = said.values, None
    if said.named:
        # They need no order.
        values, names = values[::-1], tuple(f"n{turn}" for turn in range(len(values)))[::-1]
    return QueryParameters(
        consistency=Consistency.QUORUM,
        page_size=page_rows or None,
        paging_state=state,
        values=values,
        names=names,
        timestamp_us=said.stamp,
        now_s=said.now_s,
    )
