"""Conditional statements and batches bound to values: what they read, what they decide, what they answer.

Invariant: everything in one request is about one partition of one table, whose key and rows are worked out
once; `decide` is a function of the rows read and the time of the ballot it is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from lockstep.cql.bind.modify import key_of, plan_batch, plan_modification
from lockstep.cql.bind.records import RecordReader, whole_value
from lockstep.cql.compile import modification
from lockstep.cql.compile.context import Context, Lists
from lockstep.cql.compile.expressions import Record, Selection, compile_selection
from lockstep.cql.compile.if_clause import Condition, Conditions, bound
from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepared import Prepared, Scope, TableShape
from lockstep.cql.compile.ranges import clusterings, partition_keys, settled
from lockstep.cql.compile.terms import Values
from lockstep.cql.wire.responses import ColumnSpec
from lockstep.schema.clustering import split_key
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import IN_COMBINATIONS_MAX
from lockstep.values.rows import ALL_ROWS, Mutation, ReadCommand, ReadResult, Slice
from lockstep.values.tokens import token_of

_APPLIED = "[applied]"
_YES, _NO = b"\x01", b"\x00"
#: No row lies in front of every clustering: only the static row is asked.
_NO_ROWS = (Slice(b"", b"\x00"),)


class Verdict(msgspec.Struct, frozen=True):
    """What the rows read make of a request: what it writes, and the result set."""

    mutation: Mutation | None
    columns: tuple[ColumnSpec, ...]
    rows: list[tuple[bytes | None, ...]]


def is_conditional(prepared: Prepared) -> bool:
    """Whether a statement has conditions, or a batch has one that does."""
    return any(plan.conditions is not None for plan in modification.plans_of(prepared))


class _Asked:
    """Conditions of one row, or of the static row (b"" where rows have a clustering)."""

    def __init__(self) -> None:
        self.kind = ""
        #: Slot of the column, condition, values of its statement.
        self.checks: list[tuple[int, Condition, Values]] = []

    def add(self, kind: str, checks: Sequence[tuple[int, Condition, Values]]) -> None:
        """InvalidRequest for conditions of several statements that cannot go together."""
        if self.kind and self.kind != kind:
            pair = {self.kind, kind}
            if pair == {"EXISTS", "NOT EXISTS"}:
                raise InvalidRequest("Cannot mix IF EXISTS and IF NOT EXISTS conditions for the same row")
            if "NOT EXISTS" in pair:
                raise InvalidRequest("Cannot mix IF conditions and IF NOT EXISTS for the same row")
        self.kind = kind
        self.checks += checks

    def hold(self, record: Record | None, exists: bool, context: Context) -> bool:
        if self.kind == "NOT EXISTS":
            return not exists
        if self.kind == "EXISTS" and not exists:
            return False
        return all(
            bound(condition, values, context)(None if record is None else record[slot])
            for slot, condition, values in self.checks
        )


class ConditionalRequest:
    """One execution. `entries`: each statement and its values. `is_batch`: they are a batch of the protocol,
    else there is one."""

    def __init__(
        self,
        entries: Sequence[tuple[Prepared, Values]],
        context: Context,
        *,
        is_batch: bool,
    ) -> None:
        """InvalidRequest when it is about several partitions or tables, or values do not fit."""
        self._context = context
        self._is_of_protocol = is_batch
        self._is_batch = is_batch or isinstance(entries[0][0].plan, BatchPlan)
        for prepared, values in entries:
            prepared.check_values(list(values))
        self._entries = [(_settled(prepared, values, context), values) for prepared, values in entries]
        parts: list[tuple[ModificationPlan, Values]] = []
        for prepared, values in self._entries:
            if isinstance(prepared.plan, BatchPlan) and prepared.plan.timestamp is not None:
                raise InvalidRequest("Cannot provide custom timestamp for conditional BATCH")
            parts += [(plan, values) for plan in modification.plans_of(prepared)]
        self._parts = parts
        self.shape = _one_table([plan for plan, _ in parts])
        if self._is_batch and any(plan.timestamp is not None for plan, _ in parts):
            raise InvalidRequest("Cannot provide custom timestamp for conditional BATCH")
        self.key = self._one_key()
        self.token = token_of(self.key)
        self._selection = self._whole_rows()
        self._slots = {column.name: slot for slot, column in enumerate(self._selection.columns)}
        self._rows: dict[bytes, _Asked] = {}
        self._static = _Asked()
        self._shown: dict[str, None] | None = {}
        for plan, values in parts:
            if plan.conditions is not None:
                self._take(plan, plan.conditions, values)
        self.command = self._command()

    # -- what is asked ----------------------------------------------------------------------------

    def _whole_rows(self) -> Selection:
        """What conditions look at: all columns."""
        for plan, _ in self._parts:
            if plan.asked is not None and plan.shape.table is self.shape.table:
                return plan.asked
        return compile_selection(self.shape, (), (), Scope(()))

    def _one_key(self) -> bytes:
        found: dict[bytes, None] = {}
        for plan, values in self._parts:
            if plan.steps is not None:
                found[key_of(plan.steps, values)] = None
                continue
            given = values if plan.json is None else plan.json.values(values, self._context)
            keys = partition_keys(plan.restrictions, given, self._context)
            if len(keys) != 1 and self._is_batch:
                raise InvalidRequest(
                    "Batch with conditions cannot span multiple partitions (you cannot use IN on the "
                    "partition key)"
                )
            found.update(dict.fromkeys(keys))
        if len(found) != 1:
            raise InvalidRequest("Batch with conditions cannot span multiple partitions")
        return next(iter(found))

    def _clustering(self, plan: ModificationPlan, values: Values) -> bytes | None:
        """The row that a statement with conditions names; None for the static row."""
        given = values if plan.json is None else plan.json.values(values, self._context)
        if plan.restrictions.clustering_width < len(self.shape.table.clustering):
            return None
        return clusterings(self.shape, plan.restrictions, given, self._context)[0]

    def _take(self, plan: ModificationPlan, conditions: Conditions, values: Values) -> None:
        clustering = self._clustering(plan, values)
        row = self._static if clustering is None else self._rows.setdefault(clustering, _Asked())
        if conditions.not_exists or conditions.exists:
            row.add("NOT EXISTS" if conditions.not_exists else "EXISTS", ())
            self._shown = None
            return
        for condition in conditions.columns:
            bound(condition, values, self._context)  # Values that do not fit are refused before anything is.
            check = (self._slots[condition.column.name], condition, values)
            is_static = condition.column in self.shape.table.static
            (self._static if is_static else row).add("COLUMNS", (check,))
        if self._shown is not None:
            self._shown.update(dict.fromkeys(conditions.shown))

    def _command(self) -> ReadCommand:
        entries = [(plan, values) for plan, values in self._parts if plan.reads_lists]
        lists = [
            command
            for plan, values in entries
            for command in modification.of_plan(plan, values, self._context)
        ]
        asked = dict.fromkeys([*self._rows, *(part.start for command in lists for part in command.slices)])
        slices = tuple(Slice(start, start + b"\x00") for start in sorted(asked))
        limit = IN_COMBINATIONS_MAX
        if not slices:
            # Whether the partition is there at all is seen by any row of it.
            slices, limit = (ALL_ROWS, 1) if self.shape.table.clustering else (_NO_ROWS, 1)
        return ReadCommand(
            self.shape.table.id,
            self.token - 1,
            self.token,
            self.key,
            slices,
            (),
            bool(self.shape.table.static),
            False,
            limit,
            0,
            self._context.now_s,
            None,
            self.shape.table.gone,
            dead=self.shape.table.dead,
        )

    # -- what is decided --------------------------------------------------------------------------

    def mutations(self, context: Context, lists: Lists | None) -> Sequence[Mutation]:
        """What the whole request writes; `lists`: those that were read for it."""
        if self._is_of_protocol:
            return plan_batch(self._entries, context, lists)
        return plan_modification(*self._entries[0], context, lists)

    def decide(self, result: ReadResult, time_us: int) -> Verdict:
        """What to write, as of the time of the ballot, and what to tell the client."""
        context = self._context.decided_at(time_us)
        static: Record | None = None
        found: list[tuple[bytes | None, Record]] = []
        for partition in result.partitions:
            parts = split_key(partition.key, len(self.shape.partition_types))
            reader = RecordReader(_Read(self.shape, self._selection))
            found = list(reader.records(partition, parts, True))
            if partition.static is not None and any(c.value is not None for c in partition.static.cells):
                bare = msgspec.structs.replace(partition, rows=())
                static = next((record for _, record in reader.records(bare, parts, True)), None)
        by_clustering = {clustering: record for clustering, record in found if clustering is not None}
        met = self._static.hold(static, static is not None, context) and all(
            asked.hold(by_clustering.get(clustering), clustering in by_clustering, context)
            for clustering, asked in self._rows.items()
        )
        if not met:
            return self._refusal(self._known(found))
        mutations = self.mutations(context, modification.lists([self.command], [result]))
        assert len(mutations) <= 1, "a conditional request is about one partition"
        return Verdict(mutations[0] if mutations else None, self._specs(()), [(_YES,)])

    def _known(self, found: Sequence[tuple[bytes | None, Record]]) -> list[Record]:
        """Records as far as a refusal tells of them: static columns are known where some are written, regular
        ones where rows are, and else those that are compared."""
        table, plans = self.shape.table, [plan for plan, _ in self._parts]
        conditions = [plan.conditions for plan in plans if plan.conditions is not None]
        known = {condition.column.name for one in conditions for condition in one.columns}
        if any(plan.static_operations for plan in plans):
            known |= {column.name for column in table.static}
        if not table.clustering or any(plan.restrictions.clustering_width for plan in plans):
            known |= {column.name for column in table.regular}
        hidden = {self._slots[column.name] for column in (*table.static, *table.regular)}
        hidden -= {self._slots[name] for name in known}
        shown = [self._slots[column.name] for column in table.static if column.name in known]
        records = []
        for clustering, record in found:
            # Static content alone is a row where it is known.
            if clustering is not None or any(record[slot] is not None for slot in shown):
                records.append([None if slot in hidden else value for slot, value in enumerate(record)])
        return records

    def _refusal(self, records: Sequence[Record]) -> Verdict:
        if not records:
            return Verdict(None, self._specs(()), [(_NO,)])
        names: Sequence[str]
        if self._shown is None:
            names = list(self._slots)
        else:
            table = self.shape.table
            keys = (*table.partition_key, *table.clustering) if self._is_batch else ()
            names = list(dict.fromkeys(itertools.chain((column.name for column in keys), self._shown)))
        shown = [(self._slots[name], self.shape.types[name]) for name in names]
        rows = [(_NO, *(whole_value(kind, record[slot]) for slot, kind in shown)) for record in records]
        return Verdict(None, self._specs(names), rows)

    def _specs(self, names: Sequence[str]) -> tuple[ColumnSpec, ...]:
        table = self.shape.table
        listed = [(_APPLIED, parse_type("boolean")), *((name, self.shape.types[name]) for name in names)]
        return tuple(ColumnSpec(table.keyspace, table.name, name, kind) for name, kind in listed)


def _settled(prepared: Prepared, values: Values, context: Context) -> Prepared:
    """The statement with its keys worked out."""

    def of(plan: ModificationPlan) -> ModificationPlan:
        if plan.steps is not None:
            return plan
        restrictions = settled(plan.restrictions, values, context)
        if restrictions is plan.restrictions:
            return plan
        return msgspec.structs.replace(plan, restrictions=restrictions)

    plan = prepared.plan
    if isinstance(plan, BatchPlan):
        plan = msgspec.structs.replace(plan, parts=tuple(of(part) for part in plan.parts))
    elif isinstance(plan, ModificationPlan):
        plan = of(plan)
    return prepared if plan is prepared.plan else msgspec.structs.replace(prepared, plan=plan)


class _Read(msgspec.Struct, frozen=True):
    """What a RecordReader needs to know."""

    shape: TableShape
    selection: Selection


def _one_table(plans: Sequence[ModificationPlan]) -> TableShape:
    if len({plan.shape.table.id for plan in plans}) != 1:
        raise InvalidRequest("Batch with conditions cannot span multiple tables")
    return plans[0].shape
