"""`verify`: whether two tables, of one cluster or of two, or a table and an export hold the same rows.

Invariant: both sides are read whole once, as digests of buckets of partition keys; only buckets that differ
are read again, row by row. A difference is told with its token, key, column and both values. Neither side is
a snapshot: what is written meanwhile can show as a difference. Write times and expiries are not compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lockstep.node.configuration import split_address
from lockstep.spark.jobs import comparing, manifest, tables
from lockstep.spark.jobs.comparing import Compared, RowDifference, Tolerance
from lockstep.spark.jobs.export import estimate
from lockstep.spark.jobs.files import uri
from lockstep.spark.jobs.running import Progress, watched
from lockstep.spark.jobs.tables import Access, Described, TableName
from lockstep.values.errors import ConfigurationError
from lockstep.values.tokens import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Buckets of partition keys: each holds some thousand rows of a table of many millions.
BUCKETS: Final = 4096
BUCKETS_MAX: Final = 65_536
#: Differing rows that are told: a person reads no more, and a table of garbage ends soon.
FAILURES: Final = 100


class Verify(msgspec.Struct, frozen=True):
    """Each side is KEYSPACE.TABLE, KEYSPACE.TABLE@ADDRESS[:PORT] or the directory of an export. `columns`
    empty: all that one of them has."""

    one: str
    other: str
    columns: tuple[str, ...] = ()
    buckets: int = BUCKETS
    failures_max: int = FAILURES
    tolerance: Tolerance = Tolerance()


class Side(msgspec.Struct, frozen=True):
    """`place` is the directory of an export, None for a table that `access` reaches."""

    text: str
    described: Described
    access: Access
    place: Path | None = None
    manifest: manifest.Manifest | None = None

    @property
    def names(self) -> tuple[str, ...]:
        if self.manifest is not None:
            return self.manifest.columns
        return tuple(one.name for one in self.described.columns)

    @property
    def table(self) -> TableName:
        return TableName(self.described.keyspace, self.described.table)

    def frame(self, session: SparkSession, names: Sequence[str]) -> DataFrame:
        """Its rows with these columns, in this order."""
        if self.manifest is None or self.place is None:
            found = tables.frame(session, self.access, self.table, columns=",".join(names))
        else:
            typed = tables.spark_schema(self.described, self.manifest.columns, self.manifest.decimal_scale)
            found = session.read.schema(typed).parquet(uri(self.place / manifest.DATA))
        return tables.telling(found.select(*[f"`{name}`" for name in names]), self.described)


class PlannedSide(msgspec.Struct, frozen=True):
    """`rows` of an export, `partitions` and `bytes` about, of a table; None where it is not known."""

    side: str
    epoch: int
    rows: int | None
    partitions: int | None
    bytes: int | None


class VerifyPlan(msgspec.Struct, frozen=True):
    sides: tuple[PlannedSide, PlannedSide]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    buckets: int
    tolerance: Tolerance


class Difference(msgspec.Struct, frozen=True):
    """`range` of the ring has the token, at the first side that is a table; None of exports. `missing` names
    the side without the row; `values` has column, value of the first, of the second."""

    token: int
    range: tuple[int, int] | None
    key: dict[str, str]
    missing: str
    values: tuple[tuple[str, str | None, str | None], ...]


class VerifyReport(msgspec.Struct, frozen=True):
    """`more` says that there are differing rows beyond those that are told."""

    sides: tuple[str, str]
    equal: bool
    rows: tuple[int, int]
    columns: tuple[str, ...]
    buckets: int
    buckets_different: int
    differences: tuple[Difference, ...]
    more: bool
    elapsed_s: float


def sides(access: Access, wanted: Verify) -> tuple[Side, Side, Compared]:
    """What is compared with what. ConfigurationError that names what the two do not share; PeerError."""
    if not 1 <= wanted.buckets <= BUCKETS_MAX:
        raise ConfigurationError(f"{wanted.buckets} buckets are not 1 to {BUCKETS_MAX}")
    one, other = side(access, wanted.one), side(access, wanted.other)
    names = wanted.columns or one.names
    for name in (*names, *(() if wanted.columns else other.names)):
        for place in (one, other):
            if name not in place.names:
                raise ConfigurationError(
                    f"{place.text} has no column {name}",
                    hint="--columns names what is to be compared",
                )
    key = tuple(one.described.key_names())
    if key != tuple(other.described.key_names()):
        raise ConfigurationError(
            f"the key of {one.text} is ({', '.join(key)}), that of {other.text} "
            f"({', '.join(other.described.key_names())})"
        )
    names = (*key, *(name for name in names if name not in key))
    _same_types(one, other, names)
    partition = tuple(one.described.partition_key_names())
    return one, other, Compared(partition, key, names, wanted.buckets, wanted.tolerance)


def _same_types(one: Side, other: Side, names: Sequence[str]) -> None:
    found = [
        {column.name: column.type for column in place.described.columns if column.name in names}
        for place in (one, other)
    ]
    for name in names:
        mine, theirs = found[0][name], found[1][name]
        if mine != theirs:
            raise ConfigurationError(f"column {name} is {mine} in {one.text} and {theirs} in {other.text}")


def side(access: Access, text: str) -> Side:
    """ConfigurationError when it is neither a table nor an export."""
    place = Path(text).expanduser().absolute()
    if place.is_dir():
        found = manifest.read_manifest(place)
        return Side(text, found.described, access, place, found)
    name, at, address = text.partition("@")
    if at:
        hosts, colon, port = address.rpartition(":")
        if not colon:
            hosts, port = address, str(access.port)
        access = msgspec.structs.replace(access, hosts=hosts, port=split_address(f"x:{port}", 0)[1])
    table = tables.table_name(name)
    return Side(text, tables.describe(access, table), access)


def plan(access: Access, wanted: Verify) -> VerifyPlan:
    """What `run` would do. Errors as `sides`."""
    one, other, compared = sides(access, wanted)
    return VerifyPlan(
        (_planned(one), _planned(other)), compared.key, compared.columns, compared.buckets, compared.tolerance
    )


def _planned(one: Side) -> PlannedSide:
    if one.manifest is not None:
        return PlannedSide(one.text, one.described.epoch, one.manifest.rows, None, one.manifest.bytes)
    return PlannedSide(one.text, one.described.epoch, None, *estimate(one.access, one.table))


def run(session: SparkSession, access: Access, wanted: Verify, progress: Progress) -> VerifyReport:
    """Compare. Errors as `sides`; PreconditionError for an export that is not as it was written."""
    began = time.monotonic()
    one, other, compared = sides(access, wanted)
    frames = []
    found = []
    for place in (one, other):
        if place.manifest is not None and place.place is not None:
            with watched(session, progress, f"comparing {place.text} with its manifest"):
                manifest.require_whole(session, place.manifest, place.place)
        frames.append(place.frame(session, compared.columns))
        with watched(session, progress, f"digests of {place.text}"):
            found.append(comparing.sums(frames[-1], compared))
    buckets = comparing.unlike(found[0], found[1])
    rows: list[RowDifference] = []
    if buckets:
        with watched(session, progress, f"comparing the rows of {len(buckets)} buckets"):
            rows = comparing.differences(frames[0], frames[1], compared, buckets, wanted.failures_max + 1)
    for place in (one, other):
        if place.manifest is None:
            tables.require_same(place.access, place.table, place.described, compared.columns)
    ranges = _ranges(one, other) if rows else []
    told = tuple(_told(one, other, row, ranges) for row in rows[: wanted.failures_max])
    return VerifyReport(
        (one.text, other.text),
        not rows,
        (_rows(found[0]), _rows(found[1])),
        compared.columns,
        compared.buckets,
        len(buckets),
        told,
        len(rows) > wanted.failures_max,
        time.monotonic() - began,
    )


def _rows(found: dict[int, comparing.Sum]) -> int:
    return sum(one.rows for one in found.values())


def _ranges(one: Side, other: Side) -> list[Range]:
    """Of the ring of the first side that is a table."""
    for place in (one, other):
        if place.manifest is None:
            return [part for part, _ in tables.ring_of(place.access, place.table).ranges]
    return []


def _told(one: Side, other: Side, row: RowDifference, ranges: Sequence[Range]) -> Difference:
    names = one.described.key_names()
    missing = {"left": one.text, "right": other.text, "": ""}[row.missing]
    key = {name: "-" if text is None else text for name, text in zip(names, row.key, strict=True)}
    token = tables.token_of_values(one.described, row.partition)
    within = next(((part.left, part.right) for part in ranges if part.contains(token)), None)
    return Difference(token, within, key, missing, row.columns)
