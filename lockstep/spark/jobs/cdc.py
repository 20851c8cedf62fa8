"""`cdc`: the changes of a table into Parquet files or into another table, each exactly once.

Invariant: a batch is a directory named by its number, or statements with the write times of their changes; so
one that is repeated replaces itself. Which batch is next and where it begins is in the checkpoint, and a
directory of files says which checkpoint it belongs to. A target that is taken is refused before Spark starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.spark.changes.applying import check_target, table_columns
from lockstep.spark.changes.log_reading import LogQuestions, captured_settings, read_shape
from lockstep.spark.changes.stream_options import (
    EARLIEST,
    FAIL,
    parse_stream_options,
    without_those_of_streams,
)
from lockstep.spark.changes.windows import Position, position_of
from lockstep.spark.jobs import manifest, places, tables
from lockstep.spark.jobs.files import uri
from lockstep.spark.jobs.running import Progress, plain_errors
from lockstep.spark.jobs.tables import Access, TableName, table_name
from lockstep.values.errors import ConfigurationError, PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET: Final = "parquet"
TABLE: Final = "table"
#: Beside the batches, whose directories it is skipped with: readers of files leave out what begins so.
_CHECKPOINT: Final = "_checkpoint"
_MARK: Final = "_changes.json"
_BATCH: Final = "batch="
#: How often the job looks for batches that have ended.
_LOOK_EVERY_S: Final = 0.5
_US_PER_S: Final = 1_000_000


class Cdc(msgspec.Struct, frozen=True):
    """What is asked for. `to` is `parquet:DIR` or `KEYSPACE.TABLE`; limits of 0 are none. `trigger_s` lies
    between the beginnings of batches, 0 without a pause."""

    table: TableName
    to: str
    checkpoint: str = ""
    columns: tuple[str, ...] = ()
    available_now: bool = False
    starting: str = EARLIEST
    rows_max: int = 0
    bytes_max: int = 0
    on_gap: str = FAIL
    trigger_s: float = 1.0


class CdcPlan(msgspec.Struct, frozen=True):
    """What the job would do. `from_us` is the write time it goes on from, None where it begins; `kept_s` how
    long rows live in the log, 0 for ever."""

    table: str
    to: str
    checkpoint: str
    columns: tuple[str, ...]
    from_us: int | None
    kept_s: int
    generations: int
    streams: int


class CdcReport(msgspec.Struct, frozen=True):
    """`batches` are those that had changes, `until_us` is the write time before which all was read."""

    table: str
    to: str
    checkpoint: str
    batches: int
    changes: int
    until_us: int
    resumed: bool
    elapsed_s: float


class Mark(msgspec.Struct, frozen=True):
    """What a directory of batches belongs to."""

    schema: str
    table: str
    checkpoint: str


class Prepared(msgspec.Struct, frozen=True):
    """What is known before Spark starts. `place` is the directory of files, `target` the table."""

    kind: str
    checkpoint: Path
    position: Position | None
    place: Path | None = None
    target: TableName | None = None


def prepare(access: Access, wanted: Cdc) -> Prepared:
    """Look at the target, the checkpoint and the log. ConfigurationError, PreconditionError, PeerError."""
    kind, separator, path = wanted.to.partition(":")
    if separator:
        if kind != PARQUET or not path:
            raise ConfigurationError(f"--to {wanted.to!r} is neither parquet:DIR nor KEYSPACE.TABLE")
        place = manifest.directory(path)
        checkpoint = manifest.directory(wanted.checkpoint) if wanted.checkpoint else place / _CHECKPOINT
        _check_place(place, Mark("changes-mark/1", wanted.table.text, str(checkpoint)))
        return Prepared(PARQUET, checkpoint, _left_at(checkpoint), place=place)
    if not wanted.checkpoint:
        raise ConfigurationError(
            "changes into a table need a place where the job keeps how far it is", hint="--checkpoint DIR"
        )
    target = table_name(wanted.to)
    _check_table(access, wanted, target)
    checkpoint = manifest.directory(wanted.checkpoint)
    return Prepared(TABLE, checkpoint, _left_at(checkpoint), target=target)


def plan(access: Access, wanted: Cdc) -> CdcPlan:
    """What `run` would do. Errors as `prepare`."""
    ready = prepare(access, wanted)
    options, _ = parse_stream_options(_options(access, wanted))
    shape = read_shape(options)
    questions = LogQuestions(options, shape)
    log = questions.log()
    streams = questions.streams(log.stretches[-1]) if log.stretches else []
    return CdcPlan(
        wanted.table.text,
        wanted.to,
        str(ready.checkpoint),
        tuple(one.name for one in shape.columns),
        ready.position.until_us if ready.position is not None else None,
        log.ttl_s,
        len(log.stretches),
        len(streams),
    )


def run(session: SparkSession, access: Access, wanted: Cdc, progress: Progress) -> CdcReport:
    """Follow the table, to the end of what is there with `available_now`, else until interrupted. Errors as
    `prepare`; ChangesGone."""
    began = time.monotonic()
    ready = prepare(access, wanted)
    with places.claimed(ready.place or ready.checkpoint):
        # Another job may have come as far as its first batch since.
        return _followed_until(session, access, wanted, prepare(access, wanted), progress, began)


def _followed_until(
    session: SparkSession, access: Access, wanted: Cdc, ready: Prepared, progress: Progress, began: float
) -> CdcReport:
    options = _options(access, wanted)
    with plain_errors():
        changes = session.readStream.format("lockstep").options(**options).load()
        writer = _sink(changes, access, ready).option("checkpointLocation", uri(ready.checkpoint))
        if wanted.available_now:
            writer = writer.trigger(availableNow=True)
        elif wanted.trigger_s:
            writer = writer.trigger(processingTime=f"{int(wanted.trigger_s * 1000)} milliseconds")
        if ready.place is not None:
            manifest.write_whole(
                ready.place / _MARK, Mark("changes-mark/1", wanted.table.text, str(ready.checkpoint))
            )
        progress.phase(f"following {wanted.table.text}")
        query = writer.start()
        batches, rows = _followed(query, progress)
    position = _left_at(ready.checkpoint)
    return CdcReport(
        wanted.table.text, wanted.to, str(ready.checkpoint), batches, rows,
        position.until_us if position is not None else 0, ready.position is not None,
        time.monotonic() - began,
    )  # fmt: skip


def _options(access: Access, wanted: Cdc) -> dict[str, str]:
    limits = {"maxRowsPerTrigger": wanted.rows_max, "maxBytesPerTrigger": wanted.bytes_max}
    return access.options(
        wanted.table,
        changes="rows",
        startingOffsets=wanted.starting,
        onGap=wanted.on_gap,
        columns=",".join(wanted.columns),
        **{name: str(value) for name, value in limits.items() if value},
    )


def _of_target(access: Access) -> Access:
    return msgspec.structs.replace(access, others=without_those_of_streams(access.others))


def _sink(changes: DataFrame, access: Access, ready: Prepared) -> Any:
    if ready.target is not None:
        return changes.writeStream.format("lockstep").options(**_of_target(access).options(ready.target))
    assert ready.place is not None, "changes go to a table or to files"
    return changes.writeStream.foreachBatch(_into(ready.place))


def _into(place: Path) -> Callable[[DataFrame, int], None]:
    """Writes a batch as the directory of its number, in place of what an earlier attempt left."""

    def write(rows: DataFrame, batch: int) -> None:
        attempt = places.attempt_in(place)
        with places.given_up(attempt):
            rows.write.parquet(uri(attempt))
        places.made_whole(attempt, place / f"{_BATCH}{batch:08d}")

    return write


def _followed(query: Any, progress: Progress) -> tuple[int, int]:
    """(batches with changes, changes) until the query ends. What Spark raises."""
    told, batches, rows = -1, 0, 0
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(_LOOK_EVERY_S)
            for one in query.recentProgress:
                if one["batchId"] <= told or not one["numInputRows"]:
                    continue
                told = one["batchId"]
                batches += 1
                rows += one["numInputRows"]
                progress.phase(f"batch {told}: {one['numInputRows']:,} changes, {rows:,} in all")
    except KeyboardInterrupt:
        query.stop()
    return batches, rows


def _left_at(checkpoint: Path) -> Position | None:
    """The end of the newest batch that a checkpoint says was planned; None without one. ConfigurationError
    when it cannot be understood."""
    offsets = checkpoint / "offsets"
    numbers = [int(one.name) for one in offsets.iterdir() if one.name.isdigit()] if offsets.is_dir() else []
    if not numbers:
        return None
    path = offsets / str(max(numbers))
    try:
        told = path.read_text().splitlines()[-1]
        return position_of(msgspec.json.decode(told))
    except (OSError, IndexError, AttributeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path} cannot be understood: {error}") from error


def _check_place(place: Path, mark: Mark) -> None:
    """PreconditionError for a directory that holds anything but batches of the same."""
    if place.exists() and not place.is_dir():
        raise PreconditionError(f"{place} is no directory")
    if not place.exists() or not any(place.iterdir()):
        if Path(mark.checkpoint).exists():
            raise PreconditionError(
                f"{mark.checkpoint} is a checkpoint already, and {place} has no changes",
                hint="name a new checkpoint",
            )
        return
    try:
        found = msgspec.json.decode((place / _MARK).read_bytes(), type=Mark)
    except FileNotFoundError:
        raise PreconditionError(
            f"{place} is not empty and holds no changes", hint="name a new directory"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise PreconditionError(f"{place / _MARK} cannot be understood: {error}") from error
    if found != mark:
        raise PreconditionError(
            f"{place} holds changes of {found.table}, with their checkpoint in {found.checkpoint}",
            hint="name a new directory",
        )
    batches = any(one.name.startswith(_BATCH) for one in place.iterdir())
    if batches and not Path(mark.checkpoint).exists():
        raise PreconditionError(
            f"{place} holds changes whose checkpoint {mark.checkpoint} is gone", hint="name a new directory"
        )


def _check_table(access: Access, wanted: Cdc, target: TableName) -> None:
    """ConfigurationError when changes of the one table cannot be applied to the other."""
    if target == wanted.table:
        raise ConfigurationError(f"changes of {target.text} cannot go into itself")
    options, _ = parse_stream_options(_options(access, wanted))
    settings = captured_settings(options)
    if settings.get("delta") == "keys":
        raise ConfigurationError(
            f"the log of {wanted.table.text} tells only which rows changed, not to what",
            hint="ALTER TABLE ... WITH cdc = {'enabled': true, 'delta': 'full'}",
        )
    names = table_columns([one.name for one in read_shape(options).columns])
    check_target(tables.shape_of(_of_target(access), target), names)
