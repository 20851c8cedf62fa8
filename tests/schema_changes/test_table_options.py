"""Options of tables: every check, and that what is accepted is described so that it is accepted again."""

from __future__ import annotations

import pytest

from lockstep.schema.table_options import checked_options, option, option_map, shown_map
from lockstep.values.errors import Rejected

TIERED = ("class", "SizeTieredCompactionStrategy")
LEVELED = ("class", "LeveledCompactionStrategy")
WINDOWED = ("class", "TimeWindowCompactionStrategy")
LZ4 = ("class", "LZ4Compressor")


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        (
            "compaction",
            (TIERED, ("nope", "1")),
            0x2300,
            "Properties specified [nope] are not understood by Size",
        ),
        ("compaction", (TIERED, ("sstable_size_in_mb", "1")), 0x2300, "not understood by SizeTiered"),
        ("compaction", (("class", "Nope"),), 0x2300, "Unable to find compaction strategy class"),
        ("compaction", (TIERED, ("min_threshold", "1")), 0x2300, "cannot be less than 2 (got 1)"),
        (
            "compaction",
            (TIERED, ("min_threshold", "0")),
            0x2300,
            "setting compaction thresholds to 0 has been",
        ),
        ("compaction", (TIERED, ("min_threshold", "40")), 0x2300, "cannot be greater than max compaction"),
        ("compaction", (TIERED, ("min_threshold", "x")), 0x2300, "x is not a parsable int (base10) for min"),
        (
            "compaction",
            (TIERED, ("bucket_low", "2")),
            0x2300,
            "bucket_high value (1.5) is less than or equal",
        ),
        ("compaction", (TIERED, ("tombstone_threshold", "-1")), 0x2300, "must be greater than 0, but was -1"),
        (
            "compaction",
            (TIERED, ("tombstone_threshold", "nan")),
            0x2300,
            "must be greater than 0, but was nan",
        ),
        (
            "compaction",
            (TIERED, ("log_all", "maybe")),
            0x2300,
            "'log_all' should be either 'true' or 'false'",
        ),
        ("compaction", (LEVELED, ("sstable_size_in_mb", "0")), 0x2300, "must be greater than 0, but was 0"),
        ("compaction", (WINDOWED, ("compaction_window_unit", "weeks")), 0x2300, "weeks is not valid for"),
        (
            "compression",
            (LZ4, ("chunk_length_in_kb", "3")),
            0x2300,
            "chunk_length_in_kb must be a power of 2",
        ),
        ("compression", (LZ4, ("chunk_length_in_kb", "-4")), 0x2300, "Invalid negative or null chunk_length"),
        (
            "compression",
            (LZ4, ("chunk_length_in_kb", "x")),
            0x2300,
            "Invalid value [x] for chunk_length_in_kb",
        ),
        ("compression", (LZ4, ("nope", "1")), 0x2300, "Unknown compression options nope"),
        ("compression", (LZ4, ("compression_level", "1")), 0x2300, "Unknown compression options"),
        ("compression", (LZ4, ("enabled", "false")), 0x2300, "no other options must be specified"),
        ("compression", (LZ4, ("min_compress_ratio", "0.5")), 0x2300, "either be 0 or greater than or equal"),
        ("compression", (LZ4, ("min_compress_ratio", "-1")), 0x2300, "Invalid negative min_compress_ratio"),
        ("compression", (("chunk_length_in_kb", "4"),), 0x2300, "Missing sub-option 'class'"),
        ("compression", (("class", "ZstdCompressor"), ("compression_level", "99")), 0x2300, "is invalid"),
        ("memtable", "nope", 0x2300, 'Memtable configuration "nope" not found.'),
        ("speculative_retry", "101p", 0x2300, "the percentile must be between 0.0 and 100.0"),
        ("speculative_retry", "soon", 0x2300, "Specified Speculative Retry Policy [soon] is not supported"),
        ("additional_write_policy", "0p", 0x2300, "the percentile must be between 0.0 and 100.0"),
        ("caching", (("keys", "SOME"),), 0x2300, "Invalid value for caching sub-option 'keys'"),
        ("caching", (("nope", "ALL"),), 0x2300, "Invalid caching sub-options nope"),
        ("read_repair", "SOMETIMES", 0x2300, "BLOCKING and NONE are allowed"),
        ("default_time_to_live", "630720001", 0x2300, "must be less than or equal to 630720000"),
        ("min_index_interval", "4096", 0x2300, "max_index_interval must be greater than or equal to"),
        ("cdc", "maybe", 0x2000, "Invalid boolean value maybe for 'cdc'"),
        ("comment", (), 0x2000, "It should be a simple value."),
    ],
)
def test_impossible_values_are_refused(name: str, value: object, code: int, message: str) -> None:
    with pytest.raises(Rejected) as caught:
        checked_options([(name, value)])  # type: ignore[list-item]
    assert caught.value.cql_code == code and message in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("compaction", (LEVELED, ("sstable_size_in_mb", "160")), {"sstable_size_in_mb": "160"}),
        ("compaction", (WINDOWED, ("compaction_window_unit", "DAYS")), {"compaction_window_unit": "DAYS"}),
        ("compaction", (("class", "UnifiedCompactionStrategy"), ("scaling_parameters", "T4,L4")), {}),
        ("compression", (("sstable_compression", "SnappyCompressor"), ("chunk_length_kb", "64")),
         {"chunk_length_in_kb": "64", "class": "org.apache.cassandra.io.compress.SnappyCompressor"}),
        ("compression", (("sstable_compression", ""),), {"enabled": "false"}),
        ("compression", (), {"enabled": "false"}),
    ],
)  # fmt: skip
def test_accepted_maps_are_kept_with_full_names_and_accepted_again(
    name: str, value: tuple, stored: dict[str, str]
) -> None:
    options = checked_options([(name, value)])
    found = option_map(option(options, name))
    assert stored.items() <= found.items()
    assert checked_options([(name, tuple(found.items()))]) == options


