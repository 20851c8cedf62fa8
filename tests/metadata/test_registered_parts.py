"""A part of the metadata is one module and one registration: everything else goes through the registry."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from lockstep.metadata.cluster import PARTS, ClusterMetadata
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.apply import diff, part_digests, state_digest
from lockstep.metadata.log.comparison import Difference
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot_file import dump_file, load_file
from lockstep.metadata.part import Part, Parts, Registered, struct_part, tuple_part
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension
from lockstep.values.errors import CorruptFile
from tests.metadata.histories import History, founder
from tests.metadata.stored import from_stored, stored

# ---- all that a room writes for a part of its own -------------------------------------------------------


class Note(msgspec.Struct, frozen=True, array_like=True, dict=True):
    name: str
    text: str


def _validate(now: Parts, before: Parts | None) -> None:
    names = [note.name for note in now[REQUEST_TRACE]]
    assert names == sorted(set(names)), "notes are sorted by name"
    assert not now[SERVICE].frozen or not names, "a frozen service has no notes"


REQUEST_TRACE: Final[Part[tuple[Note, ...]]] = tuple_part("notes", 200, Note, _validate, (SERVICE,))


class SetNotes(msgspec.Struct, frozen=True, array_like=True):
    notes: tuple[Note, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return cluster.changed(REQUEST_TRACE.set(self.notes))


REGISTRY = Registry(KINDS, {900: SetNotes}, parts=(REQUEST_TRACE,))

# ---- and what comes of it -------------------------------------------------------------------------------

A, B = Note("a", "one"), Note("b", "two")


def history() -> History:
    made = History(REGISTRY)
    made.submit(Initialize("id", "name", (founder(1, (0,)),)))
    made.submit(SetNotes((A,)))
    made.submit(SetExtension("x", b"1"))
    made.submit(SetNotes((A, B)))
    return made


def test_a_part_is_applied_digested_stored_dumped_and_replayed() -> None:
    made = history()
    assert made.now.parts[REQUEST_TRACE] == (A, B) and made.replayed() == made.now
    digests = [dict(part_digests(value)) for value in made.values]
    assert digests[1]["notes"] != digests[2]["notes"] == digests[3]["notes"] != digests[4]["notes"]
    again = from_stored(stored(made.now), REGISTRY.parts)
    assert again == made.now and state_digest(again) == state_digest(made.now)
    loaded = load_file(dump_file(made.values[2], made.entries[2:]), REGISTRY)
    assert loaded.value == made.now


def test_a_part_is_compared_by_its_name() -> None:
    made = history()
    found = [line for line in diff(made.values[3], made.now) if line.path.startswith("notes")]
    assert found == [Difference("notes[b]", "-", "Note(name=b, text=two)")]


def test_an_unchanged_part_stays_the_identical_object() -> None:
    made = history()
    before, after = made.values[2], made.values[3]
    assert before.parts.is_same(after.parts, REQUEST_TRACE)
    assert before.changed(REQUEST_TRACE.set(before.parts[REQUEST_TRACE])).parts is before.parts


def test_a_part_is_checked_when_it_or_what_it_needs_changes() -> None:
    now = history().now
    with pytest.raises(AssertionError, match="sorted by name"):
        now.changed(REQUEST_TRACE.set((B, A))).validate(now)
    frozen = now.changed(SERVICE.set(msgspec.structs.replace(now.service, frozen="why")))
    with pytest.raises(AssertionError, match="no notes"):
        frozen.validate(now)
    # Nothing it is about has changed, so nobody looks.
    wrong = now.changed(REQUEST_TRACE.set((B, A)))
    wrong.validate(wrong)
    with pytest.raises(AssertionError, match="sorted by name"):
        wrong.validate()


def test_who_does_not_know_a_part_reads_no_value_that_has_it() -> None:
    with pytest.raises(CorruptFile, match="no item of a snapshot"):
        from_stored(stored(history().now))


NUMBERS: dict[str, tuple[str, int]] = {
    "number is registered twice": ("other", REQUEST_TRACE.number),
    "name is registered twice": ("notes", 201),
    "snapshots have use for number 255": ("other", 255),
}


@pytest.mark.parametrize("message", NUMBERS)
def test_numbers_and_names_are_unique(message: str) -> None:
    name, number = NUMBERS[message]
    with pytest.raises(AssertionError, match=message):
        Registered(PARTS, (REQUEST_TRACE, struct_part(name, number, A)))


def test_a_part_of_another_registry_cannot_be_set() -> None:
    other: Part[Any] = struct_part("other", REQUEST_TRACE.number, A)
    with pytest.raises(AssertionError, match="is notes, not other"):
        history().now.changed(other.set(B))


def test_numbers_of_parts_are_stable() -> None:
    assert [(part.number, part.name) for part in REGISTRY.parts.empty.listed()] == [
        (1, "identity"),
        (2, "directory"),
        (3, "schema"),
        (4, "placements"),
        (5, "operations"),
        (6, "service"),
        (7, "extensions"),
        (8, "requests"),
        (9, "excluded"),
        (10, "degraded"),
        (11, "features"),
        (12, "generations"),
        (13, "repairs"),
        (14, "access"),
        (15, "recent_ids"),
        (16, "transitions"),
        (17, "tablets"),
        (20, "lineage"),
        (21, "management_place"),
        (24, "ring"),
        (25, "loads"),
        (45, "streams"),
        (200, "notes"),
    ]
