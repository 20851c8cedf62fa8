"""Options of tables: names, defaults, validation, canonical texts.

Invariant: stored options are sorted by name and hold only values that differ from no check here; a map's
canonical text is JSON with sorted keys, so equal maps have equal texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from lockstep.schema.storage_options import (
    COMPACTION_PACKAGE,
    COMPRESS_PACKAGE,
    CONFIGURATION,
    checked_compaction,
    checked_compression,
    shown_compaction,
    shown_compression,
)
from lockstep.values.errors import Rejected
from lockstep.values.limits import TTL_S_MAX

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
    "speculative_retry": "99p",
    "tombstone_gc": map_text((("mode", "timeout"), ("propagation_delay_in_seconds", "3600"))),
}
MAP_OPTIONS = frozenset(("caching", "compaction", "compression", "extensions", "tombstone_gc"))
#: Options that Cassandra lacks: its tools see them only where they were set.
UNDESCRIBED_DEFAULTS = frozenset(("tombstone_gc",))
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
        if isinstance(value, str) == (name in MAP_OPTIONS):
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


def _any_map(name: str, value: OptionValue) -> str:
    return map_text(value if not isinstance(value, str) else ())


_CHECKS: dict[str, Check] = {
    "additional_write_policy": _policy,
    "allow_auto_snapshot": _boolean,
    "bloom_filter_fp_chance": _fraction,
    "caching": _caching,
    "cdc": _boolean,
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
    "speculative_retry": _policy,
    "tombstone_gc": _tombstone_gc,
}
