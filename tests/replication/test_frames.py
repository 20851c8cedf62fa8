from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.internode.frames import HEADER_BYTES, Envelope, FrameReader, encode_frame
from lockstep.internode.verbs import decode_error, encode_error
from lockstep.values import errors

ENVELOPES = st.builds(
    Envelope,
    verb=st.integers(1, 50),
    stream=st.integers(0, 2**40),
    epoch=st.integers(0, 2**40),
    flags=st.sampled_from([0, 1, 2, 4]),
    body=st.binary(max_size=300),
)


def frame(envelope: Envelope) -> bytes:
    return encode_frame(envelope.verb, envelope.stream, envelope.epoch, envelope.flags, envelope.body)


@settings(max_examples=60, deadline=None)
@given(st.lists(ENVELOPES, max_size=6), st.lists(st.integers(0, 2000), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_frames(envelopes: list[Envelope], cuts: list[int]) -> None:
    data = b"".join(frame(envelope) for envelope in envelopes)
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = FrameReader()
    found = [
        envelope for left, right in itertools.pairwise(bounds) for envelope in reader.feed(data[left:right])
    ]
    assert found == envelopes


def test_one_byte_at_a_time_gives_the_frames() -> None:
    envelopes = [Envelope(1, 7, 9, 0, b"x" * 20), Envelope(2, 8, 9, 1, b"")]
    reader = FrameReader()
    data = b"".join(frame(envelope) for envelope in envelopes)
    found = [envelope for i in range(len(data)) for envelope in reader.feed(data[i : i + 1])]
    assert found == envelopes


@settings(max_examples=60, deadline=None)
@given(ENVELOPES, st.data())
def test_a_flipped_bit_is_never_delivered(envelope: Envelope, data: st.DataObject) -> None:
    good = frame(envelope)
    at = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    bad = good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :]
    with pytest.raises(errors.FrameCorrupt):
        FrameReader().feed(bad)


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF])
def test_an_impossible_length_is_refused_before_the_body_arrives(length: int) -> None:
    with pytest.raises(errors.FrameCorrupt):
        head = length.to_bytes(4, "big") + (length ^ 0xFFFFFFFF).to_bytes(4, "big")
        FrameReader().feed(head + bytes(HEADER_BYTES - 8))


@pytest.mark.parametrize("bit", range(64))
def test_a_damaged_length_is_noticed_before_the_bytes_that_it_claims(bit: int) -> None:
    frame = bytearray(encode_frame(1, 1, 1, 0, b"body"))
    frame[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(errors.FrameCorrupt):
        FrameReader().feed(bytes(frame[:HEADER_BYTES]))


def test_a_large_frame_in_pieces_is_joined_once() -> None:
    big = Envelope(1, 1, 1, 0, bytes(3_000_000))
    data = frame(big)
    reader = FrameReader()
    found = []
    for at in range(0, len(data), 65536):
        found += reader.feed(data[at : at + 65536])
    assert found == [big]


@pytest.mark.parametrize(
    "error",
    [
        errors.StaleEpoch(17),
        errors.NotReplica("not here"),
        errors.SessionClosed("closed"),
        errors.Rejected("no", cql_code=0x2400, epoch=3, keyspace="k", table="t", hint="try"),
        errors.NotLeader(None),
        errors.NotLeader(4),
        errors.AlreadyExists("there", "k", "t"),
        errors.WriteTimeout(4, 1, 2, "SIMPLE"),
        errors.CorruptFile("p", 3, "why"),
        errors.OutcomeUnknown("maybe"),
    ],
)
def test_errors_survive_the_wire(error: errors.LockstepError) -> None:
    back = decode_error(encode_error(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)
    assert back.render() == error.render()
