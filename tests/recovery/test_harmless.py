"""Entries that only a node that was away has, and that make no difference."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.metadata.load_entries import BeginLoad, CommitLoad, EndLoad
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.transformations import SetExtension
from lockstep.recovery.harmless import LEASES, UPKEEP, waived
from tests.recovery.support import REGISTRY

SHORT = BeginLoad("job", "k", "t", at_ms=1_000, lease_ms=500)
LONG = BeginLoad("other", "k", "t", at_ms=1_000, lease_ms=5_000)


def entries(*changes: Any) -> list[LogEntry]:
    made = []
    for epoch, change in enumerate(changes, 1):
        kind, body = REGISTRY.encode(change)
        made.append(
            seal(
                epoch=epoch,
                entry_id=epoch.to_bytes(16, "big"),
                kind=kind,
                body=body,
                actor="",
                commit_time_us=1,
                term=1,
                previous_hash=bytes(32),
            )
        )
    return made


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ((TakeSnapshot("often"),), f"{UPKEEP} (1)"),
        ((TakeSnapshot("often"), TruncateLog(3)), f"{UPKEEP} (2)"),
        ((SHORT, EndLoad("job", "enough")), f"{LEASES} (2)"),
        ((SHORT, TakeSnapshot("often")), f"{LEASES} (1), {UPKEEP} (1)"),
        ((LONG,), ""),
        ((SHORT, LONG), ""),
        ((SHORT, CommitLoad("job", b"", 1)), ""),
        ((SetExtension("a", b"1"),), ""),
        ((TakeSnapshot("often"), SetExtension("a", b"1")), ""),
    ],
)
def test_12_all_are_of_a_class_or_none_is_waived(changes: tuple[Any, ...], told: str) -> None:
    assert waived(entries(*changes), REGISTRY, now_ms=2_000) == told


def test_12_a_lease_that_runs_is_a_difference_until_it_has_run_out() -> None:
    assert waived(entries(LONG), REGISTRY, now_ms=6_000) == ""
    assert waived(entries(LONG), REGISTRY, now_ms=6_001) == f"{LEASES} (1)"
