"""Response bodies: drivers and the bundled client read what the server meant."""

from __future__ import annotations

import decimal
import io

import cassandra
import cassandra.cqltypes as driver_types
import cassandra.protocol as driver
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire import client, responses
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import EnvelopeReader, encode_envelope
from lockstep.cql.wire.responses import ColumnSpec, encode_rows_metadata
from lockstep.cql.wire.type_options import class_name, read_type, type_of_class, type_option
from lockstep.schema.types import NATIVE_NAMES, parse_type
from lockstep.values import errors
from lockstep.values.errors import ProtocolViolation
from lockstep.values.ids import Consistency

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])

TYPE_TEXTS = (
    *NATIVE_NAMES,
    "list<int>",
    "set<text>",
    "map<text, frozen<list<duration>>>",
    "tuple<int, text, frozen<map<int, text>>>",
    "vector<float, 3>",
    "list<frozen<vector<text, 2>>>",
    "vector<frozen<list<int>>, 2>",
    "vector<frozen<map<int, tuple<int, uuid>>>, 2>",
    "vector<list<int>, 2>",
    "vector<set<frozen<list<text>>>, 2>",
    "vector<tuple<int, frozen<map<int, frozen<list<int>>>>>, 2>",
    "vector<vector<map<text, int>, 3>, 2>",
)


def by_driver(version, opcode, body, flags=0, metadata=None):
    """The driver's message of a body (its plain, not its compiled, decoder)."""
    (envelope,) = EnvelopeReader(responses=True).feed(encode_envelope(version, opcode, 5, body, flags))
    return driver._ProtocolHandler.decode_message(
        version, {}, 5, envelope.flags, envelope.opcode, envelope.body, None, metadata
    )


def by_client(version, opcode, body, flags=0):
    return client.decode_response(version, opcode, flags, body).body


def specs(*texts):
    return [ColumnSpec("ks", "t", f"c{index}", parse_type(text)) for index, text in enumerate(texts)]


PACKAGE = "org.apache.cassandra.db.marshal."


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("vector<list<int>, 2>", "ListType(Int32Type) , 2"),
        ("vector<frozen<list<int>>, 2>", "FrozenType(ListType(Int32Type)) , 2"),
        ("vector<list<frozen<list<int>>>, 2>", "ListType(FrozenType(ListType(Int32Type))) , 2"),
        ("vector<frozen<list<frozen<list<int>>>>, 2>", "FrozenType(ListType(ListType(Int32Type))) , 2"),
        ("frozen<vector<set<int>, 2>>", "SetType(Int32Type) , 2"),
        ("vector<tuple<int, frozen<list<int>>>, 2>", "TupleType(Int32Type,ListType(Int32Type)) , 2"),
        (
            "vector<frozen<map<int, frozen<set<int>>>>, 1>",
            "FrozenType(MapType(Int32Type,SetType(Int32Type))) , 1",
        ),
        ("vector<vector<set<float>, 5>, 2>", "VectorType(SetType(FloatType) , 5) , 2"),
        ("vector<counter, 3>", "CounterColumnType , 3"),
    ],
)
def test_vectors_are_named_as_cassandra_names_them(text, named):
    """What Cassandra 5.0.6 sends: elements that were spelled frozen say so, and nothing in them does."""
    assert class_name(parse_type(text)).replace(PACKAGE, "") == f"VectorType({named})"


