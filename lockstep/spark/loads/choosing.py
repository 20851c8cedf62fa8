"""Which way a DataFrame is written that leaves it open: as one load, or by statements.

Invariants. A table that cannot be loaded, or that its writer may not load, is found before a task runs. No
load begins before a task has more rows than it can hand to the driver; a write whose rows were all handed
over and are few is sent by statements from there, but for lists, whose elements a statement makes anew each
time that it is sent; and every other write is one load of all its rows. Either
way all of them have the write time at which the job was planned, unless it says otherwise.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lockstep.schema.types import ListType
from lockstep.spark.loads.client import LoadClient
from lockstep.spark.loads.writer import (
    LEVELS,
    BulkWriter,
    Staged,
    bulk_writer,
    commit,
    planned,
    stage,
    task_of_spark,
    tell,
    tell_done,
)
from lockstep.spark.options import AUTO, BULK, STATEMENTS, Options
from lockstep.spark.ring import TableShape
from lockstep.spark.writer import LockstepWriter, WritePlan, write_plan
from lockstep.values.errors import InvalidRequest, PreconditionError, Unauthorized
from lockstep.values.node_limits import CARRIED_BYTES_MAX, CARRIED_ROWS_MAX, SMALL_WRITE_ROWS_MAX


class OpenPlan(msgspec.Struct, frozen=True):
    """What every task does: `options` name the load, `statements` are those of a small write."""

    options: Options
    columns: tuple[str, ...]
    statements: WritePlan

    @property
    def has_lists(self) -> bool:
        """Whether a column is a list whose elements are values of their own."""
        kinds = [column.cql_type for column in self.statements.shape.columns]
        return any(isinstance(kind, ListType) and kind.is_multicell for kind in kinds)


@dataclass(frozen=True)
class Carried(WriterCommitMessage):
    """The rows of one task, as an Arrow stream; empty when there are none."""

    rows: int
    stream: bytes


def writer_of(
    shape: TableShape, schema: spark.StructType, overwrite: bool, options: Options
) -> LockstepWriter | BulkWriter | ChoosingWriter:
    """The writer of the way that the options ask for, or leave open. ConfigurationError as `write_plan`."""
    if options.write_mode == STATEMENTS:
        return LockstepWriter(options, write_plan(shape, schema, overwrite, options))
    if options.write_mode == BULK or overwrite or options.load_id:
        # Nothing but a load replaces a table, or has a name.
        return bulk_writer(shape, schema, overwrite, options)
    assert options.write_mode == AUTO, "there are three ways"
    statements = write_plan(shape, schema, overwrite, options)
    named = replace(options, load_id=str(uuid.uuid4()))
    time_us, reason = _asked(named)
    if reason:
        tell(shape, f"written by statements: {reason}")
        return LockstepWriter(options, statements)
    if not options.write_time_column:
        statements = replace(statements, write_time_us=time_us)
    columns = tuple(field.name for field in schema.fields)
    return ChoosingWriter(OpenPlan(replace(named, write_time_us=time_us), columns, statements))


def _asked(options: Options) -> tuple[int, str]:
    """The write time of a load, or why there can be none."""
    if options.consistency not in LEVELS:
        return 0, f"a load is not committed at {options.consistency.name}"
    client = LoadClient(options, options.load_id)
    try:
        answer = client.would_begin(options.write_time_us)
        assert answer.table is not None, "one that could begin has its table"
        if answer.table.indexes:
            names = ", ".join(index.name for index in answer.table.indexes)
            return 0, f"after a load, entries of its indexes ({names}) are made before these answer again"
        return answer.timestamp_us, ""
    except (InvalidRequest, Unauthorized) as error:
        return 0, error.message
    finally:
        client.close()


class ChoosingWriter(DataSourceArrowWriter):
    """Tasks hand few rows to the driver, and upload more of them; the driver makes one write of both."""

    def __init__(self, plan: OpenPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Carried | Staged:
        taken, is_all = first_rows_of(iterator)
        if is_all:
            return carried(taken)
        partition, attempt = task_of_spark()
        begun = planned(self._plan.options, self._plan.columns, False)
        return stage(begun, itertools.chain(taken, iterator), partition, attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises when rows are not written, or that is not known; of a load, then, there are none."""
        staged = [message for message in messages if isinstance(message, Staged)]
        few = [message for message in messages if isinstance(message, Carried)]
        if len(staged) + len(few) != len(messages):
            raise PreconditionError(f"{len(messages) - len(staged) - len(few)} tasks told nothing")
        rows = sum(one.rows for one in few)
        shape = self._plan.options
        if not staged and rows <= SMALL_WRITE_ROWS_MAX and not (rows and self._plan.has_lists):
            # One batch: a value that does not fit is found before anything is sent.
            whole = list(batches_of(few))
            if whole:
                one = pa.Table.from_batches(whole).combine_chunks().to_batches()
                LockstepWriter(shape, self._plan.statements).write(iter(one))
            tell(shape, f"{rows} rows written by statements: they are few")
            return
        plan = planned(self._plan.options, self._plan.columns, False)
        if rows:
            # A partition of its own, behind those that Spark counts.
            staged.append(stage(plan, batches_of(few), len(messages), 0))
        tell_done(shape, commit(plan, staged))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing when the load was committed, or has not begun."""
        client = LoadClient(self._plan.options, self._plan.options.load_id)
        try:
            client.abort("its job failed")
        except InvalidRequest as error:
            # No task had that many rows; one that still comes to it leaves a load to its lease.
            tell(self._plan.options, f"nothing is to be given up: {error.message}")
        finally:
            client.close()


def first_rows_of(batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], bool]:
    """As many as are handed over, or one batch more; whether these are all."""
    taken, rows, size = [], 0, 0
    for batch in batches:
        taken.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows > CARRIED_ROWS_MAX or size > CARRIED_BYTES_MAX:
            return taken, False
    return taken, True


def carried(batches: Sequence[pa.RecordBatch]) -> Carried:
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return Carried(0, b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, some[0].schema) as stream:
        for batch in some:
            stream.write_batch(batch)
    return Carried(sum(batch.num_rows for batch in some), sink.getvalue().to_pybytes())


def batches_of(some: Iterable[Carried]) -> Iterator[pa.RecordBatch]:
    for one in some:
        if one.rows:
            yield from pa.ipc.open_stream(one.stream)
