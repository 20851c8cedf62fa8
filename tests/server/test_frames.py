"""The door against bytes of every kind: versions, order, damage, limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import FLAG_BETA, FLAG_TRACING, Opcode
from lockstep.cql.wire.frames import encode_request, encode_segments
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.values.ids import Consistency
from tests.server.parts import CQL_PORT, Nodes
from tests.server.wire_client import WireClient

LOCAL = "SELECT key FROM system.local"


@pytest.fixture(params=[3, 4, 5])
def client(single: Nodes, request: pytest.FixtureRequest) -> Iterator[WireClient]:
    with WireClient(single.members[0].address, CQL_PORT, request.param) as made:
        yield made


@pytest.mark.parametrize("version", [1, 2, 7, 65, 66])
def test_unknown_version_is_refused_in_the_highest_one_with_the_phrase_drivers_look_for(
    single: Nodes, version: int
) -> None:
    with WireClient(single.members[0].address, CQL_PORT) as client:
        header = bytes((version, 0, 0, 1)) if version < 3 else bytes((version, 0, 0, 0, 5))
        client.socket.sendall(header + struct.pack(">I", 0))
        found = client.envelope()
        answer = wire.decode_response(found.version, found.opcode, found.flags, found.body).body
        assert found.version == 5
        assert isinstance(answer, wire.ErrorResponse)
        assert answer.code == 0x000A
        assert "Invalid or unsupported protocol version" in answer.message
        assert "4/v4" in answer.message and "5/v5" in answer.message
        assert client.is_closed()


def test_options_are_answered_before_and_after_startup(client: WireClient) -> None:
    before = client.ask(Opcode.OPTIONS, wire.options())
    assert isinstance(before, wire.Supported)
    assert before.options["COMPRESSION"] == ["snappy", "lz4"]
    assert before.options["CQL_VERSION"] == ["3.4.7"]
    assert isinstance(client.startup(), wire.Ready)
    assert client.ask(Opcode.OPTIONS, wire.options()) == before


def test_requests_out_of_order_are_protocol_errors_and_leave_the_connection_usable(
    client: WireClient,
) -> None:
    early = client.query(LOCAL)
    assert isinstance(early, wire.ErrorResponse) and early.code == 0x000A
    assert isinstance(client.startup(), wire.Ready)
    again = client.ask(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.0.0"}))
    assert isinstance(again, wire.ErrorResponse) and again.code == 0x000A
    unasked = client.ask(Opcode.AUTH_RESPONSE, wire.auth_response(b"\0a\0b"))
    assert isinstance(unasked, wire.ErrorResponse) and unasked.code == 0x000A
    assert isinstance(client.query(LOCAL), wire.RowsResult)


def test_startup_with_an_unknown_compression_is_refused(client: WireClient) -> None:
    answer = client.startup(COMPRESSION="zstd")
    assert isinstance(answer, wire.ErrorResponse) and answer.code == 0x000A


def test_snappy_is_spoken_before_version_5_and_refused_there(client: WireClient) -> None:
    answer = client.startup(COMPRESSION="snappy")
    if client.version == 5:
        assert isinstance(answer, wire.ErrorResponse) and answer.code == 0x000A
        return
    client.compress("snappy")
    rows = client.query("SELECT key FROM system.local")
    assert isinstance(rows, wire.RowsResult) and rows.rows == ((b"local",),)


def test_the_beta_version_is_spoken_with_its_flag_only(single: Nodes) -> None:
    with WireClient(single.members[0].address, CQL_PORT, 6) as client:
        client.send(Opcode.OPTIONS, wire.options(), flags=FLAG_BETA)
        assert isinstance(client.response().body, wire.Supported)
        client.send(Opcode.OPTIONS, wire.options(), stream=3)
        found = client.envelope()
        refusal = wire.decode_response(found.version, found.opcode, found.flags, found.body).body
        assert isinstance(refusal, wire.ErrorResponse) and refusal.code == 0x000A
        assert (found.version, found.stream) == (5, 3) and "USE_BETA flag is unset" in refusal.message
        assert client.is_closed()


def test_a_body_that_is_no_request_is_answered_on_its_stream(client: WireClient) -> None:
    client.startup()
    client.send(Opcode.QUERY, b"\0\0", stream=77)
    found = client.envelope()
    assert (found.stream, found.opcode) == (77, Opcode.ERROR)
    assert isinstance(client.query(LOCAL), wire.RowsResult)


def test_damaged_segment_closes_its_connection_without_effect_and_no_other(single: Nodes) -> None:
    address = single.members[0].address
    with WireClient(address, CQL_PORT, 5) as other, WireClient(address, CQL_PORT, 5) as client:
        other.startup()
        client.startup()
        client.query(
            "CREATE KEYSPACE IF NOT EXISTS damaged WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        client.query("CREATE TABLE IF NOT EXISTS damaged.t (a int PRIMARY KEY)")
        insert = wire.query(5, "INSERT INTO damaged.t (a) VALUES (1)", QueryParameters(Consistency.ONE))
        segment = bytearray(encode_segments([encode_request(5, Opcode.QUERY, 1, insert)]))
        segment[-1] ^= 1
        client.socket.sendall(segment)
        assert client.is_closed()
        answer = other.query("SELECT a FROM damaged.t")
        assert isinstance(answer, wire.RowsResult) and answer.rows == ()


def test_a_length_beyond_the_limit_closes_the_connection(client: WireClient) -> None:
    client.startup()
    head = bytes((client.version, 0, 0, 9, Opcode.QUERY)) + struct.pack(">I", 1 << 31)
    client.socket.sendall(encode_segments([head]) if client.version == 5 else head)
    found = client.response().body
    assert isinstance(found, wire.ErrorResponse) and "too big" in found.message
    assert client.is_closed()


def test_a_client_without_a_session_sends_little(client: WireClient) -> None:
    head = bytes((client.version, 0, 0, 9, Opcode.STARTUP)) + struct.pack(">I", (1 << 16) + 1)
    client.socket.sendall(head)
    found = client.response().body
    assert isinstance(found, wire.ErrorResponse) and "too big" in found.message
    assert client.is_closed()


def test_a_batch_of_long_texts_is_not_planned(client: WireClient) -> None:
    client.startup()
    texts = [f"INSERT INTO nowhere.t (k) VALUES ('{'x' * 1000}{number}')" for number in range(300)]
    parts = tuple(BatchStatement(text, ()) for text in texts)
    found = client.ask(Opcode.BATCH, wire.batch(client.version, 1, parts, QueryParameters(Consistency.ONE)))
    assert isinstance(found, wire.ErrorResponse) and found.message == "Batch too large"


def test_many_requests_of_one_write_are_all_answered_on_their_streams(client: WireClient) -> None:
    client.startup()
    body = wire.query(client.version, LOCAL, QueryParameters(Consistency.ONE))
    sent = [encode_request(client.version, Opcode.QUERY, stream, body) for stream in range(3000)]
    client.socket.sendall(encode_segments(sent) if client.version == 5 else b"".join(sent))
    assert sorted(client.envelope().stream for _ in range(3000)) == list(range(3000))


def test_an_envelope_over_several_segments_and_reads_arrives_whole(single: Nodes) -> None:
    with WireClient(single.members[0].address, CQL_PORT, 5) as client:
        client.startup()
        text = f"SELECT key FROM system.local WHERE key = '{'x' * 400_000}'"
        answer = client.query(text)
        assert isinstance(answer, (wire.RowsResult, wire.ErrorResponse))
        assert isinstance(client.query(LOCAL), wire.RowsResult)


def test_a_traced_request_is_answered_with_the_id_of_its_trace(client: WireClient) -> None:
    client.startup()
    body = wire.query(client.version, LOCAL, QueryParameters(Consistency.ONE))
    client.send(Opcode.QUERY, body, flags=FLAG_TRACING)
    response = client.response()
    assert isinstance(response.body, wire.RowsResult)
    assert response.trace_id is not None and response.warnings == ()


def test_a_traced_request_that_is_refused_has_a_trace_too(client: WireClient) -> None:
    client.startup()
    body = wire.query(client.version, "SELECT k FROM ks.nowhere", QueryParameters(Consistency.ONE))
    client.send(Opcode.QUERY, body, flags=FLAG_TRACING)
    response = client.response()
    assert isinstance(response.body, wire.ErrorResponse)
    assert response.trace_id is not None


def test_named_values_in_a_query_are_bound_by_name(client: WireClient) -> None:
    client.startup()
    parameters = QueryParameters(Consistency.ONE, (b"local",), ("wanted",))
    text = "SELECT key FROM system.local WHERE key = :wanted"
    answer = client.ask(Opcode.QUERY, wire.query(client.version, text, parameters))
    assert isinstance(answer, wire.RowsResult) and answer.rows == ((b"local",),)


def test_a_prepared_id_is_the_same_everywhere_and_an_unknown_one_is_named(three: Nodes) -> None:
    ids = []
    for member in three.members:
        with WireClient(member.address, CQL_PORT, 5) as client:
            client.startup()
            prepared = client.ask(Opcode.PREPARE, wire.prepare(5, LOCAL))
            assert isinstance(prepared, wire.PreparedResult)
            ids.append(prepared.statement_id)
            execute = wire.execute(5, b"\x01" * 16, b"", QueryParameters(Consistency.ONE))
            unknown = client.ask(Opcode.EXECUTE, execute)
            assert isinstance(unknown, wire.ErrorResponse) and unknown.code == 0x2500
            assert unknown.details["statement_id"] == b"\x01" * 16
    assert len(set(ids)) == 1


def test_after_an_alter_statements_are_prepared_again_and_others_learn_the_new_columns(
    single: Nodes,
) -> None:
    address = single.members[0].address
    with WireClient(address, CQL_PORT, 5) as client, WireClient(address, CQL_PORT, 4) as older:
        client.startup()
        older.startup()
        client.query(
            "CREATE KEYSPACE altered WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        client.query("CREATE TABLE altered.t (a int PRIMARY KEY, b int)")
        client.query("INSERT INTO altered.t (a, b) VALUES (1, 2)")
        prepared = client.ask(Opcode.PREPARE, wire.prepare(5, "SELECT * FROM altered.t"))
        assert isinstance(prepared, wire.PreparedResult)
        client.query("ALTER TABLE altered.t ADD c text")
        parameters = QueryParameters(Consistency.ONE, skip_metadata=True)
        execute = wire.execute(5, prepared.statement_id, prepared.result_metadata_id, parameters)
        unprepared = client.ask(Opcode.EXECUTE, execute)
        assert isinstance(unprepared, wire.ErrorResponse) and unprepared.code == 0x2500
        again = client.ask(Opcode.PREPARE, wire.prepare(5, "SELECT * FROM altered.t"))
        assert isinstance(again, wire.PreparedResult)
        assert again.statement_id == prepared.statement_id
        # A client that still holds the old columns is sent the new ones.
        changed = client.ask(Opcode.EXECUTE, execute)
        assert isinstance(changed, wire.RowsResult)
        assert changed.metadata.new_metadata_id == again.result_metadata_id != prepared.result_metadata_id
        assert [column.name for column in changed.metadata.columns] == ["a", "b", "c"]
        execute = wire.execute(5, prepared.statement_id, again.result_metadata_id, parameters)
        same = client.ask(Opcode.EXECUTE, execute)
        assert isinstance(same, wire.RowsResult) and same.metadata.new_metadata_id is None
        sent = older.ask(Opcode.EXECUTE, wire.execute(4, prepared.statement_id, None, parameters))
        assert isinstance(sent, wire.RowsResult) and len(sent.metadata.columns) == 3


def test_a_dropped_table_makes_its_statement_unprepared(single: Nodes) -> None:
    with WireClient(single.members[0].address, CQL_PORT, 4) as client:
        client.startup()
        client.query(
            "CREATE KEYSPACE gone WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        client.query("CREATE TABLE gone.t (a int PRIMARY KEY)")
        prepared = client.ask(Opcode.PREPARE, wire.prepare(4, "INSERT INTO gone.t (a) VALUES (?)"))
        assert isinstance(prepared, wire.PreparedResult)
        client.query("DROP TABLE gone.t")
        parameters = QueryParameters(Consistency.ONE, (b"\0\0\0\1",))
        answer = client.ask(Opcode.EXECUTE, wire.execute(4, prepared.statement_id, None, parameters))
        assert isinstance(answer, wire.ErrorResponse) and answer.code == 0x2500
