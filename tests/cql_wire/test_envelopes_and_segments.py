"""Framing: envelopes, v5 segments and compression, against the drivers' own framing."""

from __future__ import annotations

import contextlib
import io
import itertools

import lz4.block
import pytest
from cassandra.segment import SegmentCodec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire.constants import FLAG_COMPRESSED, Opcode
from lockstep.cql.wire.frames import (
    PAYLOAD_BYTES_MAX,
    SNAPPY,
    Envelope,
    EnvelopeReader,
    EnvelopeRefused,
    SegmentReader,
    compress_body,
    decompress_body,
    encode_envelope,
    encode_request,
    encode_segments,
)
from lockstep.values.errors import ProtocolViolation


def driver_compress(data):
    return len(data).to_bytes(4, "big") + lz4.block.compress(data, store_size=False)


def driver_decompress(data):
    return lz4.block.decompress(data[4:], uncompressed_size=int.from_bytes(data[:4], "big"))


def driver_codec(compressed):
    return SegmentCodec(driver_compress, driver_decompress) if compressed else SegmentCodec()


def driver_segments(codec, message):
    buffer = io.BytesIO()
    codec.encode(buffer, message)
    return buffer.getvalue()


def driver_payload(codec, data):
    buffer, out = io.BytesIO(data), []
    while buffer.tell() < len(data):
        header = codec.decode_header(buffer)
        out.append(codec.decode(buffer, header))
    return out


def cut(data, places):
    """The data in pieces cut at the places (any integers)."""
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


ENVELOPES = st.builds(
    Envelope,
    st.sampled_from([4, 5]),
    st.sampled_from([0, 2, 8]),
    st.integers(-32768, 32767),
    st.sampled_from([int(opcode) for opcode in Opcode]),
    st.binary(max_size=60),
)


@given(st.lists(ENVELOPES, max_size=5), st.lists(st.integers(0, 1000), max_size=6), st.booleans())
@settings(max_examples=150)
def test_envelopes_survive_any_cut_of_the_stream(envelopes, places, responses):
    encode = encode_envelope if responses else encode_request
    data = b"".join(encode(e.version, e.opcode, e.stream, e.body, e.flags) for e in envelopes)
    reader = EnvelopeReader(responses=responses)
    found = [envelope for piece in cut(data, places) for envelope in reader.feed(piece)]
    assert found == envelopes
    assert reader.pending_bytes == 0


def test_a_v4_body_compressed_as_drivers_do_it_arrives_plain():
    body = b"select " * 50
    assert driver_decompress(compress_body(body)) == body
    data = encode_request(4, Opcode.QUERY, 3, driver_compress(body), FLAG_COMPRESSED)
    (envelope,) = EnvelopeReader().feed(data)
    assert envelope.body == body
    (again,) = EnvelopeReader().feed(encode_request(4, Opcode.QUERY, 3, body, compress=True))
    assert again.body == body


@pytest.mark.parametrize("version", [1, 2, 7, 65, 66])
def test_an_unknown_version_is_refused_at_once_with_the_phrase_drivers_look_for(version):
    header = bytes((version, 0, 0, 7, 5, 0, 0, 0, 0))
    with pytest.raises(
        EnvelopeRefused, match=r"Invalid or unsupported protocol version \(\d+\).*3/v3, 4/v4, 5/v5, 6/v6-beta"
    ) as caught:
        EnvelopeReader().feed(header)
    assert caught.value.stream == (7 if version > 2 else 0)
    with pytest.raises(EnvelopeRefused):
        EnvelopeReader().feed(header[:8])


def test_other_versions_directions_and_sizes_are_refused():
    reader = EnvelopeReader(bytes_max=100)
    reader.version = 5
    with pytest.raises(EnvelopeRefused, match="previous messages on this connection had version 5/v5"):
        reader.feed(encode_request(4, Opcode.OPTIONS, 0, b""))
    with pytest.raises(EnvelopeRefused, match="direction"):
        EnvelopeReader().feed(encode_envelope(5, Opcode.READY, 0, b""))
    with pytest.raises(EnvelopeRefused, match="length 101 exceeds maximum allowed length 100") as caught:
        EnvelopeReader(bytes_max=100).feed(encode_request(4, Opcode.QUERY, 9, bytes(101))[:9])
    assert caught.value.stream == 9


