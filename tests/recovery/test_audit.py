"""The audit of repairs: what is missing or changed in it is seen."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.recovery.audit import Recorded, Step, Told, follow, hash_of, problem_in


def audited(count: int = 4) -> list[Recorded]:
    records: list[Recorded] = []
    for number in range(count):
        told = Told(Step.PREPARED, "operator", f"record {number}", "attempt", "cluster")
        records.append(follow(records[-1] if records else None, told, number))
    return records


def test_records_that_follow_each_other_are_whole() -> None:
    assert problem_in([]) is None
    assert problem_in(audited()) is None


@pytest.mark.parametrize("at", range(3))
def test_a_record_that_is_missing_is_seen(at: int) -> None:
    records = audited()
    del records[at]
    assert problem_in(records) is not None


@pytest.mark.parametrize("name", ["at_us", "step", "actor", "text", "attempt", "cluster_id"])
def test_a_record_that_was_changed_is_seen(name: str) -> None:
    records = audited()
    value = 99 if name == "at_us" else "another"
    forged = msgspec.structs.replace(records[1], **{name: value})
    records[1] = forged
    assert "does not have the hash" in (problem_in(records) or "")
    records[1] = msgspec.structs.replace(forged, hash=hash_of(forged))
    assert "record 3 follows another one" in (problem_in(records) or "")


def test_records_in_another_order_are_seen() -> None:
    records = audited()
    records[1], records[2] = records[2], records[1]
    assert problem_in(records) is not None
