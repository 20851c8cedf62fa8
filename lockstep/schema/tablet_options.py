"""Tablet options of keyspaces and tables as values, and what is wrong with options that somebody gave.

Invariant: options that were read without reasons against them contradict neither themselves nor the bounds
here; 0 stands for an option that nobody gave. Nothing here changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from lockstep.values.errors import Rejected

#: Tablets of one table: a map of as many takes some 90 MiB on every node, and the whole cluster is made for
#: a few hundred thousand.
TABLET_COUNT_MAX: Final = 1 << 18
#: Data that somebody expects in one table, in GiB: a thousand nodes with a hundred terabytes each.
EXPECTED_GB_MAX: Final = 100 * 1024 * 1024
#: Tablet replicas of one table on one shard that somebody asks for; ten times the goal for all together.
PER_SHARD_MAX: Final = 1000

ENABLED: Final = "enabled"
INITIAL: Final = "initial"
MIN_COUNT: Final = "min_tablet_count"
MAX_COUNT: Final = "max_tablet_count"
EXPECTED_SIZE: Final = "expected_data_size_in_gb"
MIN_PER_SHARD: Final = "min_per_shard_tablet_count"


class KeyspaceTablets(msgspec.Struct, frozen=True, array_like=True):
    """Whether tables of a keyspace are spread by tablets, and with how many of them a table begins; 0: with
    as many as hints and the size of the cluster ask for. `from_ring`: its tables lay on the ring before, and
    may go back there."""

    enabled: bool = False
    initial: int = 0
    from_ring: bool = False


class TabletHints(msgspec.Struct, frozen=True, array_like=True):
    """What somebody said of one table."""

    min_tablet_count: int = 0
    max_tablet_count: int = 0
    expected_data_size_in_gb: float = 0.0
    min_per_shard_tablet_count: float = 0.0

    def texts(self) -> dict[str, str]:
        """As options, without those that nobody gave."""
        given = {
            MIN_COUNT: self.min_tablet_count,
            MAX_COUNT: self.max_tablet_count,
            EXPECTED_SIZE: self.expected_data_size_in_gb,
            MIN_PER_SHARD: self.min_per_shard_tablet_count,
        }
        return {
            name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in given.items()
            if value
        }


#: How tables of new keyspaces are spread when the keyspace does not say.
MODES: Final = ("disabled", "enabled", "enforced")


def read_keyspace(
    given: Mapping[str, str], mode: str = "disabled"
) -> tuple[KeyspaceTablets, tuple[str, ...]]:
    """The options of a keyspace, and the reasons against them. `mode` is what holds for new keyspaces."""
    assert mode in MODES, f"unknown mode {mode}"
    reasons = _unknown(given, (ENABLED, INITIAL))
    said = given.get(ENABLED, "" if INITIAL not in given else "true").strip().lower()
    if said not in ("", "true", "false"):
        reasons.append(f"{ENABLED} is true or false, not {given[ENABLED]!r}")
    is_enabled = said == "true" if said else mode != "disabled"
    initial = _whole(given, INITIAL, TABLET_COUNT_MAX, reasons)
    if said == "false" and initial:
        reasons.append(
            f"{INITIAL} = {initial} says how many tablets a table begins with, and they are not enabled"
        )
    if not is_enabled and mode == "enforced":
        reasons.append("tablets are enforced for new keyspaces here")
    return KeyspaceTablets(is_enabled, initial if is_enabled else 0), tuple(reasons)


def read_hints(given: Mapping[str, str], is_enabled: bool = True) -> tuple[TabletHints, tuple[str, ...]]:
    """The hints of a table, and the reasons against them, if any. `is_enabled`: of its keyspace."""
    reasons = _unknown(given, (MIN_COUNT, MAX_COUNT, EXPECTED_SIZE, MIN_PER_SHARD))
    if given and not is_enabled:
        reasons.append("the keyspace of the table is spread by the ring, which has no tablets")
    hints = TabletHints(
        _whole(given, MIN_COUNT, TABLET_COUNT_MAX, reasons),
        _whole(given, MAX_COUNT, TABLET_COUNT_MAX, reasons),
        _number(given, EXPECTED_SIZE, EXPECTED_GB_MAX, reasons),
        _number(given, MIN_PER_SHARD, PER_SHARD_MAX, reasons),
    )
    return hints, (*reasons, *contradictions(hints))


def contradictions(hints: TabletHints, initial: int = 0) -> tuple[str, ...]:
    """What hints say against each other, or against the number that the keyspace's tables begin with."""
    found: list[str] = []
    least, most = hints.min_tablet_count, hints.max_tablet_count
    if most and least > most:
        found.append(f"{MIN_COUNT} = {least} is above {MAX_COUNT} = {most}")
    elif most and least and power_at_least(least) > most:
        found.append(f"no power of two lies between {MIN_COUNT} = {least} and {MAX_COUNT} = {most}")
    if most and initial > most:
        found.append(f"{INITIAL} = {initial} of the keyspace is above {MAX_COUNT} = {most}")
    return tuple(found)