@VERSIONS
def test_handshake_answers_are_understood(version):
    assert isinstance(by_driver(version, Opcode.READY, responses.READY), driver.ReadyMessage)
    assert by_client(version, Opcode.READY, responses.READY) == client.Ready()
    body = responses.supported({"CQL_VERSION": ["3.4.7"], "COMPRESSION": ["lz4"]})
    message = by_driver(version, Opcode.SUPPORTED, body)
    assert (message.cql_versions, message.options) == (["3.4.7"], {"COMPRESSION": ["lz4"]})
    assert by_client(version, Opcode.SUPPORTED, body).options["COMPRESSION"] == ["lz4"]
    body = responses.authenticate("org.example.Plain")
    assert by_driver(version, Opcode.AUTHENTICATE, body).authenticator == "org.example.Plain"
    assert by_client(version, Opcode.AUTHENTICATE, body) == client.Authenticate("org.example.Plain")
    assert by_driver(version, Opcode.AUTH_SUCCESS, responses.auth_success(b"t")).token == "t"
    assert by_client(version, Opcode.AUTH_SUCCESS, responses.auth_success(b"t")) == client.AuthSuccess(b"t")


PROBLEMS = [
    (errors.Unavailable(4, 2, 1), {"consistency": 4, "required_replicas": 2, "alive_replicas": 1}),
    (
        errors.WriteTimeout(6, 1, 2, "BATCH_LOG"),
        {"consistency": 6, "received_responses": 1, "required_responses": 2,
         "write_type": cassandra.WriteType.BATCH_LOG},
    ),
    (
        errors.ReadTimeout(4, 1, 2, True),
        {"consistency": 4, "received_responses": 1, "required_responses": 2, "data_retrieved": True},
    ),
    (
        errors.ReadFailure(4, 0, 2, 2, False, (("127.0.0.1", 1),)),
        {"consistency": 4, "received_responses": 0, "required_responses": 2, "failures": 2,
         "data_retrieved": False},
    ),
    (
        errors.WriteFailure(4, 0, 2, 1, "SIMPLE"),
        {"consistency": 4, "received_responses": 0, "required_responses": 2, "failures": 1,
         "write_type": cassandra.WriteType.SIMPLE},
    ),
    (errors.AlreadyExists("there", "k", "t"), {"keyspace": "k", "table": "t"}),
    (errors.Rejected("there", cql_code=0x2400, keyspace="k"), {"keyspace": "k", "table": ""}),
    (errors.Unprepared(b"\x01\x02"), b"\x01\x02"),
    (errors.SyntaxError_("line 1:2"), None),
    (errors.InvalidRequest("unconfigured table t"), None),
    (errors.ConfigurationInvalid("bad class"), None),
    (errors.ProtocolViolation("bad"), None),
    (errors.Overloaded("full"), None),
    (errors.Rejected("no such table"), None),
    (errors.NotLeader(None), None),
]  # fmt: skip


@VERSIONS
@pytest.mark.parametrize(("problem", "info"), PROBLEMS)
def test_errors_carry_code_message_and_details(version, problem, info):
    if version == 3 and isinstance(problem, errors.ReadFailure | errors.WriteFailure):
        pytest.skip("version 3 has no failures")
    body = responses.error(version, problem)
    code = getattr(problem, "cql_code", 0)
    message = by_driver(version, Opcode.ERROR, body)
    assert (message.code, message.message) == (code, problem.message)
    if isinstance(info, dict):
        assert {name: message.info[name] for name in info} == info
    else:
        assert message.info == info
    ours = by_client(version, Opcode.ERROR, body)
    assert (ours.code, ours.message) == (code, problem.message)


def test_our_client_names_the_details_of_errors():
    failure = errors.ReadFailure(4, 0, 2, 2, False, (("127.0.0.1", 1),))
    assert by_client(5, Opcode.ERROR, responses.error(5, failure)).details == {
        "consistency": 4,
        "received": 0,
        "required": 2,
        "failures": 2,
        "reasons": (("127.0.0.1", 1), ("0.0.0.1", 0)),
        "data_present": False,
    }
    assert "reasons" not in by_client(4, Opcode.ERROR, responses.error(4, failure)).details
    unprepared = by_client(4, Opcode.ERROR, responses.error(4, errors.Unprepared(b"id")))
    assert unprepared.details == {"statement_id": b"id"}


