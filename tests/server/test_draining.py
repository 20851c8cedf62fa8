"""A node process that takes leave of its clients with requests in flight: by command, and by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import BATCH_UNLOGGED, Opcode
from lockstep.cql.wire.frames import encode_request
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.local.admin_client import AdminClient, of_node
from lockstep.values.ids import Consistency
from tests.server.parts import ADMIN_PORT, CQL_PORT, Nodes, addresses, nodes
from tests.server.test_process import configured, running
from tests.server.wire_client import WireClient

ROWS, WRITES, SCANS = 1500, 300, 4
DRAINING = 0x1002
LEVEL = QueryParameters(Consistency.QUORUM)


@contextmanager
def busy(directory: Path) -> Iterator[tuple[Any, str, WireClient, bytes]]:
    """A node with rows, its address, a client, and the id of a prepared write."""
    address = next(addresses())
    with running(configured(directory, address)) as (process, _), WireClient(address, CQL_PORT) as client:
        client.startup()
        for text in (
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "CREATE TABLE k.t (a int PRIMARY KEY, b int)",
        ):
            assert not isinstance(client.query(text), wire.ErrorResponse)
        prepared = client.ask(Opcode.PREPARE, wire.prepare(4, "INSERT INTO k.t (a, b) VALUES (?, ?)"))
        assert isinstance(prepared, wire.PreparedResult)
        for first in range(0, ROWS, 500):
            rows = [written(prepared.statement_id, first + n) for n in range(500)]
            answer = client.ask(Opcode.BATCH, wire.batch(4, BATCH_UNLOGGED, rows, LEVEL))
            assert not isinstance(answer, wire.ErrorResponse)
        yield process, address, client, prepared.statement_id


def written(statement: bytes, number: int) -> BatchStatement:
    value = (number & 0x7FFFFFFF).to_bytes(4, "big")
    return BatchStatement(statement, (value, value))


def execute(statement: bytes, number: int) -> bytes:
    parameters = QueryParameters(Consistency.QUORUM, written(statement, number).values)
    return wire.execute(4, statement, None, parameters)


def send_all(client: WireClient, statement: bytes) -> int:
    """Scans of all rows and writes behind them, at once; how many."""
    scan = wire.query(4, "SELECT count(*) FROM k.t WHERE b >= 0 ALLOW FILTERING", LEVEL)
    sent = [encode_request(4, Opcode.QUERY, stream, scan) for stream in range(SCANS)]
    for number in range(WRITES):
        body = execute(statement, ROWS + number)
        sent.append(encode_request(4, Opcode.EXECUTE, SCANS + number, body))
    client.socket.sendall(b"".join(sent))
    return len(sent)


def answers_until_the_end(client: WireClient) -> dict[int, wire.Body]:
    """By stream. The connection must end behind a whole answer, and not with a reset."""
    found: dict[int, wire.Body] = {}
    while True:
        try:
            envelope = client.envelope()
        except ConnectionResetError:
            raise
        except ConnectionError:
            return found
        response = wire.decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body)
        found[envelope.stream] = response.body


def begin_drain(address: str, data: Path) -> dict[str, Any]:
    return AdminClient(address, ADMIN_PORT, credential=of_node(data)).post("/v1/drain", {})


def succeeded(found: dict[int, wire.Body], count: int) -> bool:
    return all(not isinstance(found.get(stream), wire.ErrorResponse | None) for stream in range(count))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, 1) as found:
        yield found


def test_what_comes_while_a_request_is_in_flight_is_refused(
    alone: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = alone.members[0]
    executor, draining = member.server.executor, member.server.draining
    run, held = executor.run, asyncio.Event()

    async def hold(*request: Any, **options: Any) -> Any:
        await held.wait()
        return await run(*request, **options)

    with WireClient(member.address, CQL_PORT) as client:
        client.startup()
        monkeypatch.setattr(executor, "run", hold)
        body = wire.query(4, "SELECT key FROM system.local", LEVEL)
        client.send(Opcode.QUERY, body, stream=1)
        client.ask(Opcode.OPTIONS, wire.options(), stream=2)
        drained = asyncio.run_coroutine_threadsafe(draining.drain(60_000), alone.loop)
        while True:
            client.send(Opcode.OPTIONS, wire.options(), stream=3)
            refused = client.response().body
            if isinstance(refused, wire.ErrorResponse):
                break  # Asked before the drain began, it is answered.
        assert refused.code == DRAINING
        alone.loop.call_soon_threadsafe(held.set)
        found = answers_until_the_end(client)
        assert isinstance(found[1], wire.RowsResult) and len(found) == 1
    drained.result(20)
    assert (draining.state, draining.cut) == ("drained", 0)


def test_a_client_that_is_logging_in_is_answered_and_hears_nothing_behind_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nodes(tmp_path, 1, auth_authenticator="PasswordAuthenticator") as cluster:
        member, held = cluster.members[0], asyncio.Event()
        authentication, draining = member.server.authentication, member.server.draining
        assert authentication is not None
        login = authentication.login

        async def hold(token: bytes | None, address: str) -> str:
            await held.wait()
            return await login(token, address)

        monkeypatch.setattr(authentication, "login", hold)
        with WireClient(member.address, CQL_PORT) as client:
            client.startup()
            client.send(Opcode.AUTH_RESPONSE, wire.auth_response(b"\0cassandra\0cassandra"), stream=7)
            client.send(Opcode.OPTIONS, wire.options(), stream=1)
            while not isinstance(client.response().body, wire.Supported):
                pass  # The credentials were read before.
            drained = asyncio.run_coroutine_threadsafe(draining.drain(60_000), cluster.loop)
            cluster.loop.call_soon_threadsafe(held.set)
            found = answers_until_the_end(client)
            assert isinstance(found[7], wire.AuthSuccess)
            connection = next(iter(member.server.clients.connections))
            connection.events = frozenset(["SCHEMA_CHANGE"])

            async def tell() -> None:
                member.server.clients.broadcast("SCHEMA_CHANGE", b"late")
                for _ in range(3):
                    await asyncio.sleep(0)  # What is sent leaves at the end of a turn.

            cluster.call(tell())
        drained.result(20)
        assert (draining.state, draining.cut, member.server.clients.faults) == ("drained", 0, 0)
        assert not cluster.escaped


def test_a_drain_answers_what_was_sent_and_refuses_what_comes_later(tmp_path: Path) -> None:
    with busy(tmp_path) as (process, address, client, statement):
        count = send_all(client, statement)
        begun = begin_drain(address, tmp_path / "data")
        assert begun["state"] in ("draining", "drained")
        client.send(Opcode.EXECUTE, execute(statement, 1 << 20), stream=count)
        found = answers_until_the_end(client)
        # It found the end of the connection when all else was answered before it came.
        refused = found.pop(count, None)
        assert refused is None or (isinstance(refused, wire.ErrorResponse) and refused.code == DRAINING)
        assert len(found) == count and succeeded(found, count)
        # Its client closed with it, so the node is drained.
        client.socket.close()
        shown = ["--token-file", str(tmp_path / "data" / "admin.token")]
        told = CliRunner().invoke(root, ["node", "drain", "--host", f"{address}:{ADMIN_PORT}", *shown])
        assert told.exit_code == 0 and "is drained: 0 connections" in told.stdout
        assert begin_drain(address, tmp_path / "data")["cut"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_signal_lets_what_was_sent_end(tmp_path: Path) -> None:
    with busy(tmp_path) as (process, _, client, statement):
        count = send_all(client, statement)
        process.send_signal(signal.SIGTERM)
        found = answers_until_the_end(client)
        assert len(found) == count and succeeded(found, count)
        client.socket.close()
        assert process.wait(10) == 0
    with running(tmp_path / "lockstep.toml") as (_, facts):
        address = str(facts["address"])
        with WireClient(address, CQL_PORT) as client:
            client.startup()
            rows = client.query("SELECT count(*) FROM k.t")
            assert isinstance(rows, wire.RowsResult)
            assert rows.rows[0][0] == (ROWS + WRITES).to_bytes(8, "big")