def test_a_compressed_body_that_claims_too_much_is_refused_before_it_is_unpacked():
    body = (1 << 30).to_bytes(4, "big") + b"\x10a"
    with pytest.raises(ProtocolViolation, match="exceeds maximum"):
        EnvelopeReader().feed(encode_request(4, Opcode.QUERY, 0, body, FLAG_COMPRESSED))
    with pytest.raises(ProtocolViolation):
        EnvelopeReader().feed(encode_request(4, Opcode.QUERY, 0, b"\0\0\0\x09junk", FLAG_COMPRESSED))
    with pytest.raises(ProtocolViolation):
        EnvelopeReader().feed(encode_request(5, Opcode.QUERY, 0, body, FLAG_COMPRESSED))


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=60)
def test_segments_equal_the_drivers(message, compressed):
    codec = driver_codec(compressed)
    if message:
        assert encode_segments([message], compress=compressed) == driver_segments(codec, message)
    assert SegmentReader(compressed=compressed).feed(driver_segments(codec, message)) == message


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 9, PAYLOAD_BYTES_MAX - 8, 300_000])
def test_an_envelope_over_many_segments_is_joined(compressed, size):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    codec = driver_codec(compressed)
    data = encode_segments([encode_request(5, Opcode.QUERY, 1, body)], compress=compressed)
    segments = driver_payload(codec, data)
    assert all(segment.is_self_contained == (len(segments) == 1) for segment in segments)
    reader, envelopes = SegmentReader(compressed=compressed), EnvelopeReader()
    driver_data = driver_segments(codec, encode_request(5, Opcode.QUERY, 1, body))
    found = [
        e for piece in cut(driver_data, [7, 70_000, 140_000]) for e in envelopes.feed(reader.feed(piece))
    ]
    assert [envelope.body for envelope in found] == [body]


@given(
    st.lists(st.sampled_from([9, 40, 60_000, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1]), max_size=6),
    st.booleans(),
    st.lists(st.integers(0, 400_000), max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_small_envelopes_share_segments_and_all_arrive_in_order(sizes, compressed, places):
    envelopes = [bytes((index + 1,)) * size for index, size in enumerate(sizes)]
    data = encode_segments(envelopes, compress=compressed)
    reader = SegmentReader(compressed=compressed)
    assert b"".join(reader.feed(piece) for piece in cut(data, places)) == b"".join(envelopes)
    assert reader.pending_bytes == 0


def test_many_small_envelopes_travel_in_one_segment():
    data = encode_segments([b"x" * 100] * 1000)
    assert len(driver_payload(SegmentCodec(), data)) == 1


@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
@settings(max_examples=150)
def test_any_flipped_bit_is_noticed_before_a_payload_leaves(place, mask, compressed):
    payload = b"insert into t " * 20
    data = bytearray(encode_segments([payload], compress=compressed))
    data[place % len(data)] ^= mask
    reader = SegmentReader(compressed=compressed)
    with pytest.raises(ProtocolViolation):
        reader.feed(bytes(data))


@given(st.binary(max_size=80), st.booleans())
@settings(max_examples=200)
def test_random_bytes_raise_nothing_but_protocol_violations(data, compressed):
    for reader in (EnvelopeReader(), EnvelopeReader(responses=True), SegmentReader(compressed=compressed)):
        try:
            whole = [*reader.feed(data), *reader.feed(data)]
        except ProtocolViolation as error:
            assert error.message
        else:
            assert len(whole) <= 2 * len(data), "nothing is made of no bytes"


def test_the_beta_version_needs_its_flag_in_every_request():
    from lockstep.cql.wire.constants import FLAG_BETA

    with pytest.raises(EnvelopeRefused, match="USE_BETA flag is unset"):
        EnvelopeReader().feed(encode_request(6, Opcode.OPTIONS, 3, b""))
    (envelope,) = EnvelopeReader().feed(encode_request(6, Opcode.OPTIONS, 3, b"", FLAG_BETA))
    assert envelope.version == 6


def test_snappy_blocks_are_plain_ones_and_bounded() -> None:
    # A literal of three bytes, as the format's description has it.
    assert decompress_body(b"\x03\x08abc", 3, SNAPPY) == b"abc"
    body = bytes(range(256)) * 40
    assert decompress_body(compress_body(body, SNAPPY), len(body), SNAPPY) == body
    assert decompress_body(compress_body(b"", SNAPPY), 0, SNAPPY) == b""
    with pytest.raises(ProtocolViolation, match="too big"):
        decompress_body(compress_body(body, SNAPPY), len(body) - 1, SNAPPY)
    with pytest.raises(ProtocolViolation, match="too big"):
        decompress_body(b"\xff\xff\xff\xff\x0f", 1 << 20, SNAPPY)
    for damaged in (b"", b"\xff" * 9, b"\x05\x08abc", b"\x03\x08ab", b"\x03"):
        with pytest.raises(ProtocolViolation):
            decompress_body(damaged, 1 << 20, SNAPPY)


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reading_of_snappy_blocks(data: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        assert len(decompress_body(data, 1000, SNAPPY)) <= 1000
