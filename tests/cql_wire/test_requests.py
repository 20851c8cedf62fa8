"""Request bodies: what drivers send is read, what the bundled client sends is what it meant."""

from __future__ import annotations

import io

import cassandra.protocol as driver
import pytest
from cassandra.query import BatchType
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire import client
from lockstep.cql.wire.constants import FLAG_PAYLOAD, Opcode
from lockstep.cql.wire.messages import (
    UNSET,
    AuthResponse,
    Batch,
    BatchStatement,
    Execute,
    Options,
    Prepare,
    Query,
    QueryParameters,
    Register,
    Startup,
    decode_request,
)
from lockstep.cql.wire.primitives import bytes_map
from lockstep.values.errors import InvalidRequest, ProtocolViolation
from lockstep.values.ids import Consistency

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def driver_body(version, message):
    buffer = io.BytesIO()
    message.send_body(buffer, version)
    return buffer.getvalue()


def received(version, message):
    return decode_request(version, message.opcode, 0, driver_body(version, message))


@VERSIONS
def test_what_the_driver_sends_is_understood(version):
    assert received(version, driver.OptionsMessage()) == Options()
    assert received(version, driver.StartupMessage("3.4.5", {"COMPRESSION": "lz4"})) == Startup(
        {"COMPRESSION": "lz4", "CQL_VERSION": "3.4.5"}
    )
    assert received(version, driver.RegisterMessage(["STATUS_CHANGE", "SCHEMA_CHANGE"])) == Register(
        ("STATUS_CHANGE", "SCHEMA_CHANGE")
    )
    assert received(version, driver.AuthResponseMessage(b"\0u\0p")) == AuthResponse(b"\0u\0p")
    assert received(version, driver.PrepareMessage("select é")) == Prepare("select é")
    keyspace = "k" if version == 5 else None
    query = driver.QueryMessage(
        "select", Consistency.QUORUM, Consistency.LOCAL_SERIAL, 50, b"state", 1234, keyspace=keyspace
    )
    assert received(version, query) == Query(
        "select",
        QueryParameters(
            Consistency.QUORUM,
            page_size=50,
            paging_state=b"state",
            serial_consistency=Consistency.LOCAL_SERIAL,
            timestamp_us=1234,
            keyspace=keyspace,
        ),
    )
    execute = driver.ExecuteMessage(
        b"id",
        [b"a", None, b"", driver._UNSET_VALUE],
        Consistency.ONE,
        skip_meta=True,
        result_metadata_id=b"rm",
    )
    found = received(version, execute)
    assert found.statement_id == b"id"
    assert found.result_metadata_id == (b"rm" if version == 5 else None)
    assert found.parameters.values == (b"a", None, b"", UNSET)
    batch = driver.BatchMessage(
        BatchType.UNLOGGED,
        [(False, "insert", []), (True, b"id", [b"1", None])],
        Consistency.LOCAL_ONE,
        timestamp=5,
        keyspace=keyspace,
    )
    assert received(version, batch) == Batch(
        1,
        (BatchStatement("insert", ()), BatchStatement(b"id", (b"1", None))),
        QueryParameters(Consistency.LOCAL_ONE, timestamp_us=5, keyspace=keyspace),
    )


VALUES = st.none() | st.just(UNSET) | st.binary(max_size=5)
LEVELS = st.sampled_from(list(Consistency))


@st.composite
def parameters(draw, version):
    values = tuple(draw(st.lists(VALUES, max_size=4)))
    names = tuple(f"n{index}" for index in range(len(values))) if values and draw(st.booleans()) else None
    wide = version == 5
    return QueryParameters(
        draw(LEVELS),
        values,
        names,
        draw(st.booleans()),
        draw(st.none() | st.integers(-1, 5000)),
        draw(st.none() | st.binary(max_size=5)),
        draw(st.none() | st.sampled_from([Consistency.SERIAL, Consistency.LOCAL_SERIAL])),
        draw(st.none() | st.integers(-(1 << 63) + 1, (1 << 63) - 1)),
        draw(st.none() | st.text(max_size=3)) if wide else None,
        draw(st.none() | st.integers(0, (1 << 31) - 1)) if wide else None,
    )


