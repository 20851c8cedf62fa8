"""A value as a stream of pieces and as a file, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.extensions import EXTENSIONS, extensions_of
from lockstep.metadata.log import snapshot, snapshot_file
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.recent_ids import RECENT_IDS
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.log.snapshot_file import SnapshotFileReader, file_records, header_of, read_file
from lockstep.metadata.part import END_NUMBER
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transformations import SetExtension
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile
from lockstep.values.ids import NodeId
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX
from tests.metadata.histories import History, network, simple, started
from tests.metadata.stored import REGISTERED, stored
from tests.metadata.test_log import register


def history() -> History:
    made = started([(0,), (100,)], ("one", simple(1)), ("two", network(dc1=2)))
    made.submit(register(7))
    made.submit(PrepareOperation(Bootstrap(NodeId(3), (50, 70))))
    for number in range(5):
        made.submit(SetExtension(f"name-{number}", bytes(number * 100_000 + 1)))
    return made


def decoded(stream: bytes, step: int) -> ClusterMetadata:
    decoder = SnapshotDecoder(registered=REGISTERED)
    for at in range(0, len(stream), step):
        decoder.feed(stream[at : at + step])
    return decoder.finish()


def test_a_value_survives_the_stream_whatever_the_cuts() -> None:
    value = history().now
    cut = list(pieces(value))
    assert len(cut) > 3 and max(map(len, cut)) <= SNAPSHOT_PIECE_BYTES_MAX
    stream = b"".join(cut)
    for step in (1_000, 4_097, len(stream)):
        again = decoded(stream, step)
        assert again == value
        assert stored(again) == stored(value)
        assert state_digest(again) == state_digest(value)


Stored = list[tuple[tuple[int, int], Any]]


def stream_of(items: Stored) -> bytes:
    """Well-formed items, whatever they say; bytes stand for themselves."""
    found = b""
    for (number, kind), value in [*items, ((END_NUMBER, 0), len(items))]:
        data = value if isinstance(value, bytes) else encode(value)
        found += struct.pack(">IBB", len(data), number, kind) + data
    return found


def test_well_formed_items_that_make_no_value_are_refused_as_damage() -> None:
    items = list(snapshot.items(small().now))
    assert decoded(stream_of(items), 100) == small().now
    first_id = (RECENT_IDS.number, 0)
    place = next(at for at, (where, _) in enumerate(items) if where == first_id)

    def with_first(number: int) -> Stored:
        return [*items[:place], (first_id, number), *items[place + 1 :]]

    ranges = next(at for at, (where, _) in enumerate(items) if where == (PLACEMENTS.number, 1))
    no_text = ((EXTENSIONS.number, 0), b"\x92\xa2\xff\xfe\xc4\x01a")
    wrongs: list[Stored] = [
        with_first(-5),
        with_first(2**64 - 1),
        [*items[:place], no_text, *items[place:]],
        [item for item in items if item[0][0] != SCHEMA.number],
        [item for item in items if item[0] != (PLACEMENTS.number, 0)],
        [*items[:ranges], items[ranges], *items[ranges:]],
        [items[0], *items],
        [items[0], *items[:0:-1]],
    ]
    for wrong in wrongs:
        with pytest.raises(CorruptFile):
            decoded(stream_of(wrong), 100)


def test_items_out_of_order_are_refused_as_damage() -> None:
    items = list(snapshot.items(history().now))
    sections = [section for section, _ in items]
    ring, ranges = (PLACEMENTS.number, 0), (PLACEMENTS.number, 1)
    assert decoded(stream_of(items), 1_000) == history().now
    for at in range(len(items) - 1):
        before, after = sections[at], sections[at + 1]
        swapped = [*items[:at], items[at + 1], items[at], *items[at + 2 :]]
        if (before, after) != (after, before) and (before, after) != (ranges, ring):
            with pytest.raises(CorruptFile):
                decoded(stream_of(swapped), 1_000)
    for wrong in (
        items[1:],
        [items[0], *items],
        [*items, items[1]],
        [one for one in items if one[0][0] != SCHEMA.number],
    ):
        with pytest.raises(CorruptFile):
            decoded(stream_of(wrong), 1_000)


def test_equal_values_give_equal_streams() -> None:
    value = history().now
    other = value.changed(EXTENSIONS.set(extensions_of(reversed(value.extensions.items()))))
    assert b"".join(pieces(other)) == b"".join(pieces(value)) == b"".join(pieces(history().now))
    assert b"".join(pieces(history().values[-2])) != b"".join(pieces(value))


def small() -> History:
    made = started([(0,), (100,)], ("one", simple(1)))
    made.submit(register(7))
    return made


STREAM = b"".join(pieces(small().now))
SMALL = small()
FILE = b"".join(file_records(SMALL.values[-3], SMALL.entries[-2:], header=header_of(SMALL.values[-3])))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(STREAM) - 1))
def test_a_shortened_stream_is_refused(size: int) -> None:
    with pytest.raises(CorruptFile):
        decoded(STREAM[:size], 512)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(FILE) - 1), st.integers(0, 7))
def test_a_file_with_one_flipped_bit_is_refused(at: int, bit: int) -> None:
    damaged = bytearray(FILE)
    damaged[at] ^= 1 << bit
    with pytest.raises(CorruptFile):
        read_file([bytes(damaged)], REGISTERED)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(FILE) - 1))
def test_a_shortened_or_lengthened_file_is_refused(size: int) -> None:
    for wrong in (FILE[:size], FILE + FILE[:1], FILE + FILE):
        with pytest.raises(CorruptFile):
            read_file([wrong], REGISTERED)


def test_a_file_says_what_it_holds_and_checks_it() -> None:
    content = read_file([FILE[:77], FILE[77:]], REGISTERED)
    assert content.value == SMALL.values[-3] and list(content.entries) == SMALL.entries[-2:]
    assert content.header.digest == state_digest(content.value)
    value = SMALL.values[-3]
    forged = msgspec.structs.replace(header_of(value), digest=bytes(32))
    with pytest.raises(CorruptFile, match="digest"):
        read_file(file_records(value, header=forged), REGISTERED)
    with pytest.raises(CorruptFile, match="follows epoch"):
        read_file(file_records(value, SMALL.entries[-1:], header=header_of(value)), REGISTERED)
    with pytest.raises(CorruptFile, match="header names"):
        read_file(file_records(value, header=header_of(SMALL.values[-1])), REGISTERED)


def test_entries_come_in_bounded_groups_and_in_order() -> None:
    big = [msgspec.structs.replace(SMALL.entries[0], body=bytes(3 * 1024 * 1024))] * 5
    groups = list(snapshot_file.entry_batches(big))
    assert [len(group) for group in groups] == [2, 2, 1]
    assert sum(map(len, snapshot_file.entry_batches([SMALL.entries[0]] * 1000))) == 1000
    assert max(map(len, snapshot_file.entry_batches([SMALL.entries[0]] * 1000))) == 256
    assert list(snapshot_file.entry_batches([])) == []


def test_the_reader_says_what_it_wants_next() -> None:
    reader = SnapshotFileReader(REGISTERED)
    reader.feed(FILE[:10])
    assert reader.bytes_read == 10 and reader.header is None
    reader.feed(FILE[10:])
    assert reader.bytes_read == len(FILE) and reader.header is not None
