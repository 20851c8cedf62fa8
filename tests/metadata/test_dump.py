"""Dumps: what they hold, what they prove."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.log.snapshot_file import dump_file, file_records, header_of, load_file
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension
from lockstep.values.errors import CannotApply, CorruptFile
from tests.metadata.histories import History, founder

REGISTRY = Registry(KINDS, SNAPSHOT_KINDS)


def history() -> History:
    made = History(REGISTRY)
    made.submit(Initialize("id", "name", (founder(1, (0,)),)))
    for number in range(4):
        made.submit(SetExtension(f"before-{number}", b"1"))
    made.submit(TakeSnapshot("test"))
    made.submit(SetExtension("after", b"2"))
    return made


def test_a_dump_of_one_value_gives_it_back() -> None:
    made = history()
    loaded = load_file(dump_file(made.values[4]), REGISTRY)
    assert loaded.value == loaded.base == made.values[4]
    assert loaded.entries == () and loaded.snapshot is None


@pytest.mark.parametrize("base", [0, 3, 5, 6])
def test_a_dump_with_entries_proves_its_end_and_finds_its_snapshot(base: int) -> None:
    made = history()
    loaded = load_file(dump_file(made.values[base], made.entries[base:]), REGISTRY)
    assert state_digest(loaded.value) == state_digest(made.now)
    found = loaded.snapshot
    if base == 6:
        assert found is None
    else:
        assert found is not None and (found[0].epoch, found[1].epoch) == (5, 6)
        assert found[1].kind == EntryKind.SNAPSHOT


def test_the_file_of_a_snapshot_is_a_dump() -> None:
    made = history()
    value, entry = made.values[5], made.entries[5]
    loaded = load_file(file_records(value, header=header_of(value, entry)), REGISTRY)
    assert loaded.value == made.values[6] and loaded.snapshot == (value, entry)


def test_a_forged_dump_is_refused() -> None:
    made = history()
    entries = [*made.entries[:3], msgspec.structs.replace(made.entries[3], actor="mallory")]
    with pytest.raises(CorruptFile, match="hash"):
        load_file(dump_file(made.values[0], entries), REGISTRY)
    with pytest.raises(CannotApply, match="not known"):
        load_file(dump_file(made.values[0], made.entries), Registry(KINDS))