@pytest.mark.slow
@given(st.data(), st.sampled_from([4, 5]))
@settings(max_examples=200)
def test_what_our_client_sends_is_what_it_meant(data, version):
    found = data.draw(parameters(version))
    body = client.query(version, "select", found)
    assert decode_request(version, Opcode.QUERY, 0, body) == Query("select", found)
    metadata_id = b"m" if version == 5 else None
    body = client.execute(version, b"id", metadata_id, found)
    assert decode_request(version, Opcode.EXECUTE, 0, body) == Execute(b"id", metadata_id, found)
    statements = tuple(
        BatchStatement(
            data.draw(st.sampled_from(["insert", b"id"])), tuple(data.draw(st.lists(VALUES, max_size=2)))
        )
        for _ in range(data.draw(st.integers(0, 3)))
    )
    bare = QueryParameters(
        found.consistency,
        serial_consistency=found.serial_consistency,
        timestamp_us=found.timestamp_us,
        keyspace=found.keyspace,
        now_s=found.now_s,
    )
    body = client.batch(version, 2, statements, found)
    assert decode_request(version, Opcode.BATCH, 0, body) == Batch(2, statements, bare)


@VERSIONS
def test_our_other_requests_round_trip(version):
    def sent(opcode, body):
        return decode_request(version, opcode, 0, body)

    assert sent(Opcode.OPTIONS, client.options()) == Options()
    assert sent(Opcode.STARTUP, client.startup({"CQL_VERSION": "3.0.0"})) == Startup({"CQL_VERSION": "3.0.0"})
    assert sent(Opcode.REGISTER, client.register(["status_change"])) == Register(("STATUS_CHANGE",))
    assert sent(Opcode.AUTH_RESPONSE, client.auth_response(None)) == AuthResponse(None)
    assert sent(Opcode.PREPARE, client.prepare(version, "x")) == Prepare("x")
    if version == 5:
        assert sent(Opcode.PREPARE, client.prepare(5, "x", "k")) == Prepare("x", "k")


def test_a_custom_payload_in_front_is_skipped():
    body = bytes_map({"key": b"value", "none": None}) + client.query(4, "q", QueryParameters(Consistency.ONE))
    assert decode_request(4, Opcode.QUERY, FLAG_PAYLOAD, body) == Query("q", QueryParameters(Consistency.ONE))


def test_bytes_behind_the_last_field_are_ignored():
    body = client.execute(4, b"id", None, QueryParameters(Consistency.ONE)) + b"\x07"
    assert decode_request(4, Opcode.EXECUTE, 0, body).statement_id == b"id"


@pytest.mark.parametrize(
    ("opcode", "body", "message"),
    [
        (Opcode.READY, b"", "unexpected opcode"),
        (0x77, b"", "unexpected opcode"),
        (Opcode.QUERY, b"\0\0\0\1q\0\x0b\0", "Unknown code 11 for a consistency level"),
        (Opcode.QUERY, b"\xff\xff\xff\xfeq", "Invalid string length -2"),
        (Opcode.QUERY, b"\0\0\0\1q\0\1\1\0\1\xff\xff\xff\xfd", "Invalid value length -3"),
        (Opcode.QUERY, b"\0\0\0\1q\0\1\1\0\1\0\0\0\5ab", "too short"),
        (Opcode.QUERY, b"\0\0\0\1q\0\1\x20\x80\0\0\0\0\0\0\0", "Out of bound timestamp"),
        (Opcode.QUERY, b"\0\0\0\1\xff\0\1\0", "Malformed QUERY"),
        (Opcode.PREPARE, b"\0\0\0\\9ab", "PREPARE"),
        (Opcode.BATCH, b"\3\0\0\0\1\0", "Invalid batch type 3"),
        (Opcode.BATCH, b"\0\0\1\2\0\1", "Must be 0 or 1"),
        (Opcode.BATCH, b"", "Malformed BATCH"),
        (Opcode.REGISTER, b"\0\1\0\3FOO", "Invalid value 'FOO' for Type"),
        (Opcode.STARTUP, b"\0\1\0\1a\0\5b", "STARTUP"),
    ],
)
def test_damaged_requests_are_protocol_violations(opcode, body, message):
    with pytest.raises(ProtocolViolation, match=message):
        decode_request(4, opcode, 0, body)


OPCODES = st.sampled_from([*(int(opcode) for opcode in Opcode), 0x42])


@pytest.mark.slow
@given(st.sampled_from([4, 5]), OPCODES, st.sampled_from([0, 2, 4, 6]), st.binary(max_size=60))
@settings(max_examples=400)
def test_random_bodies_raise_nothing_but_protocol_violations(version, opcode, flags, body):
    try:
        decode_request(version, opcode, flags, body)
    except ProtocolViolation:
        return
    except InvalidRequest as refused:
        assert opcode == Opcode.BATCH and "A batch holds at most" in refused.message


@pytest.mark.slow
@given(st.data(), st.sampled_from([4, 5]))
@settings(max_examples=150)
def test_every_truncation_of_a_request_is_a_protocol_violation(data, version):
    body = client.execute(version, b"id", b"m", data.draw(parameters(version)))
    length = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolViolation):
        decode_request(version, Opcode.EXECUTE, 0, body[:length])
