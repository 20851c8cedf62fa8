"""Read results to result rows: which reads come next, and what the client receives.

Invariant: rows are consumed strictly in answer order, and `cursor` always names the last one consumed, so
a page can stop behind any row. A page ends with the row that passes PAGE_BYTES_MAX, however many rows the
client asks for; a result that cannot end early is refused above UNPAGED_BYTES_MAX. Read results hold live
data only. Rows of one partition are packed as the protocol writes them, without a record for each in between,
only where the selection's outputs are columns as they are, none of them made of several cells: what is packed
is what a record of the row gives for the outputs, encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.cql.bind.page_positions import PagePosition, encode
from lockstep.cql.bind.records import Groups, RecordReader, ResultRow, whole_value
from lockstep.cql.compile.expressions import Record, Selection
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.select import POINT, SelectPlan, SelectPrepared
from lockstep.cql.wire.primitives import pack_int, pack_row
from lockstep.cql.wire.responses import encode_rows
from lockstep.schema.clustering import decode, encode_prefix, split_key
from lockstep.schema.log_tables import token_in
from lockstep.schema.model import ColumnKind
from lockstep.values.errors import InvalidRequest, ServerFault
from lockstep.values.limits import PAGE_ROWS_DEFAULT, PARTITION_READS_AT_ONCE_MAX
from lockstep.values.node_limits import (
    PAGE_BYTES_MAX,
    ROWS_A_TURN,
    TOLD_ROWS_MAX,
    UNPAGED_BYTES_MAX,
    UNPAGED_ROWS_MAX,
)
from lockstep.values.outlines import Outline, Told
from lockstep.values.rows import Partition, Position, ReadCommand, ReadResult, Row

_NULL = pack_int(-1)
#: (what every row of a partition has here, packed, or None; position in the clustering, or -1; column id).
_Output = tuple[bytes | None, int, int]
Clustering = Callable[[bytes], Sequence[bytes]]


def is_packable(select: SelectPrepared) -> bool:
    """Whether results of the statement are rows of columns as they are stored."""
    selection = select.selection
    if selection.plain is None or selection.cells or select.folds or select.sorts or select.distinct:
        return False
    if selection.user_typed:
        return False
    types = select.shape.types
    kinds = [types[column.name] for column in selection.columns if column.kind is not ColumnKind.STATIC]
    return not any(kind.is_multicell or kind.name == "counter" for kind in kinds)


def clustering_reader(shape: TableShape) -> Clustering:
    """Decodes clusterings; one column of a fixed size needs no search for its end."""
    types, descending = shape.clustering_types, shape.descending
    kind = types[0] if len(types) == 1 else None
    if kind is None or descending[0] or kind.fixed_bytes is None:
        return lambda encoded: decode(types, descending, encoded)
    size, of_key = 1 + kind.fixed_bytes, kind.from_sort_key

    def read(encoded: bytes) -> Sequence[bytes]:
        if len(encoded) == size:
            return (of_key(encoded[1:]),)
        return decode(types, descending, encoded)

    return read


class RowPacker:
    """Packs rows of one partition; `base` is the record of what they have in common, by slot."""

    def __init__(self, select: SelectPrepared, base: Sequence[bytes | None]) -> None:
        selection = select.selection
        assert selection.plain is not None, "outputs are columns"
        outputs: list[_Output] = []
        for slot in selection.plain:
            column = selection.columns[slot]
            if column.kind is ColumnKind.CLUSTERING:
                outputs.append((None, column.position, 0))
            elif column.kind is ColumnKind.REGULAR:
                outputs.append((None, -1, column.id))
            else:
                cell: list[bytes] = []
                pack_row(cell, (base[slot],))
                outputs.append((b"".join(cell), -1, 0))
        self._outputs = outputs
        self._clustering = clustering_reader(select.shape) if any(o[1] >= 0 for o in outputs) else None

    def packed(self, rows: Sequence[Row]) -> bytes:
        out: list[bytes] = []
        append, outputs, clustering = out.append, self._outputs, self._clustering
        values: Sequence[bytes] = ()
        for row in rows:
            if clustering is not None:
                values = clustering(row.clustering)
            found = {cell.column: cell.value for cell in row.cells}
            for constant, position, column in outputs:
                if constant is not None:
                    append(constant)
                    continue
                value = found.get(column) if position < 0 else values[position]
                if value is None:
                    append(_NULL)
                else:
                    append(len(value).to_bytes(4, "big"))
                    append(value)
        return b"".join(out)


def _order_of(select: SelectPrepared) -> Callable[[tuple[bytes, ResultRow]], bytes]:
    """By what rows with these clusterings are sorted: by the first `sorts` of their columns."""
    types, descending, count = select.shape.clustering_types, select.shape.descending, select.sorts
    assert 0 < count <= len(types), "rows are sorted by clustering columns"
    if count == len(types):
        return lambda entry: entry[0]
    return lambda entry: encode_prefix(types, descending, decode(types, descending, entry[0])[:count])


#: Rows of one partition that are packed together.
_PACKED_MIN: Final = 8


def _completed(row: ResultRow, selection: Selection) -> ResultRow:
    """The row whose values of user-defined types have all the fields of their types."""
    values = list(row)
    for at in selection.user_typed:
        values[at] = whole_value(selection.outputs[at].type, values[at])
    return tuple(values)


def with_groups(outline: Outline, *bounds: int) -> Outline:
    """As it is asked for where so many groups are wanted (below 0: not bounded)."""
    if outline.grouping is None:
        return outline
    most = max(1, min((PAGE_ROWS_DEFAULT, *[bound for bound in bounds if bound >= 0])))
    return replace(outline, grouping=replace(outline.grouping, most=most))


class Page(msgspec.Struct, frozen=True):
    """`paging_state` is None when there is nothing more. `packed_rows` rows come before `rows`, as the
    protocol writes them."""

    rows: list[ResultRow]
    paging_state: bytes | None = None
    packed: tuple[bytes, ...] = ()
    packed_rows: int = 0


class PageBuilder:
    """Drives one execution of a SELECT: ask `commands()`, read them, `add` the results, repeat until
    there are none, then take `page()`. `packs`: many rows of a partition may be given packed."""

    def __init__(self, plan: SelectPlan, *, packs: bool = False) -> None:
        self._plan = plan
        self._reader = RecordReader(plan.select)
        self._rows: list[ResultRow] = []
        #: Rows before those, packed; None where rows are not.
        self._packed: list[bytes] | None = None
        self._packed_rows = 0
        filtered_here = plan.checks and not (plan.outline is not None and plan.outline.packs)
        if packs and not filtered_here and plan.per_partition_limit < 0 and is_packable(plan.select):
            self._packed = []
        #: What is to be told in place of rows, where it may be; rows are packed then too.
        self._outline = plan.outline if packs else None
        self._counts_rows = plan.outline is not None and plan.outline.gives and plan.per_partition_limit < 0
        self._sortable: list[tuple[bytes, ResultRow]] = []
        #: Bytes of the rows given so far as the protocol writes them.
        self._bytes = 0
        select = plan.select
        self._is_paged = plan.page_size > 0
        self._groups: Groups | None = None
        if select.folds:
            self._groups = Groups(select.selection, plan.moment, by_key=select.grouped)
        start = plan.start
        self._cursor: Position | None = start.position if start is not None else None
        self._partition_rows = start.partition_rows if start is not None else 0
        self._remaining = plan.limit
        self._asked: tuple[ReadCommand, ...] = ()
        self._finished = plan.is_empty or plan.limit == 0
        self._page_full = self._groups_full = False

    # Commands

    def commands(self) -> tuple[ReadCommand, ...]:
        """The next reads, to be done in any order or at once; () when the page is complete."""
        if self._finished or self._page_full or self._room() == 0:
            return ()
        plan = self._plan
        self._asked = self._point_commands() if plan.kind == POINT else self._range_commands()
        if not self._asked:
            self._finished = True
        elif self._outline is not None:
            self._asked = tuple([self._outlined(command, self._outline) for command in self._asked])
        return self._asked

    def _outlined(self, command: ReadCommand, outline: Outline) -> ReadCommand:
        limit = command.row_limit if outline.gives else TOLD_ROWS_MAX
        assert not outline.packs or len(self._asked) == 1, "there is room for the rows of one read"
        if outline.packs or (self._counts_rows and len(outline.filters) == len(self._plan.checks)):
            limit = self._row_limit(filtered=False)
        wanted = with_groups(outline, self._room(), self._remaining)
        return replace(command, row_limit=limit, outline=wanted)

    def _row_limit(self, *, filtered: bool) -> int:
        """`filtered`: rows that are given may be left out here."""
        bounds = [bound for bound in (self._room(), self._remaining) if bound >= 0]
        if filtered or self._groups is not None or not bounds:
            return PAGE_ROWS_DEFAULT
        return min(*bounds, PAGE_ROWS_DEFAULT)

    def _room(self) -> int:
        """Rows that the page has room for; -1 where the client asked for no pages."""
        page_size = self._plan.page_size
        if page_size <= 0:
            return -1
        if self._bytes >= PAGE_BYTES_MAX and self._is_paged:
            return 0
        return page_size - len(self._rows) - self._packed_rows

    def _partition_limit(self, used: int) -> int:
        """Rows of one partition the storage may give; 0 means all."""
        plan = self._plan
        if plan.select.distinct:
            return 1
        if plan.per_partition_limit < 0 or plan.checks or self._groups is not None:
            return 0
        return plan.per_partition_limit - used

    def _command(
        self, left: int, right: int, key: bytes | None, after: Position | None, used: int
    ) -> ReadCommand:
        select = self._plan.select
        assert left < right, "there are tokens to read"
        return ReadCommand(
            select.shape.table.id,
            left,
            right,
            key,
            self._plan.slices,
            (),
            select.reads_static,
            select.reverse,
            self._row_limit(filtered=bool(self._plan.checks)),
            self._partition_limit(used),
            self._plan.moment.context.now_s,
            after,
            select.dropped,
            self._plan.index,
            dead=select.shape.table.dead,
        )

    def _point(self, key: bytes, after: Position | None, used: int) -> ReadCommand:
        token = token_in(self._plan.select.shape.table, key)
        return self._command(token - 1, token, key, after, used)

    def _point_commands(self) -> tuple[ReadCommand, ...]:
        keys, cursor = self._plan.keys, self._cursor
        commands: list[ReadCommand] = []
        if cursor is not None:
            at = keys.index(cursor.key) if cursor.key in keys else len(keys)
            if cursor.clustering is not None and self._may_continue():
                commands.append(self._point(cursor.key, cursor, self._partition_rows))
            keys = keys[at + 1 :]
        keys = keys[: PARTITION_READS_AT_ONCE_MAX - len(commands)]
        return (*commands, *(self._point(key, None, 0) for key in keys))

    def _range_commands(self) -> tuple[ReadCommand, ...]:
        plan, cursor = self._plan, self._cursor
        if cursor is None:
            return (self._command(plan.left, plan.right, None, None, 0),)
        left = max(plan.left, cursor.token - 1)
        if left >= plan.right:
            return ()
        ends_early = plan.per_partition_limit >= 0 and not plan.checks and self._groups is None
        if cursor.clustering is None or not ends_early:
            return (self._command(left, plan.right, None, cursor, 0),)
        rest = self._command(left, plan.right, None, Position(cursor.token, cursor.key), 0)
        if not self._may_continue():
            return (rest,)
        return (self._point(cursor.key, cursor, self._partition_rows), rest)

    def _may_continue(self) -> bool:
        plan = self._plan
        if self._groups is not None:
            # Its last group may have more rows.
            return not plan.select.distinct
        limit = plan.limit if plan.select.sorts and plan.per_partition_limit < 0 else plan.per_partition_limit
        return not plan.select.distinct and (limit < 0 or self._partition_rows < limit)

    # Results

    def add(self, results: Sequence[ReadResult]) -> None:
        """Take the results of the last commands, in the order of the commands."""
        for _ in self.adding(results):
            pass

    def adding(self, results: Sequence[ReadResult]) -> Iterator[None]:
        """`add` in steps of some ROWS_A_TURN rows, for who has other work between them."""
        assert len(results) == len(self._asked), "one result for each command"
        taken = 0
        for command, result in zip(self._asked, results, strict=True):
            if result.told is not None and not self._add_told(result.told):
                return
            for partition in result.partitions:
                if not self._add_partition(partition):
                    return
                taken += 1 + len(partition.rows)
                if taken >= ROWS_A_TURN:
                    taken = 0
                    yield
            if result.more:
                self._go_on_at(result)
                return
            if command.key is not None:
                self._close_partition(command.key, command.right)
        # Behind a full page there is always another one, maybe empty: whether a scan ended exactly there
        # depends on how ranges lie on nodes, and clients count on pages that do not.
        if self._plan.kind != POINT and self._room() != 0:
            self._finished = True

    def _add_told(self, told: Told) -> bool:
        """Take what was told in place of rows; False when the page or the limit is reached by groups. The
        command left room for packed rows."""
        assert self._outline is not None, "replicas tell of what they are asked to"
        if self._outline.gives:
            return True
        if self._groups is not None:
            return self._add_groups(self._groups, told)
        assert self._packed is not None, "rows that are told are rows that can be packed"
        assert self._remaining < 0 or told.rows <= self._remaining, "no more are told than are wanted"
        self._pack_rows(self._packed)
        self._packed.append(told.packed)
        self._bytes += len(told.packed)
        self._packed_rows += told.rows
        self._partition_rows += told.rows
        if self._remaining > 0:
            self._remaining -= told.rows
        if self._remaining == 0:
            self._finished = True
        if not self._is_paged:
            self._require_bounded()
        return True

    def _add_groups(self, groups: Groups, told: Told) -> bool:
        groups.join(told)
        limit = self._plan.per_partition_limit
        for one in told.groups:
            first = groups.first_of(one)
            if self._is_stopped() or self._ends_with_group(one.key, first):
                self._page_full = not self._finished
                return False
            if self._cursor is None or self._cursor.key != one.key:
                self._partition_rows = 0
            self._cursor = Position(one.token, one.key, one.clustering)
            if not groups.is_open:
                if 0 <= limit <= self._partition_rows:
                    continue
                self._partition_rows += 1
            groups.add_told(one, first)
        if told.closed and groups.is_open:
            self._give(*groups.close())
            self._page_full = self._is_stopped() and not self._finished
        return not (self._page_full or self._finished)

    def _go_on_at(self, result: ReadResult) -> None:
        """The command has more behind `end`; it is asked again from there."""
        end, cursor = result.end, self._cursor
        if end is None:
            if not result.partitions:
                raise ServerFault("a read stopped at its limit without a row and without a place to go on")
            return
        goes_on = self._plan.kind == POINT or cursor is None or cursor.token <= end.token
        assert goes_on, "a scan goes up the ring"
        if cursor is None or cursor.key != end.key:
            self._partition_rows = 0
        self._cursor = end

    def _close_partition(self, key: bytes, token: int) -> None:
        self._cursor = Position(token, key)
        self._partition_rows = 0

    def _add_partition(self, partition: Partition) -> bool:
        """Consume one partition; False when the page or the limit is reached."""
        cursor = self._cursor
        entered = cursor is not None and cursor.key == partition.key
        resumed = entered and cursor is not None and cursor.clustering is not None
        select, folds = self._plan.select, self._groups is not None
        static_row_counts = not resumed and not select.restrictions.has_clustering
        parts = split_key(partition.key, len(select.shape.partition_types))
        if self._packed is not None and not self._plan.checks and len(partition.rows) >= _PACKED_MIN:
            return self._pack_partition(self._packed, partition, parts, entered=entered)
        for clustering, record in self._reader.records(partition, parts, static_row_counts):
            if self._is_stopped() or (folds and self._ends_with_group(partition.key, record)):
                self._page_full = not self._finished
                return False
            if not entered:
                # Not before: a full page's state counts the rows of the partition it ends in.
                self._partition_rows, entered = 0, True
            # A row without clustering is all its partition has.
            place = None if select.distinct else clustering or None
            self._cursor = Position(partition.token, partition.key, place)
            self._consume(partition.key, clustering or b"", record)
        if not partition.rows:
            # Read again only for its static row, which was given with an earlier page.
            self._close_partition(partition.key, partition.token)
        if self._remaining == 0:
            self._finished = True
        return not self._finished

    def _pack_partition(
        self, packed: list[bytes], partition: Partition, parts: Sequence[bytes], *, entered: bool
    ) -> bool:
        """As `_add_partition`, of one with rows, some at a time."""
        packer = RowPacker(self._plan.select, self._reader.base(partition, parts))
        rows, at, most = partition.rows, 0, ROWS_A_TURN
        self._pack_rows(packed)
        while at < len(rows):
            if self._is_stopped():
                self._page_full = not self._finished
                return False
            bounds = [bound for bound in (self._room(), self._remaining) if bound >= 0]
            some = rows[at : at + min((most, *bounds))]
            assert some, "there is room, or the page would have ended"
            data = packer.packed(some)
            if len(some) > 1 and self._is_paged and self._bytes + len(data) >= PAGE_BYTES_MAX:
                # The page ends with the row that fills it.
                most = max(1, min(most, len(some)) // 2)
                continue
            packed.append(data)
            self._bytes += len(data)
            self._packed_rows += len(some)
            at += len(some)
            if self._remaining > 0:
                self._remaining -= len(some)
            if not entered:
                self._partition_rows, entered = 0, True
            self._partition_rows += len(some)
            self._cursor = Position(partition.token, partition.key, some[-1].clustering or None)
            if not self._is_paged:
                self._require_bounded()
        if self._remaining == 0:
            self._finished = True
        return not self._finished

    def _pack_rows(self, packed: list[bytes]) -> None:
        """Rows that come before others that are packed already."""
        if self._rows:
            packed.append(encode_rows(self._rows))
            self._packed_rows += len(self._rows)
            self._rows = []

    def _is_stopped(self) -> bool:
        if self._remaining == 0:
            self._finished = True
            return True
        return self._room() == 0

    def _ends_with_group(self, key: bytes, record: Record) -> bool:
        """End the open group when the record is not of it; True when the page or limit ends with it."""
        groups = self._groups
        if groups is None or not groups.is_open or not groups.begins(key, record):
            return False
        self._give(*groups.close())
        return self._is_stopped()

    def _consume(self, key: bytes, clustering: bytes, record: Record) -> None:
        plan, groups = self._plan, self._groups
        for check in plan.checks:
            if not check(record):
                return
        if groups is not None and groups.is_open:
            groups.add(key, clustering, record)
            return
        if 0 <= plan.per_partition_limit <= self._partition_rows:
            return
        self._partition_rows += 1
        if groups is not None:
            groups.add(key, clustering, record)
            return
        selection = plan.select.selection
        if selection.plain is not None:
            row: ResultRow = tuple([record[slot] for slot in selection.plain])
        else:
            row = tuple([output.evaluate(record, plan.moment) for output in selection.outputs])
        self._give(clustering, row)

    def _give(self, clustering: bytes, row: ResultRow) -> None:
        if (selection := self._plan.select.selection).user_typed:
            row = _completed(row, selection)
        self._bytes += 4 * len(row) + sum([len(value) for value in row if value is not None])
        if not self._is_paged:
            self._require_bounded()
        if self._plan.select.sorts:
            self._sortable.append((clustering, row))
            return
        self._rows.append(row)
        if self._remaining > 0:
            self._remaining -= 1

    def _require_bounded(self) -> None:
        """InvalidRequest when there is more than one answer may hold and pages cannot be cut."""
        rows = max(self._packed_rows + len(self._rows), len(self._sortable))
        if self._bytes <= UNPAGED_BYTES_MAX and rows < UNPAGED_ROWS_MAX:
            return
        why = "is sorted by the coordinator" if self._plan.select.sorts else "was asked for without paging"
        raise InvalidRequest(
            f"The result {why} and exceeds {UNPAGED_BYTES_MAX} bytes or {UNPAGED_ROWS_MAX} rows: "
            "set a page size or a LIMIT, or ask for fewer partitions"
        )

    # The page

    def page(self) -> Page:
        """The rows so far, and the paging state when more may follow."""
        plan = self._plan
        groups = self._groups
        if groups is not None and (groups.is_open or not plan.select.grouped):
            self._give(*groups.close())
            if plan.select.grouped and self._room() == 0 and self._remaining != 0:
                # As behind a full page of a scan: clients count on the page, maybe empty, that ends groups.
                self._finished, self._page_full, self._groups_full = False, True, True
        if plan.select.sorts:
            assert not self._rows and not self._packed_rows, "what is sorted is given at the end"
            self._sortable.sort(key=_order_of(plan.select), reverse=plan.select.reverse)
            rows = [row for _, row in self._sortable]
            return Page(rows if plan.limit < 0 else rows[: plan.limit])
        assert not self._is_paged or self._room() >= 0, "a page has no more rows than were asked for"
        return Page(self._rows, self._paging_state(), tuple(self._packed or ()), self._packed_rows)

    def _paging_state(self) -> bytes | None:
        if self._finished or self._plan.page_size <= 0 or self._cursor is None:
            return None
        if not self._page_full and self._room() != 0:
            return None
        if self._remaining == 0 or not (self._groups_full or self._rest_exists()):
            return None
        state = PagePosition(
            self._plan.select.shape.table.uuid, self._cursor, self._remaining, self._partition_rows
        )
        return encode(state)

    def _rest_exists(self) -> bool:
        """False when the cursor is provably at the end: the last key's last possible row."""
        plan, cursor = self._plan, self._cursor
        assert cursor is not None
        if plan.kind != POINT or cursor.key != plan.keys[-1]:
            return True
        return cursor.clustering is not None and self._may_continue()
