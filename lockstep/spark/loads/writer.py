"""Writing a DataFrame, or Arrow data, as one bulk load.

Invariants. Schemas are compared on the driver, before a task runs. A task uploads files under its partition
and attempt, and only those of the attempts that Spark lets win are committed, by one entry. What fails leaves
nothing in the table: files of other attempts, and of jobs that died, go with the load. A load that was
committed under the same name already is not done again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lockstep.replica.load_messages import LoadFile
from lockstep.replica.load_requests import LoadAnswer
from lockstep.spark.loads.client import COMMITTED, RUNNING, LoadClient
from lockstep.spark.loads.encoding import Encoded, EncodePlan, encoded, write_id_of
from lockstep.spark.loads.files import Slices, SortedFiles
from lockstep.spark.options import BULK, Options, parse_options
from lockstep.spark.ring import TableShape
from lockstep.spark.writer import checked_columns
from lockstep.values.errors import ConfigurationError, OutcomeUnknown, PreconditionError
from lockstep.values.ids import Consistency

#: What a task gathers before it writes files, or puts it aside: some times as much is in memory then.
GATHERED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Rows that are encoded at once: columns of them stay in the processor's caches.
_ENCODED_ROWS: Final = 65_536
#: A lease is renewed when this part of it has passed.
_RENEWED_AFTER: Final = 4
#: Those that a load may be committed at.
LEVELS: Final = (
    Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM, Consistency.ALL,
)  # fmt: skip


class LoadPlan(msgspec.Struct, frozen=True):
    """What every task does. `is_done`: the load was committed before, and there is nothing to do."""

    job: str
    options: Options
    overwrite: bool
    ranges: tuple[tuple[int, int], ...] = ()
    encode: EncodePlan | None = None
    is_done: bool = False


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """Files of one task (encoded, so that Spark carries bytes), nodes that hold some, and rows."""

    files: tuple[LoadFile, ...]
    holders: tuple[int, ...]
    rows: int


class LoadResult(msgspec.Struct, frozen=True):
    """`lacking`: replicas that have not taken in what is theirs; a repair brings it to them."""

    load_id: str
    rows: int
    files: int
    size_bytes: int
    epoch: int
    lacking: tuple[int, ...] = ()


def planned(options: Options, columns: Sequence[str], overwrite: bool) -> LoadPlan:
    """Begin the load. PreconditionError when the name's load has ended otherwise."""
    if options.consistency not in LEVELS:
        names = ", ".join(level.name for level in LEVELS)
        raise ConfigurationError(
            f"a bulk load is committed at one of {names}, not {options.consistency.name}"
        )
    job = options.load_id or str(uuid.uuid4())
    client = LoadClient(options, job)
    try:
        answer = client.begin(overwrite, options.write_time_us, options.lease_ms)
    finally:
        client.close()
    if answer.state == COMMITTED:
        return LoadPlan(job, options, overwrite, is_done=True)
    if answer.state != RUNNING:
        raise PreconditionError(
            f"load {job} was {answer.state}: {answer.reason}", hint="choose another loadId"
        )
    return LoadPlan(job, options, overwrite, answer.ranges, _encode_plan(options, answer, columns))


def _encode_plan(options: Options, answer: LoadAnswer, columns: Sequence[str]) -> EncodePlan:
    assert answer.table is not None, "a load that runs has its table"
    further = (options.ttl_column, options.write_time_column)
    for name in further:
        if name and name not in columns:
            raise ConfigurationError(f"the data has no column {name}")
        if name in answer.table.by_name:
            raise ConfigurationError(f"{name} is a column of the table, not one of times")
    return EncodePlan(
        answer.table,
        answer.types,
        answer.stored_id,
        tuple(name for name in columns if name not in further),
        answer.timestamp_us,
        answer.now_s,
        options.ttl_s,
        options.ttl_column,
        options.write_time_column,
        options.ignore_nulls,
    )


def bulk_writer(shape: TableShape, schema: spark.StructType, overwrite: bool, options: Options) -> BulkWriter:
    """After the schema was found to fit the table, and the load has begun."""
    checked_columns(shape, schema.fields, options)
    return BulkWriter(planned(options, [field.name for field in schema.fields], overwrite))


class BulkWriter(DataSourceArrowWriter):
    """Spark's side of a load: tasks upload, the driver commits or gives up."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        partition, attempt = task_of_spark()
        return stage(self._plan, iterator, partition, attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises when the load did not become part of the table, or that is not known."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if len(staged) != len(messages):
            raise PreconditionError(
                f"{len(messages) - len(staged)} tasks of load {self._plan.job} told nothing"
            )
        tell_done(self._plan.options, commit(self._plan, staged))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing when the load was committed, whatever its driver heard of that."""
        if self._plan.is_done:
            return
        client = LoadClient(self._plan.options, self._plan.job)
        try:
            client.abort("its job failed")
        finally:
            client.close()