def test_a_huge_error_message_is_cut_at_a_character():
    body = responses.error(5, errors.InvalidRequest("é" * 40_000))
    found = by_client(5, Opcode.ERROR, body)
    assert set(found.message) == {"é"}
    assert len(found.message) == 65_535 // 2


@VERSIONS
def test_void_keyspace_and_schema_results_are_understood(version):
    assert by_driver(version, Opcode.RESULT, responses.VOID).kind == driver.RESULT_KIND_VOID
    assert by_client(version, Opcode.RESULT, responses.VOID) == client.VoidResult()
    assert by_driver(version, Opcode.RESULT, responses.set_keyspace("k")).new_keyspace == "k"
    assert by_client(version, Opcode.RESULT, responses.set_keyspace("k")) == client.SetKeyspaceResult("k")
    body = responses.schema_change("CREATED", "TABLE", "k", "t")
    assert by_driver(version, Opcode.RESULT, body).schema_change_event == {
        "target_type": "TABLE", "change_type": "CREATED", "keyspace": "k", "table": "t",
    }  # fmt: skip
    assert by_client(version, Opcode.RESULT, body) == client.SchemaChange("CREATED", "TABLE", "k", "t")
    body = responses.schema_change("DROPPED", "KEYSPACE", "k")
    assert by_driver(version, Opcode.RESULT, body).schema_change_event["target_type"] == "KEYSPACE"
    body = responses.schema_change("CREATED", "FUNCTION", "k", "f", ("int", "text"))
    assert by_driver(version, Opcode.RESULT, body).schema_change_event["function"].argument_types == [
        "int",
        "text",
    ]
    assert by_client(version, Opcode.RESULT, body).argument_types == ("int", "text")


@VERSIONS
def test_events_are_understood(version):
    for build, kind, change in (
        (responses.event_topology_change, "TOPOLOGY_CHANGE", "NEW_NODE"),
        (responses.event_status_change, "STATUS_CHANGE", "DOWN"),
    ):
        for address in ("127.0.0.3", "::1"):
            body = build(change, address, 9042)
            message = by_driver(version, Opcode.EVENT, body)
            assert message.event_type == kind
            assert message.event_args == {"change_type": change, "address": (address, 9042)}
            assert by_client(version, Opcode.EVENT, body) == client.NodeEvent(kind, change, address, 9042)
    body = responses.event_schema_change("UPDATED", "TYPE", "k", "u")
    assert by_driver(version, Opcode.EVENT, body).event_args["type"] == "u"
    assert by_client(version, Opcode.EVENT, body) == client.SchemaChange("UPDATED", "TYPE", "k", "u")


@VERSIONS
@pytest.mark.parametrize("text", TYPE_TEXTS)
def test_type_options_are_understood(version, text):
    kind = parse_type(text)
    data = type_option(version, kind)
    back, end = read_type(data, 0)
    assert end == len(data)
    assert back.text.removeprefix("frozen<") in (kind.text, kind.text.removeprefix("frozen<"))
    theirs = driver.ResultMessage.read_type(io.BytesIO(data), {})
    assert theirs is not driver_types.BytesType or text == "blob"
    assert type_of_class(class_name(kind)).text.startswith(kind.text.split("<")[0])


def test_duration_is_a_custom_class_in_v4_only():
    duration = parse_type("duration")
    assert type_option(4, duration)[:2] == b"\0\0"
    assert type_option(5, duration) == b"\0\x15"