@pytest.mark.parametrize(
    ("name", "value", "added"),
    [
        ("compaction", (LEVELED,), {"min_threshold": "4", "max_threshold": "32"}),
        ("compaction", (WINDOWED, ("min_threshold", "8")), {"max_threshold": "32"}),
        ("compaction", (("class", "UnifiedCompactionStrategy"),), {}),
        ("compression", (("class", "LZ4Compressor"),), {"chunk_length_in_kb": "16"}),
        ("compression", (("class", "NoopCompressor"), ("chunk_length_in_kb", "4")), {}),
        ("compression", (("enabled", "false"),), {}),
        ("caching", (("keys", "NONE"),), {}),
    ],
)  # fmt: skip
def test_clients_are_shown_the_defaults_of_what_was_left_out(
    name: str, value: tuple, added: dict[str, str]
) -> None:
    stored = option(checked_options([(name, value)]), name)
    shown = shown_map(name, stored)
    assert shown == {**option_map(stored), **added}
    again = option(checked_options([(name, tuple(shown.items()))]), name)
    assert shown_map(name, again) == shown


@pytest.mark.parametrize(("given", "shown"), [("2", "2.0"), ("1.5", "1.5"), ("0", None)])
def test_a_ratio_is_shown_as_a_number_with_a_point(given: str, shown: str | None) -> None:
    value = (("class", "NoopCompressor"), ("min_compress_ratio", given))
    stored = option(checked_options([("compression", value)]), "compression")
    assert option_map(stored)["min_compress_ratio"] == given
    assert shown_map("compression", stored).get("min_compress_ratio") == shown


def test_policies_are_kept_as_written() -> None:
    for text in ("99p", "95.5percentile", "50ms", "NONE", "always", "min(99p, 50ms)", "MAX(50ms,99.9p)"):
        assert option(checked_options([("speculative_retry", text)]), "speculative_retry") == text


def test_when_tombstones_may_go() -> None:
    assert option_map(option((), "tombstone_gc")) == {
        "mode": "timeout",
        "propagation_delay_in_seconds": "3600",
    }
    changed = checked_options([("tombstone_gc", (("mode", "REPAIR"), ("propagation_delay_in_seconds", "9")))])
    assert option_map(option(changed, "tombstone_gc")) == {
        "mode": "repair",
        "propagation_delay_in_seconds": "9",
    }
    for wrong in (("mode", "never"), ("propagation_delay_in_seconds", "-1"), ("grace", "1")):
        with pytest.raises(Rejected):
            checked_options([("tombstone_gc", (wrong,))])
