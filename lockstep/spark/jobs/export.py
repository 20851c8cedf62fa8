"""`export`: a table as Parquet files with a manifest.

Invariant: a directory that holds anything but an export of the same kind that was broken off is refused
before Spark starts, and one that another export writes to. The manifest is written when every file was read
again, so what it says was on the disk, and when the table is still the one that was described.
A scan is no snapshot: a row that is written meanwhile is in it or not, each as its consistency level says.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lockstep.spark.cql_client import pool_of
from lockstep.spark.jobs import manifest, places, tables
from lockstep.spark.jobs.files import uri
from lockstep.spark.jobs.manifest import BEGUN, DATA, MANIFEST, Manifest
from lockstep.spark.jobs.running import Progress, watched
from lockstep.spark.jobs.tables import Access, Described, TableName
from lockstep.spark.ring import ask_any, range_partitions
from lockstep.values.errors import ConfigurationError, PeerError, PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark leaves it beside files that are all there.
_SUCCESS: Final = "_SUCCESS"
#: Texts that Spark takes for no value where it reads them from the name of a directory.
_NO_NAMES: Final = ("", "__HIVE_DEFAULT_PARTITION__")
#: Types whose bytes the name of a directory does not hold.
_NOT_NAMED: Final = ("blob", "inet")


class Begun(msgspec.Struct, frozen=True):
    """What an export is of, written before its first file."""

    schema: str
    described: Described
    columns: tuple[str, ...]
    partitioned_by: tuple[str, ...]
    read_level: str
    began_at: str

    def is_like(self, other: Begun) -> bool:
        """Whether one could go on with what the other left."""
        mine = msgspec.structs.replace(self.described, epoch=0, cql="")
        theirs = msgspec.structs.replace(other.described, epoch=0, cql="")
        return (mine, self.columns, self.partitioned_by) == (theirs, other.columns, other.partitioned_by)


class ExportPlan(msgspec.Struct, frozen=True):
    """What an export would do; `bytes` and `partitions` are estimates, None where no node told."""

    table: str
    to: str
    columns: tuple[str, ...]
    partitioned_by: tuple[str, ...]
    read_level: str
    epoch: int
    tasks: int
    ranges: int
    partitions: int | None
    bytes: int | None
    resumes: bool


class ExportReport(msgspec.Struct, frozen=True):
    table: str
    to: str
    rows: int
    bytes: int
    files: int
    epoch: int
    read_level: str
    manifest: str
    resumed: bool
    elapsed_s: float


class Export(msgspec.Struct, frozen=True):
    """What is asked for. `columns` empty: all."""

    table: TableName
    to: str
    columns: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    resume: bool = False


def plan(access: Access, wanted: Export) -> ExportPlan:
    """What `run` would do, asked of the cluster and of the directory. Errors as `run`."""
    place, begun = manifest.directory(wanted.to), _begun(access, wanted)
    left = _left_by(place, begun, wanted)
    options = access.checked(wanted.table)
    parts = range_partitions(tables.ring_of(access, wanted.table), options.splits_per_range)
    partitions, size = estimate(access, wanted.table)
    return ExportPlan(
        wanted.table.text,
        str(place),
        begun.columns,
        begun.partitioned_by,
        begun.read_level,
        begun.described.epoch,
        len(parts),
        sum(len(part.ranges) for part in parts),
        partitions,
        size,
        left is not None,
    )


def run(session: SparkSession, access: Access, wanted: Export, progress: Progress) -> ExportReport:
    """Export the table. ConfigurationError, PreconditionError for a directory that is taken, PeerError."""
    began = time.monotonic()
    place, begun = manifest.directory(wanted.to), _begun(access, wanted)
    _left_by(place, begun, wanted)
    with places.claimed(place):
        return _exported(session, access, wanted, place, begun, progress, began)


def _exported(
    session: SparkSession,
    access: Access,
    wanted: Export,
    place: Path,
    begun: Begun,
    progress: Progress,
    began: float,
) -> ExportReport:
    left = _left_by(place, begun, wanted)
    data, attempt = place / DATA, places.attempt_in(place)
    if left is not None and (data / _SUCCESS).exists():
        begun = left
    else:
        manifest.write_whole(place / BEGUN, begun)
        columns = {"columns": ",".join(begun.columns)}
        with watched(session, progress, f"reading {wanted.table.text}"):
            frame = tables.frame(session, access, wanted.table, **columns)
            # A snapshot was opened with the frame, and no change comes into it any more.
            is_fixed = bool(access.checked(wanted.table).snapshot)
            if is_fixed:
                tables.require_same(access, wanted.table, begun.described, begun.columns)
            frame = tables.telling(frame, begun.described)
            writer = _nameable(frame, begun.partitioned_by).write.mode("overwrite")
            if begun.partitioned_by:
                writer = writer.partitionBy(*begun.partitioned_by)
            with places.given_up(attempt):
                writer.parquet(uri(attempt))
                if not is_fixed:
                    tables.require_same(access, wanted.table, begun.described, begun.columns)
        places.made_whole(attempt, data)
    with watched(session, progress, "reading the files again"):
        files = manifest.look_at(session, place, manifest.data_files(place))
    made = Manifest(
        "export-manifest/1",
        begun.described,
        begun.columns,
        begun.partitioned_by,
        begun.read_level,
        begun.began_at,
        _now(),
        sum(one.rows for one in files),
        sum(one.bytes for one in files),
        tuple(files),
        decimal_scale=access.checked(wanted.table).decimal_scale,
    )
    manifest.write_whole(place / MANIFEST, made)
    (place / BEGUN).unlink(missing_ok=True)
    return ExportReport(
        wanted.table.text, str(place), made.rows, made.bytes, len(files), begun.described.epoch,
        begun.read_level, str(place / MANIFEST), left is not None, time.monotonic() - began,
    )  # fmt: skip


def _begun(access: Access, wanted: Export) -> Begun:
    described = tables.describe(access, wanted.table)
    columns = wanted.columns or tuple(one.name for one in described.columns)
    _known(described, columns)
    _known(described, wanted.partitioned_by)
    missing = [name for name in wanted.partitioned_by if name not in columns]
    if missing:
        raise ConfigurationError(f"the column {missing[0]} is to divide the files, but is not exported")
    types = {one.name: one.type for one in described.columns}
    for name in wanted.partitioned_by:
        if types[name] in _NOT_NAMED:
            raise ConfigurationError(f"files cannot be divided by {name}, which is {types[name]}")
    if wanted.partitioned_by and len(wanted.partitioned_by) == len(columns):
        raise ConfigurationError("files cannot be divided by all their columns")
    _representable(access, wanted.table, described, columns)
    level = tables.read_level(access, wanted.table)
    return Begun("export-begun/1", described, columns, wanted.partitioned_by, level, _now())


def _nameable(frame: DataFrame, divided_by: Sequence[str]) -> DataFrame:
    """The frame, whose job ends with PreconditionError at a text that would be read as no value from the name
    of its directory."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    for name in divided_by:
        if not isinstance(frame.schema[name].dataType, StringType):
            continue
        column = f.col(f"`{name}`")
        # As `plain_errors` finds the errors of tasks.
        kind = f"{PreconditionError.__module__}.{PreconditionError.__name__}"
        why = f"{kind}: column {name} has the text '"
        rest = "', which no directory can be named by: leave the column out of --partition-by\n"
        wrong = f.raise_error(f.concat(f.lit(why), column, f.lit(rest)))
        frame = frame.withColumn(name, f.when(column.isin(*_NO_NAMES), wrong).otherwise(column))
    return frame


