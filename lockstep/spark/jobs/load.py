"""`load`: files into a table, every value as the table's type or its row a reject.

Invariant: what is wrong with names is told before Spark starts, what is wrong with rows before the first row
is written: with more rejects than allowed nothing is written. A rejected row is told with its file, its
columns and the reasons. Rows carry one write time, so a load that is run again with it changes nothing.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.scans.arrow_columns import DECIMAL_SCALE_DEFAULT
from lockstep.spark.jobs import casting, files, manifest, tables
from lockstep.spark.jobs.casting import Cast
from lockstep.spark.jobs.files import Files
from lockstep.spark.jobs.running import Progress, watched
from lockstep.spark.jobs.tables import Access, Described, TableName
from lockstep.spark.ring import TableColumn
from lockstep.spark.static_rows import kinds_of
from lockstep.values.errors import ConfigurationError, PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORRUPT: Final = "_corrupt_record"
_PROBLEMS: Final = "__problems"
_ROW: Final = "__row"
_FILE: Final = "__file"
_SCALE: Final = "decimalScale"
_DECIMAL: Final = re.compile(r"\bdecimal\b")
#: Rejects that are written to the file: more tell a person nothing new.
REJECTS_WRITTEN_MAX: Final = 10_000
_NANOSECONDS_PER_MICROSECOND: Final = 1000


class Load(msgspec.Struct, frozen=True):
    """What is asked for. `format` empty: as the files' names end. `null_text`: what stands for no value in
    text files, beside nothing at all. `write_time_us` 0: now."""

    table: TableName
    sources: tuple[str, ...]
    format: str = ""
    columns: tuple[str, ...] = ()
    separator: str = ","
    null_text: str = ""
    create: bool = False
    rejects: str = ""
    rejects_max: int = 0
    nulls_delete: bool = False
    write_time_us: int = 0


class LoadPlan(msgspec.Struct, frozen=True):
    """`not_loaded` are columns of the table that get no value. `creates` is CQL that is run first."""

    table: str
    format: str
    files: int
    bytes: int
    columns: tuple[str, ...]
    not_loaded: tuple[str, ...]
    creates: tuple[str, ...]
    rows: int | None


class LoadReport(msgspec.Struct, frozen=True):
    """`rejects` is the file that tells of the rejected rows, empty without any."""

    table: str
    files: int
    rows: int
    written: int
    rejected: int
    rejects: str
    created: bool
    write_time_us: int
    elapsed_s: float


class Prepared(msgspec.Struct, frozen=True):
    """What is known before Spark starts. `manifest` is that of an export; None for plain files."""

    files: Files
    described: Described
    columns: tuple[TableColumn, ...]
    creates: tuple[str, ...]
    place: Path | None = None
    manifest: manifest.Manifest | None = None
    decimal_scale: int = 18


def prepare(access: Access, wanted: Load) -> Prepared:
    """Look at the files and at the table. ConfigurationError that names what does not fit; PeerError."""
    options = access.checked(wanted.table)
    place = _export_in(wanted.sources)
    exported = None if place is None else manifest.read_manifest(place)
    if wanted.create and exported is None:
        raise ConfigurationError(
            "a table is made from the manifest of an export", hint="--from DIR of an export"
        )
    creates: tuple[str, ...] = ()
    if wanted.create and exported is not None:
        described = exported.described
        creates = tuple(described.statements(wanted.table))
    else:
        described = tables.describe(access, wanted.table)
    if exported is not None and place is not None:
        found = Files(
            "parquet",
            tuple(str(place / one.path) for one in exported.files),
            exported.bytes,
            exported.columns,
        )
    else:
        found = files.find(wanted.sources, wanted.format, wanted.separator)
    columns = _matched(described, found, wanted)
    _refuse_vague_decimals(access, described, exported)
    return Prepared(found, described, columns, creates, place, exported, options.decimal_scale)


def plan(access: Access, wanted: Load) -> LoadPlan:
    """What `run` would do. Errors as `prepare`."""
    ready = prepare(access, wanted)
    names = tuple(column.name for column in ready.columns)
    others = tuple(one.name for one in ready.described.columns if one.name not in names)
    rows = ready.manifest.rows if ready.manifest is not None else None
    found = ready.files
    return LoadPlan(
        wanted.table.text, found.format, len(found.paths), found.bytes, names, others, ready.creates, rows
    )


def run(session: SparkSession, access: Access, wanted: Load, progress: Progress) -> LoadReport:
    """Load the files. Errors as `prepare`; PreconditionError for too many rejects, or a damaged export."""
    began = time.monotonic()
    ready = prepare(access, wanted)
    if ready.manifest is not None and ready.place is not None:
        with watched(session, progress, "comparing the files with their manifest"):
            manifest.require_whole(session, ready.manifest, ready.place)
    checked = _checked(session, wanted, ready)
    with watched(session, progress, f"checking {len(ready.files.paths)} files"):
        rows, rejected = _counts(checked)
    rejects = ""
    if rejected:
        rejects = wanted.rejects or f"{wanted.table.text}.rejects.jsonl"
        with watched(session, progress, f"telling {rejected:,} rejects"):
            _tell_rejects(checked, Path(rejects))
    if rejected > wanted.rejects_max:
        raise PreconditionError(
            f"{rejected:,} of {rows:,} rows do not fit {wanted.table.text}, at most {wanted.rejects_max:,} "
            f"may: nothing was written; {rejects} tells which and why",
            hint="--max-rejects N loads the others",
        )
    if ready.creates:
        tables.make(access, wanted.table, ready.described)
    described = tables.describe(access, wanted.table)
    write_time_us = wanted.write_time_us or time.time_ns() // _NANOSECONDS_PER_MICROSECOND
    options = {"writeTimeMicros": str(write_time_us), "ignoreNulls": str(not wanted.nulls_delete).lower()}
    with watched(session, progress, f"writing {rows - rejected:,} rows"):
        good = _shared_out(session, _good(checked, ready.columns), ready)
        good.write.format("lockstep").options(**access.options(wanted.table, **options)).mode("append").save()
    # Statements go to whatever has the name, so a part of them may have gone to another table.
    tables.require_same(access, wanted.table, described, [one.name for one in ready.columns])
    return LoadReport(
        wanted.table.text, len(ready.files.paths), rows, rows - rejected, rejected, rejects,
        bool(ready.creates), write_time_us, time.monotonic() - began,
    )  # fmt: skip


def _export_in(sources: Sequence[str]) -> Path | None:
    """The directory, when one is named that holds an export, whole or not."""
    for text in sources:
        place = Path(text).expanduser().absolute()
        if (place / manifest.MANIFEST).exists() or (place / manifest.BEGUN).exists():
            if len(sources) > 1:
                raise ConfigurationError(f"{place} is an export, which is loaded by itself")
            return place
    return None


def _matched(described: Described, found: Files, wanted: Load) -> tuple[TableColumn, ...]:
    """The columns to load, by their names in the files."""
    known = {one.name: one for one in tables.columns_of(described)}
    unknown = [name for name in wanted.columns if name not in found.columns]
    if unknown and found.format != "json":
        raise ConfigurationError(
            f"the files have no column {unknown[0]}", hint=f"they have: {', '.join(found.columns)}"
        )
    names = wanted.columns or found.columns
    strange = [name for name in names if name not in known]
    if strange:
        others = ",".join(name for name in names if name in known)
        raise ConfigurationError(
            f"table {wanted.table.text} has no column {', '.join(strange)}, which the files have",
            hint=f"--columns {others}" if others else f"its columns: {', '.join(known)}",
        )
    missing = [key for key in described.key_names() if key not in names]
    if missing:
        raise ConfigurationError(f"the files lack the key column {', '.join(missing)} of {wanted.table.text}")
    return tuple(known[name] for name in names)


def _refuse_vague_decimals(access: Access, described: Described, exported: manifest.Manifest | None) -> None:
    """ConfigurationError where a partition is named by a decimal, and nobody has said by how many digits
    behind the point: in a key 1.5 and 1.50 are two partitions, and in files they are one number."""
    is_given = any(name.lower() == _SCALE.lower() for name, _ in access.others)
    if is_given or (exported is not None and exported.decimal_scale != DECIMAL_SCALE_DEFAULT):
        return
    for column in described.columns:
        if column.kind == "partition_key" and _DECIMAL.search(column.type):
            raise ConfigurationError(
                f"partition key column {column.name} has decimals, and partitions of 1.5 and 1.50 are two",
                hint=f"export and load with --option {_SCALE}=N, the digits behind the point that keys have",
            )


def _checked(session: SparkSession, wanted: Load, ready: Prepared) -> DataFrame:
    """All rows: the columns as the table has them, what is wrong, the row as it was, its file."""
    from pyspark.sql import functions as f

    source = _read(session, wanted, ready)
    given = {column.name: f.col(f"`{column.name}`") for column in ready.columns}
    if ready.files.format != "parquet" and wanted.null_text:
        given = {name: f.when(value != wanted.null_text, value) for name, value in given.items()}
    casts = [_cast(column, given[column.name], source, ready) for column in ready.columns]
    keys = ready.described.key_names()
    problems = [_problem(cast.is_bad, cast.name, f"is not {cast.takes}", given[cast.name]) for cast in casts]
    alone = _of_statics_alone(ready.columns, given)
    partition = ready.described.partition_key_names()
    for cast in casts:
        if cast.name in keys:
            lacks = f.isnull(given[cast.name])
            if cast.name not in partition:
                lacks &= ~alone
            problems.append(_problem(lacks, cast.name, "is of the key and has no value", f.lit(None)))
    if _CORRUPT in source.columns:
        broken = f.col(_CORRUPT)
        problems.append(_problem(f.isnotnull(broken), "", "the line cannot be taken apart", broken))
    found = f.filter(f.array(*problems), f.isnotnull)
    row = f.to_json(f.struct(*[value.alias(name) for name, value in given.items()]))
    return source.select(
        *[cast.value.alias(cast.name) for cast in casts],
        found.alias(_PROBLEMS),
        row.alias(_ROW),
        f.col("_metadata.file_path").alias(_FILE),
    )


def _of_statics_alone(columns: Sequence[TableColumn], given: Mapping[str, Any]) -> Any:
    """Whether a row is that of a partition which has static values and no rows."""
    from pyspark.sql import functions as f

    kinds = kinds_of((column.name, column.kind) for column in columns)
    if not kinds.may_be_alone:
        return f.lit(False)
    none = [f.isnull(given[name]) for name in (*kinds.clustering, *kinds.regular)]
    some = [f.isnotnull(given[name]) for name in kinds.static]
    return functools.reduce(operator.and_, none) & functools.reduce(operator.or_, some)


def _problem(is_bad: Any, column: str, reason: str, value: Any) -> Any:
    from pyspark.sql import functions as f

    told = f.struct(
        f.lit(column).alias("column"), f.lit(reason).alias("reason"), _shown(value).alias("value")
    )
    return f.when(is_bad, told)


def _shown(value: Any) -> Any:
    return value.try_cast("string")


def _read(session: SparkSession, wanted: Load, ready: Prepared) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    paths = [files.uri(path) for path in ready.files.paths]
    reader = session.read
    if ready.files.format == "parquet":
        if ready.manifest is None or ready.place is None:
            return reader.parquet(*paths)
        exported = ready.manifest
        typed = tables.spark_schema(exported.described, exported.columns, exported.decimal_scale)
        return reader.schema(typed).parquet(files.uri(ready.place / manifest.DATA))
    names = ready.files.columns if ready.files.format == "csv" else [one.name for one in ready.columns]
    texts = StructType([StructField(name, StringType()) for name in (*names, _CORRUPT)])
    reader = reader.schema(texts).option("columnNameOfCorruptRecord", _CORRUPT)
    if ready.files.format == "json":
        return reader.json(paths)
    return reader.options(header=True, sep=wanted.separator, escape='"', multiLine=True).csv(paths)


def _cast(column: TableColumn, given: Any, source: DataFrame, ready: Prepared) -> Cast:
    if ready.files.format == "parquet":
        found = source.schema[column.name].dataType
        return casting.from_typed(column, given, found, ready.decimal_scale)
    return casting.from_text(column, given, ready.decimal_scale)


def _counts(checked: DataFrame) -> tuple[int, int]:
    """Rows, and those that are rejected."""
    from pyspark.sql import functions as f

    is_rejected = (f.size(f.col(_PROBLEMS)) > 0).cast("bigint")
    counted = checked.agg(f.count("*"), f.coalesce(f.sum(is_rejected), f.lit(0))).first()
    assert counted is not None, "a count has one row"
    return int(counted[0]), int(counted[1])


def _tell_rejects(checked: DataFrame, target: Path) -> None:
    from pyspark.sql import functions as f

    rejected = checked.where(f.size(f.col(_PROBLEMS)) > 0).select(_FILE, _ROW, _PROBLEMS)
    try:
        with target.open("w", encoding="utf-8") as out:
            for row in rejected.limit(REJECTS_WRITTEN_MAX).collect():
                told = {
                    "file": row[0].removeprefix("file:").replace("///", "/"),
                    "row": json.loads(row[1]),
                    "problems": [one.asDict() for one in row[2]],
                }
                out.write(json.dumps(told, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"{target} cannot be written: {error.strerror}", hint="--rejects FILE"
        ) from error


def _shared_out(session: SparkSession, good: DataFrame, ready: Prepared) -> DataFrame:
    """Rows of few CSV files go to as many tasks as there are cores: each such file is read by one."""
    cores = session.sparkContext.defaultParallelism
    if ready.files.format != "csv" or len(ready.files.paths) >= cores:
        return good
    return good.repartition(cores, *[f"`{name}`" for name in ready.described.partition_key_names()])


def _good(checked: DataFrame, columns: Sequence[TableColumn]) -> DataFrame:
    from pyspark.sql import functions as f

    return checked.where(f.size(f.col(_PROBLEMS)) == 0).select(*[f.col(f"`{one.name}`") for one in columns])
