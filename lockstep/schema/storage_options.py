"""The compaction and compression options of a table, checked sub-option by sub-option.

They describe to clients how a table wishes to be stored; Lockstep's store works by itself. Invariant: what is
accepted has the names and values that Cassandra accepts, so that a description of the schema runs there too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from lockstep.values.errors import Rejected

CONFIGURATION = 0x2300
COMPACTION_PACKAGE = "org.apache.cassandra.db.compaction."
COMPRESS_PACKAGE = "org.apache.cassandra.io.compress."

#: What Cassandra adds where a table does not say otherwise.
THRESHOLDS = {"min_threshold": "4", "max_threshold": "32"}
CHUNK_LENGTH = {"chunk_length_in_kb": "16"}
_WITHOUT_THRESHOLDS = COMPACTION_PACKAGE + "UnifiedCompactionStrategy"

Check = Callable[[str, str], None]


def refused(message: str) -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise refused(f"{text} is not a parsable number for {name}") from None


def _above(low: float, *, inclusive: bool = False, whole: bool = False) -> Check:
    def check(name: str, text: str) -> None:
        if whole and not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
            raise refused(f"{text} is not a parsable int (base10) for {name}")
        number = _number(name, text)
        # Also refuses what is no number.
        if not (number >= low if inclusive else number > low):
            what = "greater than or equal to" if inclusive else "greater than"
            raise refused(f"{name} must be {what} {low:g}, but was {text}")

    return check


def _boolean(name: str, text: str) -> None:
    if text.lower() not in ("true", "false"):
        raise refused(f"'{name}' should be either 'true' or 'false', not '{text}'")


def _one_of(*allowed: str) -> Check:
    def check(name: str, text: str) -> None:
        if text.upper() not in allowed:
            raise refused(f"{text} is not valid for {name}: one of {', '.join(allowed)} is")

    return check


def _any(name: str, text: str) -> None:
    """Any text."""


_WHOLE = _above(0, whole=True)
_COMMON: dict[str, Check] = {
    "enabled": _boolean,
    "log_all": _boolean,
    "max_threshold": _above(0, inclusive=True, whole=True),
    "min_threshold": _above(0, inclusive=True, whole=True),
    "only_purge_repaired_tombstones": _boolean,
    "provide_overlapping_tombstones": _one_of("NONE", "ROW", "CELL"),
    "tombstone_compaction_interval": _WHOLE,
    "tombstone_threshold": _above(0),
    "unchecked_tombstone_compaction": _boolean,
}
_TIERED: dict[str, Check] = {
    "bucket_high": _above(0),
    "bucket_low": _above(0),
    "min_sstable_size": _above(0, inclusive=True, whole=True),
}
_WINDOWED: dict[str, Check] = {
    "compaction_window_size": _WHOLE,
    "compaction_window_unit": _one_of("MINUTES", "HOURS", "DAYS"),
    "expired_sstable_check_frequency_seconds": _above(0, inclusive=True, whole=True),
    "timestamp_resolution": _one_of("DAYS", "HOURS", "MINUTES", "SECONDS", "MILLISECONDS", "MICROSECONDS"),
    "unsafe_aggressive_sstable_expiration": _boolean,
}
_STRATEGIES: dict[str, dict[str, Check]] = {
    "SizeTieredCompactionStrategy": {**_COMMON, **_TIERED},
    "LeveledCompactionStrategy": {
        **_COMMON,
        "fanout_size": _WHOLE,
        "single_sstable_uplevel": _boolean,
        "sstable_size_in_mb": _WHOLE,
    },
    "TimeWindowCompactionStrategy": {**_COMMON, **_TIERED, **_WINDOWED},
    "UnifiedCompactionStrategy": {
        **_COMMON,
        "base_shard_count": _WHOLE,
        "expired_sstable_check_frequency_seconds": _above(0, inclusive=True, whole=True),
        "flush_size_override": _any,
        "max_sstables_to_compact": _any,
        "min_sstable_size": _any,
        "overlap_inclusion_method": _one_of("NONE", "SINGLE", "TRANSITIVE"),
        "scaling_parameters": _any,
        "sstable_growth": _above(0, inclusive=True),
        "target_sstable_size": _any,
        "unsafe_aggressive_sstable_expiration": _boolean,
    },
}


def _class(text: str, package: str, known: Mapping[str, object], what: str) -> str:
    name = text.removeprefix(package)
    if name not in known:
        raise refused(f"Unable to find {what} class '{text if '.' in text else package + text}'")
    return name


def checked_compaction(given: Mapping[str, str]) -> dict[str, str]:
    """The sub-options with the full name of their class; Rejected when one is unknown or impossible."""
    if "class" not in given:
        raise refused("Missing sub-option 'class' for the 'compaction' option.")
    strategy = _class(given["class"], COMPACTION_PACKAGE, _STRATEGIES, "compaction strategy")
    checks = _STRATEGIES[strategy]
    unknown = sorted(name for name in given if name != "class" and name not in checks)
    if unknown:
        raise refused(f"Properties specified [{', '.join(unknown)}] are not understood by {strategy}")
    for name, text in given.items():
        if name != "class":
            checks[name](name, text)
    low, high = (int({**THRESHOLDS, **given}[name]) for name in ("min_threshold", "max_threshold"))
    if low <= 0 or high <= 0:
        raise refused(
            "Disabling compaction by setting compaction thresholds to 0 has been removed, set the compaction "
            "option 'enabled' to false instead."
        )
    if low < 2:
        raise refused(f"Min compaction threshold cannot be less than 2 (got {low})")
    if low > high:
        raise refused(
            f"Min compaction threshold (got {low}) cannot be greater than max compaction threshold "
            f"(got {high})"
        )
    bucket_low, bucket_high = given.get("bucket_low", "0.5"), given.get("bucket_high", "1.5")
    if float(bucket_high) <= float(bucket_low):
        raise refused(
            f"bucket_high value ({bucket_high}) is less than or equal to the bucket_low value ({bucket_low})"
        )
    return {**given, "class": COMPACTION_PACKAGE + strategy}


def shown_compaction(stored: Mapping[str, str]) -> dict[str, str]:
    """The sub-options as clients are shown them."""
    return dict(stored) if stored["class"] == _WITHOUT_THRESHOLDS else {**THRESHOLDS, **stored}


def _chunk_length(name: str, text: str) -> None:
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise refused(f"Invalid value [{text}] for {name}")
    length = int(text)
    if length <= 0:
        raise refused(f"Invalid negative or null {name}")
    if length & (length - 1):
        raise refused(f"{name} must be a power of 2")


def _ratio(name: str, text: str) -> None:
    number = _number(name, text)
    if number < 0:
        raise refused(f"Invalid negative {name}")
    if not (number == 0 or number >= 1):
        raise refused(f"{name} can either be 0 or greater than or equal to 1")


def _level(low: int, high: int) -> Check:
    def check(name: str, text: str) -> None:
        if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise refused(f"{name}={text} is invalid: it is between {low} and {high}")

    return check


_COMPRESSION: dict[str, Check] = {
    "chunk_length_in_kb": _chunk_length,
    "crc_check_chance": _above(0, inclusive=True),
    "enabled": _boolean,
    "min_compress_ratio": _ratio,
}
_COMPRESSORS: dict[str, dict[str, Check]] = {
    "LZ4Compressor": {
        "lz4_compressor_type": _one_of("FAST", "HIGH"),
        "lz4_high_compressor_level": _level(1, 17),
    },
    "SnappyCompressor": {},
    "DeflateCompressor": {},
    "ZstdCompressor": {"compression_level": _level(-131072, 22)},
    "NoopCompressor": {},
}


def checked_compression(given: Mapping[str, str]) -> dict[str, str]:
    """As checked_compaction; `enabled: false` alone when there is no compression."""
    options = {_OLD_NAMES.get(name, name): text for name, text in given.items()}
    if not options or options.get("class", options.get("enabled")) == "":
        return {"enabled": "false"}
    if "enabled" in options:
        _boolean("enabled", options["enabled"])
        if options["enabled"].lower() == "false":
            if len(options) > 1:
                raise refused("If the 'enabled' option is set to false no other options must be specified")
            return {"enabled": "false"}
    if not options.get("class"):
        raise refused("Missing sub-option 'class' for the 'compression' option.")
    compressor = _class(options["class"], COMPRESS_PACKAGE, _COMPRESSORS, "compression")
    checks = {**_COMPRESSION, **_COMPRESSORS[compressor]}
    unknown = sorted(name for name in options if name != "class" and name not in checks)
    if unknown:
        raise refused(f"Unknown compression options {unknown[0]}")
    for name, text in options.items():
        if name != "class":
            checks[name](name, text)
    return {**options, "class": COMPRESS_PACKAGE + compressor}


def shown_compression(stored: Mapping[str, str]) -> dict[str, str]:
    """The sub-options as clients are shown them: that it is enabled goes without saying."""
    if stored.get("enabled", "true").lower() == "false":
        return dict(stored)
    shown = {name: text for name, text in stored.items() if name != "enabled"}
    ratio = float(shown.pop("min_compress_ratio", "0"))
    return {**CHUNK_LENGTH, **shown, **({"min_compress_ratio": str(ratio)} if ratio else {})}


_OLD_NAMES = {"sstable_compression": "class", "chunk_length_kb": "chunk_length_in_kb"}
