"""Options of tables: names, defaults, validation, canonical texts; compaction and compression sub-option by
sub-option.

They describe to clients how a table wishes to be stored; Lockstep's store works by itself.

Invariant: stored options are sorted by name and hold only values that differ from no check here; a map's
canonical text is JSON with sorted keys, so equal maps have equal texts. What is accepted has the names and
values that Cassandra accepts, so that a description of the schema runs there too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.schema.model import Keyspace
from lockstep.schema.tablet_options import tablet_hints
from lockstep.values.errors import Rejected
from lockstep.values.limits import TTL_S_MAX

CONFIGURATION = 0x2300
COMPACTION_PACKAGE = "org.apache.cassandra.db.compaction."
COMPRESS_PACKAGE = "org.apache.cassandra.io.compress."

#: What Cassandra adds where a table does not say otherwise.
THRESHOLDS = {"min_threshold": "4", "max_threshold": "32"}
CHUNK_LENGTH = {"chunk_length_in_kb": "16"}
_WITHOUT_THRESHOLDS = COMPACTION_PACKAGE + "UnifiedCompactionStrategy"

StorageCheck = Callable[[str, str], None]


def refused(message: str) -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise refused(f"{text} is not a parsable number for {name}") from None


def _above(low: float, *, inclusive: bool = False, whole: bool = False) -> StorageCheck:
    def check(name: str, text: str) -> None:
        if whole and not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
            raise refused(f"{text} is not a parsable int (base10) for {name}")
        number = _number(name, text)
        # Also refuses what is no number.
        if not (number >= low if inclusive else number > low):
            what = "greater than or equal to" if inclusive else "greater than"
            raise refused(f"{name} must be {what} {low:g}, but was {text}")

    return check


def _storage_boolean(name: str, text: str) -> None:
    if text.lower() not in ("true", "false"):
        raise refused(f"'{name}' should be either 'true' or 'false', not '{text}'")


def _one_of(*allowed: str) -> StorageCheck:
    def check(name: str, text: str) -> None:
        if text.upper() not in allowed:
            raise refused(f"{text} is not valid for {name}: one of {', '.join(allowed)} is")

    return check


def _any(name: str, text: str) -> None:
    """Any text."""


_WHOLE = _above(0, whole=True)
_COMMON: dict[str, StorageCheck] = {
    "enabled": _storage_boolean,
    "log_all": _storage_boolean,
    "max_threshold": _above(0, inclusive=True, whole=True),
    "min_threshold": _above(0, inclusive=True, whole=True),
    "only_purge_repaired_tombstones": _storage_boolean,
    "provide_overlapping_tombstones": _one_of("NONE", "ROW", "CELL"),
    "tombstone_compaction_interval": _WHOLE,
    "tombstone_threshold": _above(0),
    "unchecked_tombstone_compaction": _storage_boolean,
}
_TIERED: dict[str, StorageCheck] = {
    "bucket_high": _above(0),
    "bucket_low": _above(0),
    "min_sstable_size": _above(0, inclusive=True, whole=True),
}
_WINDOWED: dict[str, StorageCheck] = {
    "compaction_window_size": _WHOLE,
    "compaction_window_unit": _one_of("MINUTES", "HOURS", "DAYS"),
    "expired_sstable_check_frequency_seconds": _above(0, inclusive=True, whole=True),
    "timestamp_resolution": _one_of("DAYS", "HOURS", "MINUTES", "SECONDS", "MILLISECONDS", "MICROSECONDS"),
    "unsafe_aggressive_sstable_expiration": _storage_boolean,
}
_STRATEGIES: dict[str, dict[str, StorageCheck]] = {
    "SizeTieredCompactionStrategy": {**_COMMON, **_TIERED},
    "LeveledCompactionStrategy": {
        **_COMMON,
        "fanout_size": _WHOLE,
        "single_sstable_uplevel": _storage_boolean,
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
        "unsafe_aggressive_sstable_expiration": _storage_boolean,
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


def _level(low: int, high: int) -> StorageCheck:
    def check(name: str, text: str) -> None:
        if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise refused(f"{name}={text} is invalid: it is between {low} and {high}")

    return check


_COMPRESSION: dict[str, StorageCheck] = {
    "chunk_length_in_kb": _chunk_length,
    "crc_check_chance": _above(0, inclusive=True),
    "enabled": _storage_boolean,
    "min_compress_ratio": _ratio,
}
_COMPRESSORS: dict[str, dict[str, StorageCheck]] = {
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
        _storage_boolean("enabled", options["enabled"])
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


OptionValue = str | tuple[tuple[str, str], ...]

SYNTAX = 0x2000
#: Kinds of memtables, which only Cassandra has.
_MEMTABLES = ("default", "skiplist", "skiplist_sharded", "trie")
_POLICY = re.compile(
    r"none|always|\d+(\.\d+)?(p|percentile|ms)|(min|max)\(\s*\d+(\.\d+)?(p|percentile|ms)\s*,\s*\d+(\.\d+)?(p|percentile|ms)\s*\)",
    re.IGNORECASE,
)


def map_text(pairs: Sequence[tuple[str, str]]) -> str:
    """Canonical text of a map option."""
    return json.dumps(dict(pairs), sort_keys=True)


def option_map(text: str) -> dict[str, str]:
    """The map of a canonical text."""
    found: dict[str, str] = json.loads(text)
    return found


def shown_map(name: str, text: str) -> dict[str, str]:
    """The map of a stored option as clients are shown it: what was left out has its default."""
    show = _SHOWN.get(name)
    return option_map(text) if show is None else show(option_map(text))


_SHOWN = {"compaction": shown_compaction, "compression": shown_compression}

#: Of the option cdc: changes are not captured.
CAPTURE_OFF: Final = "false"
CAPTURE_DEFAULTS: Final = {
    "delta": "full",
    "enabled": "false",
    "postimage": "false",
    "preimage": "false",
    "ttl": "86400",
}

#: Every option a table has, with its default, in the order of descriptions.
DEFAULTS: dict[str, str] = {
    "additional_write_policy": "99p",
    "allow_auto_snapshot": "true",
    "bloom_filter_fp_chance": "0.01",
    "caching": map_text((("keys", "ALL"), ("rows_per_partition", "NONE"))),
    "cdc": "false",
    "comment": "",
    "compaction": map_text(
        (
            ("class", COMPACTION_PACKAGE + "SizeTieredCompactionStrategy"),
            ("max_threshold", "32"),
            ("min_threshold", "4"),
        )
    ),
    "compression": map_text((("chunk_length_in_kb", "16"), ("class", COMPRESS_PACKAGE + "LZ4Compressor"))),
    "memtable": "default",
    "crc_check_chance": "1.0",
    "default_time_to_live": "0",
    "extensions": "{}",
    "gc_grace_seconds": "864000",
    "incremental_backups": "true",
    "max_index_interval": "2048",
    "memtable_flush_period_in_ms": "0",
    "min_index_interval": "128",
    "read_repair": "BLOCKING",
    "replication_type": "keyspace",
    "speculative_retry": "99p",
    "tablets": "{}",
    "tombstone_gc": map_text((("mode", "timeout"), ("propagation_delay_in_seconds", "3600"))),
}
MAP_OPTIONS = frozenset(("caching", "compaction", "compression", "extensions", "tablets", "tombstone_gc"))
#: Options that are written as a map or as a simple value.
_EITHER = frozenset(("cdc",))
#: Options that Cassandra lacks: its tools see them only where they were set.
UNDESCRIBED_DEFAULTS = frozenset(("replication_type", "tablets", "tombstone_gc"))
#: When tombstones may go: after the grace time, once a repair is recorded, never, or at once.
TOMBSTONE_GC_MODES = ("timeout", "repair", "disabled", "immediate")
#: Accepted and dropped, as current Cassandra does.
_OBSOLETE = frozenset(("read_repair_chance", "dclocal_read_repair_chance"))


def option(options: Sequence[tuple[str, str]], name: str) -> str:
    """The value that holds for a table with these stored options."""
    for key, value in options:
        if key == name:
            return value
    return DEFAULTS[name]


def checked_options(
    given: Sequence[tuple[str, OptionValue]], earlier: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """`earlier` options changed by `given`; Rejected when one is unknown or has an impossible value."""
    stored = dict(earlier)
    for name, value in given:
        if name in _OBSOLETE:
            continue
        check = _CHECKS.get(name)
        if check is None:
            raise Rejected(f"Unknown property '{name}'", cql_code=SYNTAX)
        if name not in _EITHER and isinstance(value, str) == (name in MAP_OPTIONS):
            wanted = (
                "It should be a map of options." if name in MAP_OPTIONS else "It should be a simple value."
            )
            raise Rejected(f"Invalid value for property '{name}'. {wanted}", cql_code=SYNTAX)
        stored[name] = check(name, value)
    found = tuple(sorted(stored.items()))
    low, high = int(option(found, "min_index_interval")), int(option(found, "max_index_interval"))
    if high < low:
        raise _refused(
            f"max_index_interval must be greater than or equal to min_index_interval ({low}) (got {high})"
        )
    return found


def check_hints(keyspace: Keyspace, given: Sequence[tuple[str, OptionValue]]) -> None:
    """Rejected where a table on a ring is told how many tablets it should have."""
    if keyspace.tablets is None and any(name == "tablets" and value for name, value in given):
        raise refused(f"Tables of keyspace {keyspace.name} have no tablets: they lie on its ring")


Check = Callable[[str, OptionValue], str]


def _refused(message: str) -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION)


def _text(name: str, value: OptionValue) -> str:
    assert isinstance(value, str)
    return value


def _boolean(name: str, value: OptionValue) -> str:
    text = _text(name, value).lower()
    if text in ("true", "1", "yes"):
        return "true"
    if text in ("false", "0", "no"):
        return "false"
    raise Rejected(f"Invalid boolean value {value} for '{name}'", cql_code=SYNTAX)


def _whole(low: int, high: int = (1 << 31) - 1) -> Check:
    def check(name: str, value: OptionValue) -> str:
        text = _text(name, value)
        if not re.fullmatch(r"-?\d{1,10}", text, re.ASCII):
            raise Rejected(f"Invalid integer value {text} for '{name}'", cql_code=SYNTAX)
        number = int(text)
        if number < low:
            raise _refused(f"{name} must be greater than or equal to {low} (got {number})")
        if number > high:
            raise _refused(f"{name} must be less than or equal to {high} (got {number})")
        return str(number)

    return check


#: What a bloom filter of Cassandra can do.
_BLOOM_CHANCE_ABOVE = 6.71e-5


def _fraction(name: str, value: OptionValue) -> str:
    text = _text(name, value)
    try:
        number = float(text)
    except ValueError:
        raise Rejected(f"Invalid double value {text} for '{name}'", cql_code=SYNTAX) from None
    if name == "bloom_filter_fp_chance" and not _BLOOM_CHANCE_ABOVE < number <= 1.0:
        raise _refused(f"{name} must be larger than 6.71E-5 and less than or equal to 1.0 (got {text})")
    if not 0.0 <= number <= 1.0:
        raise _refused(
            f"{name} must be larger than or equal to 0 and smaller than or equal to 1.0 (got {text})"
        )
    return str(number)


def _policy(name: str, value: OptionValue) -> str:
    text = _text(name, value)
    if not _POLICY.fullmatch(text):
        raise _refused(f"Specified Speculative Retry Policy [{text}] is not supported")
    for number in re.findall(r"([\d.]+)\s*p", text.lower()):
        if not 0 < float(number) < 100:
            raise _refused(
                f"Invalid value {text} for option '{name}': the percentile must be between 0.0 and 100.0"
            )
    return text


def _memtable(name: str, value: OptionValue) -> str:
    text = _text(name, value)
    if text not in _MEMTABLES:
        raise _refused(f'Memtable configuration "{text}" not found.')
    return text


def _read_repair(name: str, value: OptionValue) -> str:
    text = _text(name, value).upper()
    if text not in ("BLOCKING", "NONE"):
        raise _refused(f"Invalid value {value} for option '{name}': BLOCKING and NONE are allowed")
    return text


def _replication_type(name: str, value: OptionValue) -> str:
    text = _text(name, value).lower()
    text = {"logged": "tracked", "legacy": "untracked"}.get(text, text)
    if text not in ("keyspace", "tracked", "untracked"):
        raise _refused(f"{name} is 'keyspace', 'tracked' or 'untracked', not '{value}'")
    return text


def _compaction(name: str, value: OptionValue) -> str:
    return map_text(tuple(checked_compaction(dict(value) if not isinstance(value, str) else {}).items()))


def _compression(name: str, value: OptionValue) -> str:
    return map_text(tuple(checked_compression(dict(value) if not isinstance(value, str) else {}).items()))


def _caching(name: str, value: OptionValue) -> str:
    given = dict(value) if not isinstance(value, str) else {}
    found = {"keys": "ALL", "rows_per_partition": "NONE"}
    for key, raw in given.items():
        if key not in found:
            raise _refused(
                f"Invalid caching sub-options {key}: only 'keys' and 'rows_per_partition' are allowed"
            )
        text = raw.upper()
        if text not in ("ALL", "NONE") and (key == "keys" or not re.fullmatch(r"\d{1,9}", text, re.ASCII)):
            allowed = (
                "only 'ALL' and 'NONE' are allowed." if key == "keys" else "only 'ALL', 'NONE' and integers"
            )
            raise _refused(f"Invalid value for caching sub-option '{key}': {allowed}")
        found[key] = text
    return map_text(tuple(found.items()))


def _capture(name: str, value: OptionValue) -> str:
    """`true` stands for a map with the defaults of all but `enabled`."""
    given = {"enabled": _boolean(name, value)} if isinstance(value, str) else dict(value)
    found = dict(CAPTURE_DEFAULTS)
    for key, raw in given.items():
        if key not in found:
            raise _refused(f"Invalid CDC option: {key}: there are {', '.join(found)}")
        found[key] = _CAPTURE_CHECKS[key](f"{name}.{key}", raw)
    return map_text(tuple(found.items())) if found["enabled"] == "true" else CAPTURE_OFF


def _preimage(name: str, value: OptionValue) -> str:
    return "full" if _text(name, value).lower() == "full" else _boolean(name, value)


def _delta(name: str, value: OptionValue) -> str:
    text = _text(name, value).lower()
    if text not in ("full", "keys"):
        raise _refused(f"Invalid value {value} for option '{name}': full and keys are allowed")
    return text


_CAPTURE_CHECKS: dict[str, Check] = {
    "delta": _delta,
    "enabled": _boolean,
    "postimage": _boolean,
    "preimage": _preimage,
    "ttl": _whole(0, TTL_S_MAX),
}


def _tombstone_gc(name: str, value: OptionValue) -> str:
    given = dict(value) if not isinstance(value, str) else {}
    found = option_map(DEFAULTS[name])
    for key, raw in given.items():
        if key not in found:
            raise _refused(f"Unknown sub-option '{key}' of {name}: there are {', '.join(found)}")
        if key == "mode" and raw.lower() not in TOMBSTONE_GC_MODES:
            modes = ", ".join(TOMBSTONE_GC_MODES)
            raise _refused(f"Invalid value for {name} mode: {raw} is not one of {modes}")
        found[key] = raw.lower() if key == "mode" else _whole(0)(f"{name}.{key}", raw)
    return map_text(tuple(found.items()))


def _tablets(name: str, value: OptionValue) -> str:
    given = dict(value) if not isinstance(value, str) else {}
    tablet_hints(given)
    return map_text(tuple(given.items()))


def _any_map(name: str, value: OptionValue) -> str:
    return map_text(value if not isinstance(value, str) else ())


_CHECKS: dict[str, Check] = {
    "additional_write_policy": _policy,
    "allow_auto_snapshot": _boolean,
    "bloom_filter_fp_chance": _fraction,
    "caching": _caching,
    "cdc": _capture,
    "comment": _text,
    "compaction": _compaction,
    "compression": _compression,
    "crc_check_chance": _fraction,
    "default_time_to_live": _whole(0, TTL_S_MAX),
    "extensions": _any_map,
    "gc_grace_seconds": _whole(0),
    "incremental_backups": _boolean,
    "max_index_interval": _whole(1),
    "memtable": _memtable,
    "memtable_flush_period_in_ms": _whole(0),
    "min_index_interval": _whole(1),
    "read_repair": _read_repair,
    "replication_type": _replication_type,
    "speculative_retry": _policy,
    "tablets": _tablets,
    "tombstone_gc": _tombstone_gc,
}