def _representable(access: Access, name: TableName, described: Described, columns: Sequence[str]) -> None:
    """ConfigurationError for columns whose type Spark does not have, before Spark starts."""
    without = [one.name for one in described.columns if one.type in ("counter", "duration")]
    wrong = [column for column in columns if column in without]
    if wrong:
        others = ",".join(column for column in columns if column not in without)
        raise ConfigurationError(
            f"Spark has no type for {', '.join(wrong)} of {name.text}", hint=f"--columns {others}"
        )


def _known(described: Described, columns: Sequence[str]) -> None:
    names = [one.name for one in described.columns]
    for column in columns:
        if column not in names:
            raise ConfigurationError(
                f"table {described.keyspace}.{described.table} has no column {column}",
                hint=f"its columns: {', '.join(names)}",
            )


def _left_by(place: Path, begun: Begun, wanted: Export) -> Begun | None:
    """What an export that was broken off left there; None for a place that is free. PreconditionError."""
    if place.exists() and not place.is_dir():
        raise PreconditionError(f"{place} is no directory")
    if not place.exists() or not any(place.iterdir()):
        return None
    if (place / MANIFEST).exists():
        raise PreconditionError(f"{place} holds a whole export already", hint="name a new directory")
    if not (place / BEGUN).exists():
        raise PreconditionError(f"{place} is not empty", hint="name a new directory")
    try:
        left = msgspec.json.decode((place / BEGUN).read_bytes(), type=Begun)
    except msgspec.MsgspecError as error:
        raise PreconditionError(f"{place / BEGUN} cannot be understood: {error}") from error
    if not left.is_like(begun):
        raise PreconditionError(
            f"{place} holds an export that was broken off, of other columns or of another table: "
            f"{left.described.keyspace}.{left.described.table}",
            hint="name a new directory",
        )
    if not wanted.resume:
        raise PreconditionError(
            f"{place} holds an export of {wanted.table.text} that was broken off",
            hint="--resume goes on with it",
        )
    return left


def estimate(access: Access, name: TableName) -> tuple[int | None, int | None]:
    """About how many partitions and bytes the table has, as its nodes say; None without their answer."""
    options = access.checked(name)
    pool = pool_of(os.getpid())
    partitions = size = 0
    for host in tables.ring_of(access, name).hosts:
        try:
            rows = ask_any(
                pool,
                [options.endpoint(host.address)],
                options.timeout_s,
                lambda connection: connection.query(
                    "SELECT partitions_count, mean_partition_size FROM system.size_estimates "
                    "WHERE keyspace_name = ? AND table_name = ?",
                    (name.keyspace.encode(), name.table.encode()),
                ),
            )
        except PeerError:
            return None, None
        for row in rows:
            count = int(str(row["partitions_count"]))
            partitions += count
            size += count * int(str(row["mean_partition_size"]))
    return partitions, size


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
