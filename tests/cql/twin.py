"""A slow obvious table store and a session over it: mutations in, live rows out."""

from __future__ import annotations

from lockstep.cql.bind.modify import plan_batch, plan_modification
from lockstep.cql.bind.page_positions import decode
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile import modification
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.compile.select import plan_select
from lockstep.cql.ddl.changes import schema_change
from lockstep.schema.changes import apply_change, validate
from lockstep.schema.model import Schema
from lockstep.schema.statements import meant
from lockstep.values.rows import Cell, Deletion, Liveness, Mutation, Partition, ReadCommand, ReadResult, Row

START_US = 1_700_000_000_000_000


def _covers(deletion: Deletion | None, timestamp_us: int) -> bool:
    return deletion is not None and timestamp_us <= deletion.timestamp_us


def _dead(expires_at_s: int, ttl_s: int, now_s: int) -> bool:
    return ttl_s > 0 and expires_at_s <= now_s


class Store:
    """Keeps every mutation; a read replays them all."""

    def __init__(self) -> None:
        self.mutations: list[Mutation] = []

    def read(self, command: ReadCommand) -> ReadResult:
        keys = {
            (m.token, m.key)
            for m in self.mutations
            if m.table_id == command.table_id
            and command.left < m.token <= command.right
            and command.key in (None, m.key)
        }
        partitions: list[Partition] = []
        left = command.row_limit
        for token, key in sorted(keys):
            after = command.after
            if after is not None and (token, key) < (after.token, after.key):
                continue
            resumed = None
            if after is not None and (token, key) == (after.token, after.key):
                if after.clustering is None:
                    continue
                resumed = after.clustering
            static, rows = self._partition(command, key)
            rows = [row for row in rows if any(part.contains(row.clustering) for part in command.slices)]
            if command.reverse:
                rows.reverse()
            if resumed is not None:
                rows = [
                    r for r in rows if (r.clustering < resumed if command.reverse else r.clustering > resumed)
                ]
            rows = rows[: command.partition_row_limit or None]
            if resumed is not None and not rows:
                continue
            if left == 0 and (rows or static):
                return ReadResult(tuple(partitions), True)
            if len(rows) > left:
                partitions.append(Partition(token, key, static=static, rows=tuple(rows[:left])))
                return ReadResult(tuple(partitions), True)
            if rows or static:
                partitions.append(Partition(token, key, static=static, rows=tuple(rows)))
                left -= max(len(rows), 1)
        return ReadResult(tuple(partitions))

    def _partition(self, command: ReadCommand, key: bytes) -> tuple[Row | None, list[Row]]:
        found = [m for m in self.mutations if m.table_id == command.table_id and m.key == key]
        clusterings = sorted({row.clustering for m in found for row in m.rows})
        deletions = [m.deletion for m in found if m.deletion]
        static = None
        if command.reads_static:
            static = self._row([m.static for m in found if m.static], deletions, b"", command.now_s)
        rows = []
        for clustering in clusterings:
            ranges = [
                r.deletion
                for m in found
                for r in m.range_deletions
                if r.start <= clustering and (not r.end or clustering < r.end)
            ]
            parts = [row for m in found for row in m.rows if row.clustering == clustering]
            row = self._row(parts, deletions + ranges, clustering, command.now_s)
            if row is not None:
                rows.append(row)
        return static, rows

    def _row(self, parts: list[Row], deletions: list[Deletion], clustering: bytes, now_s: int) -> Row | None:
        deletions = deletions + [part.deletion for part in parts if part.deletion]
        live: Liveness | None = None
        cells: dict[tuple[int, bytes], Cell] = {}
        for part in parts:
            if part.liveness and (live is None or part.liveness.timestamp_us >= live.timestamp_us):
                live = part.liveness
            for cell in part.cells:
                place = (cell.column, cell.path or b"")
                if place not in cells or _rank(cell) > _rank(cells[place]):
                    cells[place] = cell
        columns = [d for part in parts for d in part.column_deletions]
        kept = [
            cell
            for _, cell in sorted(cells.items())
            if cell.value is not None
            and not _dead(cell.expires_at_s, cell.ttl_s, now_s)
            and not any(_covers(d, cell.timestamp_us) for d in deletions)
            and not any(c.column == cell.column and _covers(c.deletion, cell.timestamp_us) for c in columns)
        ]
        if live is not None and (
            any(_covers(d, live.timestamp_us) for d in deletions)
            or _dead(live.expires_at_s, live.ttl_s, now_s)
        ):
            live = None
        return Row(clustering, live, None, tuple(kept)) if live or kept else None