def task_of_spark() -> tuple[int, int]:
    """(partition, attempt) of the task that runs here, zeros outside of tasks."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())


def stage(plan: LoadPlan, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> Staged:
    """Upload the rows of one partition."""
    if plan.is_done:
        return Staged((), (), 0)
    with tempfile.TemporaryDirectory(prefix="lockstep-load-") as directory:
        task = _Task(plan, directory, partition, attempt)
        try:
            return task.run(batches)
        finally:
            task.close()


class _Task:
    """One attempt at one partition."""

    def __init__(self, plan: LoadPlan, directory: str, partition: int, attempt: int) -> None:
        assert plan.encode is not None, "what runs has a plan"
        self.client = LoadClient(plan.options, plan.job, partition)
        self._plan = plan
        self._encode = plan.encode
        self._write_id = write_id_of(plan.job, partition)
        self._files = SortedFiles(directory, partition, attempt, plan.ranges)
        #: What was gathered before, where not all of the partition has room at once.
        self._slices = Slices(directory, plan.ranges)
        self._gathered: list[Encoded] = []
        self._bytes = 0
        self._staged: list[LoadFile] = []
        self._holders: dict[int, None] = {}
        self._renewed_s = time.monotonic()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        rows = 0
        for batch in batches:
            for at in range(0, batch.num_rows, _ENCODED_ROWS):
                self._add(batch.slice(at, _ENCODED_ROWS))
            rows += batch.num_rows
            self._renew()
        if not self._slices:
            self._upload(self._gathered)
        else:
            self._put_aside()
            for parts in self._slices.taken(GATHERED_BYTES_MAX):
                self._upload(parts)
                self._renew()
        return Staged(tuple(self._staged), tuple(self._holders), rows)

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._bytes >= GATHERED_BYTES_MAX:
            self._put_aside()
        made = encoded(self._encode, _compact(batch), self._write_id)
        self._gathered.append(made)
        self._bytes += made.keys.nbytes + made.values.nbytes

    def _put_aside(self) -> None:
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        if gathered:
            self._slices.add(gathered)

    def _upload(self, parts: Sequence[Encoded]) -> None:
        for file, path in self._files.write(parts) if parts else ():
            self._holders.update(dict.fromkeys(self.client.put(file, path)))
            self._staged.append(file)
            os.remove(path)

    def close(self) -> None:
        self._slices.close()
        self.client.close()

    def _renew(self) -> None:
        """The load lives on while rows come, however slowly they do."""
        passed_s = time.monotonic() - self._renewed_s
        if passed_s * 1000 * _RENEWED_AFTER > self._plan.options.lease_ms:
            self.client.begin(self._plan.overwrite, lease_ms=self._plan.options.lease_ms)
            self._renewed_s = time.monotonic()


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A slice as a batch of its own: buffers begin with its first row."""
    whole = pa.Table.from_batches([batch])
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)]) for column in whole.columns],
        batch.schema.names,
    )


def commit(plan: LoadPlan, staged: Sequence[Staged]) -> LoadResult:
    """Make what tasks uploaded part of the table."""
    files = tuple(file for one in staged for file in one.files)
    rows = sum(one.rows for one in staged)
    client = LoadClient(plan.options, plan.job)
    try:
        if plan.is_done:
            return LoadResult(plan.job, 0, 0, 0, client.look().ended_epoch)
        answer = client.commit(files, tuple({node: None for one in staged for node in one.holders}), rows)
    finally:
        client.close()
    if answer.state != COMMITTED:
        raise OutcomeUnknown(f"load {plan.job} is {answer.state} after its commit")
    size = sum(file.size_bytes for file in files)
    return LoadResult(plan.job, rows, len(files), size, answer.ended_epoch, answer.lacking)


def tell_done(options: Options, done: LoadResult) -> None:
    """What became of a load, for whoever runs the job: one below a level of all may leave replicas without
    it, which nobody would hear of otherwise."""
    tell(options, f"{done.rows} rows written by load {done.load_id}, epoch {done.epoch}")
    if done.lacking:
        nodes = ", ".join(map(str, done.lacking))
        tell(options, f"nodes {nodes} lack it: `lockstep repair {options.keyspace}` brings it to them")


def tell(table: TableShape | Options, text: str) -> None:
    """A line for whoever runs the job: Spark hands on what its Python processes say there."""
    sys.stderr.write(f"lockstep: {table.keyspace}.{table.table}: {text}\n")
    sys.stderr.flush()


def bulk_load(
    data: pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch], *, mode: str = "append", **options: Any
) -> LoadResult:
    """Load Arrow data without Spark, with the options of the data source as keywords; `mode` is append or
    overwrite. ConfigurationError, InvalidRequest or PreconditionError: nothing became part of the table."""
    if mode not in ("append", "overwrite"):
        raise ConfigurationError(f"mode is append or overwrite, not {mode}")
    parsed = parse_options({"writeMode": BULK, **{name: str(value) for name, value in options.items()}})
    batches = data.to_batches() if isinstance(data, pa.Table) else data
    first, rest = _first(batches)
    plan = planned(
        parsed, data.schema.names if isinstance(data, pa.Table) else first.schema.names, mode == "overwrite"
    )
    try:
        _check_keys(plan)
        staged = stage(plan, rest, 0, 0)
    except BaseException:
        BulkWriter(plan).abort([])
        raise
    return commit(plan, [staged])


def _first(batches: Iterable[pa.RecordBatch]) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
    """The first of them, for its columns, and all of them."""
    found = iter(batches)
    first = next(found, None)
    if first is None:
        return pa.record_batch({}), iter(())

    def each() -> Iterator[pa.RecordBatch]:
        yield first
        yield from found

    return first, each()


def _check_keys(plan: LoadPlan) -> None:
    if plan.encode is None:
        return
    table, columns = plan.encode.table, plan.encode.columns
    unknown = [name for name in columns if name not in table.by_name]
    if unknown:
        raise ConfigurationError(f"table {table.keyspace}.{table.name} has no column {', '.join(unknown)}")
    missing = [one.name for one in (*table.partition_key, *table.clustering) if one.name not in columns]
    if missing:
        raise ConfigurationError(
            f"the data lacks key column {', '.join(missing)} of {table.keyspace}.{table.name}"
        )