@VERSIONS
def test_rows_are_understood_with_and_without_metadata(version):
    columns = specs("int", "text", "list<int>", "duration", "vector<float, 2>", "decimal")
    rows = [
        tuple(spec.type.serialize(value) for spec, value in zip(columns, row, strict=True))
        for row in [(1, "a", [1, 2], (1, 2, 3), [1.0, 2.0], decimal.Decimal("1.5")),
                    (-1, "", [], (0, 0, 0), [0.0, 0.5], decimal.Decimal("-7E+3"))]
    ]  # fmt: skip
    rows.append((None,) * 6)
    rows.append((b"", b"x" * 5000, *(None,) * 4))
    metadata = encode_rows_metadata(version, columns)
    body = responses.rows(metadata, rows)
    message = by_driver(version, Opcode.RESULT, body)
    assert message.column_names == [spec.name for spec in columns]
    assert message.parsed_rows[0][:3] == (1, "a", [1, 2])
    assert message.parsed_rows[1][5] == decimal.Decimal("-7E+3")
    assert message.parsed_rows[2] == (None,) * 6
    assert message.parsed_rows[0][4] == [1.0, 2.0]
    ours = by_client(version, Opcode.RESULT, body)
    assert ours.rows == tuple(rows)
    assert [spec.type.text for spec in ours.metadata.columns] == [spec.type.text for spec in columns]
    skipped = responses.rows(metadata, rows, skip_metadata=True, paging_state=b"next")
    message = by_driver(version, Opcode.RESULT, skipped, metadata=message.column_metadata)
    assert message.paging_state == b"next"
    assert len(message.parsed_rows) == 4
    ours = by_client(version, Opcode.RESULT, skipped)
    assert ours.metadata == client.Metadata((), 6, b"next", None)
    assert ours.rows == tuple(rows)


def test_changed_metadata_is_announced_with_its_id_even_when_the_client_asked_to_skip():
    metadata = encode_rows_metadata(5, specs("int"))
    body = responses.rows(metadata, [], skip_metadata=True, new_metadata_id=b"new", paging_state=b"p")
    message = by_driver(5, Opcode.RESULT, body)
    assert message.result_metadata_id == b"new"
    assert message.paging_state == b"p"
    assert message.column_metadata[0][2] == "c0"
    ours = by_client(5, Opcode.RESULT, body).metadata
    assert (ours.new_metadata_id, ours.paging_state, len(ours.columns)) == (b"new", b"p", 1)


@VERSIONS
def test_columns_of_several_tables_name_their_own(version):
    columns = [ColumnSpec("k1", "a", "x", parse_type("int")), ColumnSpec("k2", "b", "y", parse_type("text"))]
    body = responses.rows(encode_rows_metadata(version, columns), [(bytes(4), b"t")])
    message = by_driver(version, Opcode.RESULT, body)
    assert [entry[:3] for entry in message.column_metadata] == [("k1", "a", "x"), ("k2", "b", "y")]
    assert by_client(version, Opcode.RESULT, body).metadata.columns == tuple(columns)


@VERSIONS
def test_prepared_statements_are_understood(version):
    body = responses.prepared(version, b"id", specs("int", "text"), [1, 0], specs("uuid"), b"meta")
    message = by_driver(version, Opcode.RESULT, body)
    assert message.query_id == b"id"
    assert message.pk_indexes == (None if version == 3 else [1, 0])
    assert [column.name for column in message.bind_metadata] == ["c0", "c1"]
    assert message.column_metadata[0][3] is driver_types.UUIDType
    assert message.result_metadata_id == (b"meta" if version == 5 else None)
    ours = by_client(version, Opcode.RESULT, body)
    assert ours.bind == tuple(specs("int", "text"))
    assert ours.partition_key_indexes == (() if version == 3 else (1, 0))
    assert ours.result.columns == tuple(specs("uuid"))
    assert ours.result_metadata_id == (b"meta" if version == 5 else None)
    body = responses.prepared(version, b"id", [], [], [], b"meta")
    message = by_driver(version, Opcode.RESULT, body)
    keys = None if version == 3 else []
    assert (message.bind_metadata, message.pk_indexes, message.column_metadata) == ([], keys, None)
    assert by_client(version, Opcode.RESULT, body).result == client.Metadata((), 0)