def _rank(cell: Cell) -> tuple[object, ...]:
    return cell.timestamp_us, cell.value is None, cell.ttl_s > 0, cell.value or b""


class Session:
    """Runs CQL text against the store, one microsecond a statement."""

    def __init__(self, *statements: str) -> None:
        self.schema = Schema()
        self.store = Store()
        self.keyspace: str | None = None
        self.now_us = START_US
        self.count = 0
        for statement in (
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "USE ks",
            *statements,
        ):
            self.run(statement)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.schema)

    def context(self) -> Context:
        self.now_us += 1
        self.count += 1
        count = self.count

        def source() -> bytes:
            return count.to_bytes(16, "big")

        return Context(
            self.now_us,
            self.now_us // 1_000_000,
            self.now_us,
            self.now_us,
            self.count.to_bytes(14, "big"),
            source,
        )

    def prepare(self, text: str):
        return prepare(text, self.keyspace, self.catalog)

    def run(self, text: str, *values, page_size: int = -1) -> list[tuple]:
        """Execute with Python values; SELECT gives rows of Python values, following all pages."""
        prepared = self.prepare(text)
        bound = [
            self._bound(column.type, value)
            for column, value in zip(prepared.bind_columns, values, strict=True)
        ]
        context = self.context()
        if prepared.kind == "DDL":
            change = meant(self.schema, schema_change(prepared, context))
            self.schema, _ = apply_change(self.schema, change, self.count, ("dc1",))
            validate(self.schema)
        elif prepared.kind == "USE":
            self.keyspace = prepared.keyspace
        elif prepared.kind in ("MODIFY", "BATCH"):
            lists = self._lists([(prepared, bound)], context)
            self.store.mutations.extend(plan_modification(prepared, bound, context, lists))
        else:
            return [row for page in self.pages(text, *values, page_size=page_size) for row in page]
        return []

    def batch(self, *texts: str) -> None:
        entries = [(self.prepare(text), []) for text in texts]
        context = self.context()
        self.store.mutations.extend(plan_batch(entries, context, self._lists(entries, context)))

    def _lists(self, entries, context):
        asked = modification.commands(entries, context)
        return modification.lists(asked, [self.store.read(command) for command in asked])

    def pages(self, text: str, *values, page_size: int = -1) -> list[list[tuple]]:
        prepared = self.prepare(text)
        bound = [
            self._bound(column.type, value)
            for column, value in zip(prepared.bind_columns, values, strict=True)
        ]
        pages, state = [], None
        while True:
            start = decode(state, prepared.plan.shape.table.uuid) if state is not None else None
            builder = PageBuilder(plan_select(prepared, bound, self.context(), start, page_size))
            while commands := builder.commands():
                builder.add([self.store.read(command) for command in commands])
            page = builder.page()
            pages.append([self._plain(prepared, row) for row in page.rows])
            assert len(pages) < 10_000
            state = page.paging_state
            if state is None:
                return pages

    @staticmethod
    def _bound(kind, value):
        return kind.serialize(value) if value is not None and not hasattr(value, "name") else value

    @staticmethod
    def _plain(prepared, row):
        return tuple(
            None if data is None else column.type.deserialize(data)
            for column, data in zip(prepared.result_columns, row, strict=True)
        )
