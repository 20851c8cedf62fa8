"""Tablet options: what is read, and what is refused with which reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.schema.tablet_options import (
    TABLET_COUNT_MAX,
    KeyspaceTablets,
    TabletHints,
    contradictions,
    power_at_least,
    power_at_most,
    read_hints,
    read_keyspace,
)


@pytest.mark.parametrize(
    ("given_options", "mode", "wanted"),
    [
        ({}, "disabled", KeyspaceTablets(False, 0)),
        ({}, "enabled", KeyspaceTablets(True, 0)),
        ({}, "enforced", KeyspaceTablets(True, 0)),
        ({"enabled": "true", "initial": "8"}, "disabled", KeyspaceTablets(True, 8)),
        ({"enabled": "TRUE"}, "disabled", KeyspaceTablets(True, 0)),
        ({"initial": "8"}, "disabled", KeyspaceTablets(True, 8)),
        ({"enabled": "false"}, "enabled", KeyspaceTablets(False, 0)),
        ({"enabled": "false", "initial": "0"}, "disabled", KeyspaceTablets(False, 0)),
    ],
)
def test_options_of_keyspaces(given_options: dict[str, str], mode: str, wanted: KeyspaceTablets) -> None:
    assert read_keyspace(given_options, mode) == (wanted, ())


@pytest.mark.parametrize(
    ("given_options", "mode", "reason"),
    [
        ({"enabled": "maybe"}, "enabled", "enabled is true or false, not 'maybe'"),
        ({"enabled": "false"}, "enforced", "tablets are enforced"),
        ({"enabled": "false", "initial": "4"}, "enabled", "they are not enabled"),
        ({"enabled": "true", "initial": "-1"}, "enabled", "initial is a whole number that is not negative"),
        ({"enabled": "true", "initial": "1.5"}, "enabled", "initial is a whole number"),
        ({"enabled": "true", "initial": "²"}, "enabled", "initial is a whole number"),
        ({"enabled": "true", "initial": "9" * 5000}, "enabled", f"initial is at most {TABLET_COUNT_MAX}"),
        ({"enabled": "true", "initial": str(TABLET_COUNT_MAX + 1)}, "enabled", "initial is at most"),
        ({"enabeld": "true"}, "enabled", "unknown tablet option 'enabeld'"),
    ],
)
def test_bad_options_of_keyspaces(given_options: dict[str, str], mode: str, reason: str) -> None:
    _, reasons = read_keyspace(given_options, mode)
    assert len(reasons) == 1 and reason in reasons[0]


def test_hints_are_read_and_written() -> None:
    texts = {
        "min_tablet_count": "16",
        "max_tablet_count": "64",
        "expected_data_size_in_gb": "1000.5",
        "min_per_shard_tablet_count": "0.5",
    }
    hints, reasons = read_hints(texts)
    assert not reasons and hints == TabletHints(16, 64, 1000.5, 0.5) and hints.texts() == texts
    assert read_hints({}) == (TabletHints(), ()) and TabletHints().texts() == {}


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (
            {"min_tablet_count": "9", "max_tablet_count": "4"},
            "min_tablet_count = 9 is above max_tablet_count = 4",
        ),
        ({"min_tablet_count": "9", "max_tablet_count": "15"}, "no power of two lies between"),
        ({"expected_data_size_in_gb": "nan"}, "is a number that is not negative"),
        ({"expected_data_size_in_gb": "inf"}, "is a number that is not negative"),
        ({"expected_data_size_in_gb": "-1"}, "is a number that is not negative"),
        ({"expected_data_size_in_gb": "much"}, "is a number that is not negative"),
        ({"expected_data_size_in_gb": "1e300"}, "expected_data_size_in_gb is at most"),
        ({"min_per_shard_tablet_count": "1001"}, "min_per_shard_tablet_count is at most 1000"),
        ({"initial": "3"}, "unknown tablet option 'initial'"),
    ],
)
def test_bad_hints(texts: dict[str, str], reason: str) -> None:
    _, reasons = read_hints(texts)
    assert len(reasons) == 1 and reason in reasons[0]


def test_hints_need_tablets_and_agree_with_the_keyspace() -> None:
    assert "spread by the ring" in read_hints({"min_tablet_count": "4"}, is_enabled=False)[1][0]
    assert read_hints({}, is_enabled=False)[1] == ()
    assert "initial = 128 of the keyspace" in contradictions(TabletHints(0, 64), 128)[0]
    assert not contradictions(TabletHints(64, 64), 64)


@given(st.integers(1, 1 << 40))
def test_powers_of_two(count: int) -> None:
    above, below = power_at_least(count), power_at_most(count)
    assert below <= count <= above and above & (above - 1) == below & (below - 1) == 0
    assert above < 2 * count and count < 2 * below
    assert power_at_least(count - 0.5) == above or count == below