def test_version_3_is_told_of_a_timeout_instead_of_a_failure():
    read = responses.error(3, errors.ReadFailure(4, 1, 2, 1, True, (("127.0.0.1", 1),)))
    message = by_driver(3, Opcode.ERROR, read)
    assert message.code == 0x1200
    assert (message.info["received_responses"], message.info["data_retrieved"]) == (1, True)
    write = responses.error(3, errors.WriteFailure(4, 0, 2, 1, "BATCH"))
    message = by_driver(3, Opcode.ERROR, write)
    assert (message.code, message.info["write_type"]) == (0x1100, cassandra.WriteType.BATCH)


@pytest.mark.parametrize("name", ["date", "time", "smallint", "tinyint"])
def test_version_3_names_small_types_by_their_class(name):
    body = responses.prepared(3, b"id", specs(name), [], [], b"")
    ours = by_client(3, Opcode.RESULT, body)
    assert ours.bind == tuple(specs(name))
    assert by_driver(3, Opcode.RESULT, body).bind_metadata[0].type.cassname.endswith("Type")


def test_trace_warnings_and_payload_stand_in_front():
    flags, body = responses.with_prefix(
        responses.VOID, trace_id=bytes(range(16)), warnings=["careful", "slow"], payload={"k": b"v"}
    )
    message = by_driver(4, Opcode.RESULT, body, flags)
    assert message.trace_id.bytes == bytes(range(16))
    assert message.warnings == ["careful", "slow"]
    assert message.custom_payload == {"k": b"v"}
    ours = client.decode_response(4, Opcode.RESULT, flags, body)
    assert ours == client.Response(client.VoidResult(), ("careful", "slow"), {"k": b"v"}, bytes(range(16)))
    assert responses.with_prefix(responses.VOID) == (0, responses.VOID)


RESULT_KINDS = st.integers(0, 6).map(lambda kind: kind.to_bytes(4, "big"))
EVENTS = st.sampled_from([b"\0\x0dSTATUS_CHANGE", b"\0\x0dSCHEMA_CHANGE", b""])
CODES = st.sampled_from([0, 0x1000, 0x1100, 0x1300, 0x1500, 0x2400, 0x2500]).map(
    lambda n: n.to_bytes(4, "big")
)


@pytest.mark.slow
@given(
    st.sampled_from([4, 5]),
    st.sampled_from([*(int(opcode) for opcode in Opcode), 0x42]),
    st.sampled_from([0, 2, 4, 8, 14]),
    st.builds(bytes.__add__, RESULT_KINDS | EVENTS | CODES, st.binary(max_size=60)),
)
@settings(max_examples=500)
def test_random_bodies_raise_nothing_but_protocol_violations(version, opcode, flags, body):
    try:
        found = client.decode_response(version, opcode, flags, body)
    except ProtocolViolation as error:
        assert error.message
    else:
        assert isinstance(found, client.Response)


@given(st.text("(),. ListTypeInt32VectorFrozenMapTuple1", max_size=30) | st.text(max_size=9))
@settings(max_examples=150)
def test_random_class_names_raise_nothing_but_protocol_violations(name):
    try:
        found = type_of_class(name)
    except ProtocolViolation as error:
        assert error.message
    else:
        assert found.name


@given(st.data(), st.sampled_from([4, 5]))
@settings(max_examples=100)
def test_every_truncation_of_rows_is_a_protocol_violation(data, version):
    metadata = encode_rows_metadata(version, specs("int", "vector<int, 2>", "map<int, text>"))
    body = responses.rows(metadata, [(b"abcd", None, b"x"), (None, b"y", b"z")], paging_state=b"p")
    length = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolViolation):
        client.decode_response(version, Opcode.RESULT, 0, body[:length])


def test_consistency_levels_agree_with_the_driver():
    for level in Consistency:
        assert cassandra.ConsistencyLevel.value_to_name[int(level)] == level.name


def test_types_nested_as_deep_as_clients_test_them_are_described():
    deep = "frozen<tuple<" * 32 + "int" + ">>" * 32
    body = responses.prepared(5, b"id", specs(deep), [], [], b"")
    assert by_client(5, Opcode.RESULT, body).bind[0].type.name == "tuple"