def power_at_least(count: float) -> int:
    """The least power of two that is not below."""
    whole = max(1, math.ceil(count))
    return 1 << (whole - 1).bit_length()


def power_at_most(count: float) -> int:
    """The largest power of two that is not above; 1 for less than that."""
    return 1 << (max(1, math.floor(count)).bit_length() - 1)


def _unknown(given: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    return [f"unknown tablet option {name!r}" for name in sorted(given) if name not in known]


def _whole(given: Mapping[str, str], name: str, most: int, reasons: list[str]) -> int:
    text = given.get(name, "0").strip()
    if not text.isdecimal() or not text.isascii():
        reasons.append(f"{name} is a whole number that is not negative, not {given[name]!r}")
        return 0
    # More digits than the bound has are not worked out.
    if len(text.lstrip("0")) > len(str(most)) or int(text) > most:
        reasons.append(f"{name} is at most {most}, not {text[:40]}")
        return 0
    return int(text)


def _number(given: Mapping[str, str], name: str, most: int, reasons: list[str]) -> float:
    text = given.get(name, "0").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        reasons.append(f"{name} is a number that is not negative, not {text[:40]!r}")
        return 0.0
    if value > most:
        reasons.append(f"{name} is at most {most}, not {text[:40]}")
        return 0.0
    return value


# In statements


CONFIGURATION: Final = 0x2300


def keyspace_tablets(given: Mapping[str, str], keyspace: str) -> KeyspaceTablets | None:
    """What a statement says of the tablets of a keyspace; None when its tables lie on the ring. Rejected for
    unknown or impossible options."""
    found, reasons = read_keyspace({ENABLED: "true", **given})
    if reasons:
        raise Rejected("; ".join(reasons), cql_code=CONFIGURATION, keyspace=keyspace)
    return found if found.enabled else None


def tablet_hints(given: Mapping[str, str]) -> TabletHints:
    """Rejected for unknown, impossible and contradicting ones."""
    found, reasons = read_hints(given)
    if reasons:
        raise Rejected("; ".join(reasons), cql_code=CONFIGURATION)
    return found


def shown_tablets(tablets: KeyspaceTablets) -> dict[str, str]:
    """The options as clients are shown them."""
    return {ENABLED: "true", **({INITIAL: str(tablets.initial)} if tablets.initial else {})}


def refuse_other_spread(before: KeyspaceTablets | None, after: KeyspaceTablets | None, keyspace: str) -> None:
    """Rejected when a statement would move a keyspace between its ring and tablets."""
    if (before is None) != (after is None):
        way = "to" if after is not None else "back from"
        raise Rejected(
            f"keyspace {keyspace} cannot be altered {way} tablets",
            cql_code=CONFIGURATION,
            keyspace=keyspace,
            hint=f"`lockstep tablets migrate {keyspace} start` takes one from the ring to tablets",
        )
