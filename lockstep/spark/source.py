"""The data source `lockstep`: tables as Spark DataFrames, read and appended to.

Owns: the schema of a table as Spark sees it, and the readers. Invariant: a reader is data (options, table
shape, projection), so Spark may pickle it anywhere; connections and the ring are looked up by the process
that reads. Batches have exactly the declared types.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from lockstep.cql.wire.messages import Value
from lockstep.schema.clustering import derived_key
from lockstep.schema.log_tables import SUFFIX
from lockstep.spark.changes.reader import change_reader, schema_of
from lockstep.spark.changes.stream_options import of_changes
from lockstep.spark.changes.writer import ChangeWriter, change_writer
from lockstep.spark.columns import spark_type
from lockstep.spark.cql_client import pool_of
from lockstep.spark.loads.choosing import ChoosingWriter, writer_of
from lockstep.spark.loads.writer import BulkWriter
from lockstep.spark.options import Options, parse_options
from lockstep.spark.pushdown import selection_of
from lockstep.spark.ring import (
    KeyPartition,
    RangePartition,
    Ring,
    SnapshotPartition,
    TableColumn,
    TableShape,
    ask_any,
    first_rows,
    key_partitions,
    limited,
    quoted,
    range_partitions,
    read_ring,
    read_table,
    ring_of,
    within,
)
from lockstep.spark.scan import Hosts, PageDecoder, StatementReader
from lockstep.spark.selecting import Selection
from lockstep.spark.snapshot_reading import SnapshotScan, slices_of
from lockstep.spark.snapshots import SNAPSHOT, open_snapshot
from lockstep.spark.writer import LockstepWriter
from lockstep.values.codec import encode
from lockstep.values.errors import ConfigurationError, InvalidRequest
from lockstep.values.tokens import stream_token, token_of

FORMAT: Final = "lockstep"
_TOKEN_BYTES: Final = 8


#: Spark's own option of a stream, which it hands on with those of the format.
_CHECKPOINT: Final = "checkpointlocation"


class LockstepSource(DataSource):
    """`spark.read.format("lockstep")` and `df.write.format("lockstep").mode("append")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        #: The encoded snapshot that all readers of a DataFrame share; empty while none was opened.
        self._snapshot = b""

    def schema(self) -> StructType:
        """The table's columns, or those of the option `columns`, as Spark types; those of a stream of changes
        with the option `changes`. Spark asks as a DataFrame is made, so what it reads is fixed here."""
        if of_changes(self.options):
            return schema_of(self.options)
        options = parse_options(self.options)
        shape = table_shape(options)
        names = options.columns or tuple(column.name for column in shape.columns)
        found = StructType([_field(shape, shape.column(name), options) for name in names])
        if options.snapshot and not self._snapshot:
            self._snapshot = encode(open_snapshot(options))
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the schema's columns; one that takes filters where the option asks for it."""
        if of_changes(self.options):
            raise ConfigurationError("changes are a stream", hint="spark.readStream in place of spark.read")
        options = parse_options(self.options)
        shape = table_shape(options)
        projection = _projection(shape, schema, options)
        kind = FilteringReader if options.filter_pushdown else LockstepReader
        return kind(options, shape, projection, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of changes."""
        if not of_changes(self.options):
            raise ConfigurationError(
                "a table is no stream, its changes are", hint='add .option("changes", "rows")'
            )
        return change_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ChangeWriter:
        """A writer that applies a stream of changes to the table."""
        options = parse_options(
            {name: text for name, text in self.options.items() if name.lower() != _CHECKPOINT}
        )
        return change_writer(options, table_shape(options), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> LockstepWriter | BulkWriter | ChoosingWriter:
        """A writer, after every check of the schema that needs no data."""
        options = parse_options(self.options)
        return writer_of(table_shape(options), schema, overwrite, options)


class LockstepReader(DataSourceReader):
    """Reads whole token ranges; of `snapshot`, where one was opened before."""

    def __init__(
        self, options: Options, shape: TableShape, projection: Sequence[TableColumn], snapshot: bytes = b""
    ) -> None:
        self._options = options
        self._shape = shape
        self._projection = tuple(projection)
        self._snapshot = snapshot
        self._selection: Selection | None = None

    def partitions(self) -> Sequence[InputPartition]:
        told = self._snapshot
        if self._options.snapshot and not told:
            told = encode(open_snapshot(self._options))
        ring = ring_of(SNAPSHOT.decode(told)) if told else self._ring()
        parts = limited(self._parts(ring), self._options.limit)
        if not told:
            return list(parts)
        return [SnapshotPartition(told, part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of about `batchRows` rows, or of as many as nodes make of a snapshot."""
        return first_rows(self._read(partition), self._options.limit)

    def _parts(self, ring: Ring) -> Sequence[RangePartition | KeyPartition]:
        options, selection = self._options, self._selection
        if selection is None:
            return within(range_partitions(ring, options.splits_per_range), options.token_ranges)
        found = [key for key in selection.keys if self._is_wanted(key)]
        return key_partitions(found, len(options.hosts))

    def _is_wanted(self, key: Sequence[bytes]) -> bool:
        ranges = self._options.token_ranges
        token = self._token(key)
        return not ranges or any(left < token <= right for left, right in ranges)

    def _token(self, key: Sequence[bytes]) -> int:
        of_key = stream_token if self._options.table.endswith(SUFFIX) else token_of
        return of_key(derived_key(key))

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SnapshotPartition):
            yield from self._snapshot_rows(partition)
        elif isinstance(partition, KeyPartition):
            yield from self._key_rows(partition)
        elif isinstance(partition, RangePartition):
            token = f"token({', '.join(quoted(column.name) for column in self._shape.partition_key)})"
            wanted = [((_token_bytes(left), _token_bytes(right)), right) for left, right in partition.ranges]
            yield from self._batches(f"{token} > ? AND {token} <= ?", wanted, partition.turn)
        # Spark makes a partition of its own where a reader has none.

    def _key_rows(self, partition: KeyPartition) -> Iterator[pa.RecordBatch]:
        selection = self._selection
        assert selection is not None, "keys are those of a selection"
        terms = [f"{quoted(column.name)} = ?" for column in self._shape.partition_key]
        depth = len(selection.prefixes[0])
        terms += [f"{quoted(column.name)} = ?" for column in self._shape.clustering[:depth]]
        ends: list[bytes] = []
        for bound, sign in ((selection.lower, ">"), (selection.upper, "<")):
            if bound is not None:
                name = quoted(self._shape.clustering[depth].name)
                terms.append(f"{name} {sign}{'=' if bound.inclusive else ''} ?")
                ends.append(bound.value)
        wanted = [
            ((*key, *prefix, *ends), self._token(key))
            for key in partition.keys
            for prefix in selection.prefixes
        ]
        yield from self._batches(" AND ".join(terms), wanted, partition.turn)

    def _snapshot_rows(self, partition: SnapshotPartition) -> Iterator[pa.RecordBatch]:
        snapshot = SNAPSHOT.decode(partition.snapshot)
        names = [column.name for column in self._projection]
        part, selection = partition.part, self._selection
        scan = SnapshotScan(self._options, snapshot, names, part.turn, self._options.limit)
        if isinstance(part, RangePartition):
            return scan.ranges(part.ranges)
        wanted = [(self._token(key), derived_key(key)) for key in part.keys]
        return scan.keys(wanted, slices_of(snapshot, selection))

    def _batches(
        self, where: str, wanted: Sequence[tuple[tuple[Value, ...], int]], turn: int
    ) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(quoted(column.name) for column in self._projection)
        text = (
            f"SELECT {columns} FROM {quoted(self._shape.keyspace)}.{quoted(self._shape.table)} WHERE {where}"
        )
        hosts = Hosts(self._options, pool_of(os.getpid()))
        reader = StatementReader(text, len(self._projection), self._options, hosts, turn)
        decoder = PageDecoder(
            [(column.name, column.cql_type) for column in self._projection], self._options.decimal_scale
        )
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for values, token in wanted:
            for page in reader.pages(values, token):
                if page.count:
                    gathered.append(decoder.decode(page))
                    rows += page.count
                if rows >= self._options.batch_rows:
                    yield pa.concat_batches(gathered)
                    gathered, rows = [], 0
        if gathered:
            yield pa.concat_batches(gathered)

    def _ring(self) -> Ring:
        return ask_any(
            pool_of(os.getpid()),
            self._options.endpoints,
            self._options.timeout_s,
            lambda connection: read_ring(connection, self._options.keyspace),
        )


class FilteringReader(LockstepReader):
    """Turns filters that fix the whole partition key into reads of those partitions, and those on clustering
    columns into reads of slices of them.

    A class of its own, and only for who asks for it: of each DataFrame that was loaded Spark keeps one plan
    of reading, that of the filters it handed on last, and takes it for the other queries of the DataFrame as
    well. It also refuses every reader with `pushFilters` while its setting
    spark.sql.python.filterPushdown.enabled is off, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._selection, left = selection_of(self._shape, filters)
        return left


def table_shape(options: Options) -> TableShape:
    """The table that the options name. PeerUnreachable, or ConfigurationError when there is none."""
    return ask_any(
        pool_of(os.getpid()),
        options.endpoints,
        options.timeout_s,
        lambda connection: read_table(connection, options.keyspace, options.table),
    )


def _field(shape: TableShape, column: TableColumn, options: Options) -> StructField:
    try:
        return StructField(column.name, spark_type(column.cql_type, options.decimal_scale))
    except InvalidRequest as error:
        others = ",".join(other.name for other in shape.columns if other.name != column.name)
        raise ConfigurationError(
            f"column {column.name}: {error.message}; leave it out with .option('columns', '{others}')"
        ) from None


def _projection(shape: TableShape, schema: StructType, options: Options) -> list[TableColumn]:
    """The columns that `schema` asks for; it may come from the user, so names and types are compared."""
    if not schema.fields:
        raise ConfigurationError("the schema has no columns")
    columns = []
    for field in schema.fields:
        column = shape.column(field.name)
        expected = _field(shape, column, options)
        if field.dataType != expected.dataType or not field.nullable:
            null = "" if field.nullable else " NOT NULL"
            raise ConfigurationError(
                f"column {column.name} is {expected.dataType.simpleString()} (from {column.type}), "
                f"not {field.dataType.simpleString()}{null}"
            )
        columns.append(column)
    return columns


def _token_bytes(token: int) -> bytes:
    return token.to_bytes(_TOKEN_BYTES, "big", signed=True)
