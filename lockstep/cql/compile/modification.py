"""INSERT, UPDATE and DELETE compiled against a table, which may count, and the lists that must be read before
they can be changed: by an index, or by the values of elements; and INSERT JSON, one text for every column.

Owns: ModificationPlan and how statements become one.

Invariant: a plan holds everything that does not depend on bound values, so that executing it walks no tree
and looks up no name. A request changes counters or other columns, never both: the one is added to what is
there and can not be repeated, the other replaces it. `commands` asks for exactly the rows that the statements
change, `lists` keeps their live elements. A decoded row has one value a column of the table, in the table's
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from lockstep.cql.bind.json_values import parse_json, serialized, unquoted_name
from lockstep.cql.bind.operations import (
    AddToCounter,
    Operation,
    SetValue,
    assignment_operation,
    deletion_operation,
    operation_of,
    set_operation,
)
from lockstep.cql.compile.context import Context, ListPlace, Lists
from lockstep.cql.compile.expressions import Selection, compile_selection
from lockstep.cql.compile.if_clause import Conditions, asks_rows, check_deletion, check_in, compile_conditions
from lockstep.cql.compile.prepared import Prepared, Scope, TableShape
from lockstep.cql.compile.ranges import clusterings, partition_keys
from lockstep.cql.compile.restrictions import Choice, Restrictions, Rule
from lockstep.cql.compile.terms import Constant, Marker, TermPlan, Values, compile_term
from lockstep.cql.compile.where import analyse
from lockstep.cql.parse import tree
from lockstep.cql.wire.constants import BATCH_NAMES
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.model import ColumnKind, Table
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import InvalidRequest, SyntaxError_
from lockstep.values.limits import IN_COMBINATIONS_MAX
from lockstep.values.rows import Cell, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import token_of


class Given(TermPlan):
    """A value at an index of what a JsonRow gave: valid as it is."""

    def __init__(self, index: int) -> None:
        self.index = index

    def get(self, values: Values, context: Context) -> Value:
        return values[self.index]


class JsonRow(msgspec.Struct, frozen=True):
    """`columns`: (name, type) in order. `unset`: columns that the text does not name are left alone."""

    source: TermPlan
    columns: tuple[tuple[str, CqlType], ...]
    unset: bool

    def values(self, values: Values, context: Context) -> Values:
        """The values of the bind variables, and behind them those of the columns."""
        data = self.source.get(values, context)
        if data is UNSET:
            raise InvalidRequest("Invalid unset value for INSERT JSON values")
        return [*values, *self.decoded(data)]

    def decoded(self, data: Value) -> list[Value]:
        """One value a column; InvalidRequest when the text is no object or does not fit the table."""
        if not isinstance(data, bytes):
            raise InvalidRequest("Got null for INSERT JSON values")
        text = data.decode()
        try:
            found = parse_json(text)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"Could not decode JSON string as a map: {error.message}. (String was: {text})"
            ) from None
        if found is None:
            raise InvalidRequest("Got null for INSERT JSON values")
        if not isinstance(found, dict):
            raise InvalidRequest(f"Could not decode JSON string as a map. (String was: {text})")
        given = {unquoted_name(name): value for name, value in found.items()}
        row: list[Value] = []
        for name, kind in self.columns:
            if name in given:
                row.append(_column(name, kind, given.pop(name)))
            else:
                row.append(UNSET if self.unset else None)
        if given:
            raise InvalidRequest(f"JSON values map contains unrecognized column: {next(iter(given))}")
        assert len(row) == len(self.columns), "a column has a value"
        return row


def _column(name: str, kind: CqlType, value: object) -> bytes | None:
    try:
        return serialized(kind, value)
    except InvalidRequest as error:
        raise InvalidRequest(f"Error decoding JSON value for {name}: {error.message}") from None


def check_batch(kind: str, tables: Sequence[Table], *, has_timestamp: bool = False) -> None:
    """`kind`: LOGGED, UNLOGGED, COUNTER; the table of each statement. InvalidRequest for what may not be in
    one batch."""
    counting = [table.is_counter for table in tables]
    if has_timestamp and any(counting):
        raise InvalidRequest("Cannot provide custom timestamp for a BATCH containing counters")
    if kind == "COUNTER" and not all(counting):
        raise InvalidRequest("Cannot include non-counter statement in a counter batch")
    if any(counting) and not all(counting):
        raise InvalidRequest("Counter and non-counter mutations cannot exist in the same batch")
    if kind == "LOGGED" and any(counting):
        raise InvalidRequest("Cannot include a counter statement in a logged batch")


def check_statement(statement: tree.Modification) -> None:
    """What no statement about a table of counters may say. InvalidRequest."""
    if isinstance(statement, tree.Insert):
        raise InvalidRequest("INSERT statements are not allowed on counter tables, use UPDATE instead")
    if statement.using.timestamp is not None:
        raise InvalidRequest("Cannot provide custom timestamp for counter updates")
    if statement.using.ttl is not None:
        raise InvalidRequest("Cannot provide custom TTL for counter updates")
    if statement.conditions is not None:
        raise InvalidRequest("Conditional updates are not supported on counter tables")


#: (bind index, validate, column name)
KeyStep = tuple[int, Callable[[bytes], None], str]
#: (column id, bind index, validate)
CellStep = tuple[int, int, Callable[[bytes], None]]


class BoundSteps(msgspec.Struct, frozen=True):
    """The hot path: one row, whose key and values are all plain bind variables."""

    key: tuple[KeyStep, ...]
    clustering: tuple[KeyStep, ...]
    cells: tuple[CellStep, ...]

    def __post_init__(self) -> None:
        assert self.key, "a row has a key"


class ModificationPlan(msgspec.Struct, frozen=True):
    """`operations` and `static_operations` are in column id order. `asked`: whole rows, for conditions.

    `deletes_rows`: no columns are named, so rows, ranges or partitions go. `steps` is set when the hot
    path applies; it never uses ttl or timestamp terms.
    """

    shape: TableShape
    restrictions: Restrictions
    is_insert: bool
    deletes_rows: bool
    operations: tuple[Operation, ...]
    static_operations: tuple[Operation, ...]
    ttl: TermPlan | None
    timestamp: TermPlan | None
    default_ttl_s: int
    steps: BoundSteps | None
    json: JsonRow | None = None
    conditions: Conditions | None = None
    asked: Selection | None = None

    def __post_init__(self) -> None:
        assert self.restrictions.partition, "what writes names its partitions"
        assert not self.restrictions.filters, "what writes reads nothing to find its rows"
        assert not (self.is_insert and self.deletes_rows), "a row is written or deleted"
        steps, types = self.steps, self.shape.partition_types
        assert steps is None or len(steps.key) == len(types), "each column of the key has its value"
        assert not (self.deletes_rows and (self.operations or self.static_operations)), "rows go whole"
        plain = self.steps is None or not (self.ttl or self.timestamp or self.conditions)
        assert plain, "the hot path knows neither times nor conditions"

    @property
    def counts(self) -> bool:
        """Whether counters are changed: such a change is planned by a replica that knows their values."""
        return any(
            isinstance(operation, AddToCounter) for operation in (*self.operations, *self.static_operations)
        )

    @property
    def reads_lists(self) -> bool:
        """Whether lists must be read before this can be planned."""
        return any(operation.reads_list for operation in (*self.operations, *self.static_operations))

    @property
    def writes_rows(self) -> bool:
        """Whether rows (not only the static row) are written."""
        return self.is_insert or bool(self.operations)


def compile_modification(statement: tree.Modification, shape: TableShape, scope: Scope) -> ModificationPlan:
    """InvalidRequest when the statement does not fit the table or is not supported."""
    if shape.table.is_counter:
        check_statement(statement)
    plan = _compiled(statement, shape, scope)
    conditions = compile_conditions(statement.conditions, statement.using, shape, scope)
    if conditions is None:
        return plan
    check_in(conditions, plan.restrictions, "DELETE" if isinstance(statement, tree.Delete) else "UPDATE")
    asked = compile_selection(shape, (), (), Scope(()))
    return msgspec.structs.replace(plan, conditions=conditions, asked=asked, steps=None)


def _compiled(statement: tree.Modification, shape: TableShape, scope: Scope) -> ModificationPlan:
    if isinstance(statement, tree.Insert):
        return _insert(statement, shape, scope)
    if isinstance(statement, tree.Update):
        return _update(statement, shape, scope)
    return _delete(statement, shape, scope)


def _using(using: tree.Using, scope: Scope) -> tuple[TermPlan | None, TermPlan | None]:
    ttl = timestamp = None
    if using.ttl is not None:
        ttl = compile_term(using.ttl, parse_type("int"), "[ttl]", scope)
    if using.timestamp is not None:
        timestamp = compile_term(using.timestamp, parse_type("bigint"), "[timestamp]", scope)
    if isinstance(using.timeout, tree.Bind):
        compile_term(using.timeout, parse_type("duration"), "[timeout]", scope)
    return ttl, timestamp


def _insert_json(
    statement: tree.Insert, text: tree.Term, shape: TableShape, scope: Scope
) -> ModificationPlan:
    """As if all columns were bind variables behind those of the statement; `JsonRow` gives their values."""
    using = _using(statement.using, scope)
    source = compile_term(text, parse_type("text"), "[json]", scope)
    row = JsonRow(source, tuple(shape.types.items()), statement.json_unset)
    if isinstance(source, Constant):
        row.decoded(source.data)
    given = {name: Given(len(scope.names) + at) for at, name in enumerate(shape.types)}
    table = shape.table

    def chosen(name: str) -> Choice:
        return Choice((name,), (shape.types[name],), (given[name],))

    restrictions = Restrictions(
        tuple(chosen(column.name) for column in table.partition_key),
        clustering=tuple(chosen(column.name) for column in table.clustering),
    )
    operations = [
        operation_of(column, shape.types[column.name], given[column.name])
        for column in (*table.static, *table.regular)
    ]
    plan = _plan(shape, restrictions, operations, using, is_insert=True)
    return msgspec.structs.replace(plan, json=row)


def _insert(statement: tree.Insert, shape: TableShape, scope: Scope) -> ModificationPlan:
    if statement.json is not None:
        return _insert_json(statement, statement.json, shape, scope)
    if len(statement.names) != len(statement.values):
        raise InvalidRequest("Unmatched column names/values")
    if len(set(statement.names)) != len(statement.names):
        raise InvalidRequest("The column names contains duplicates")
    keys: dict[str, Choice] = {}
    operations: list[Operation] = []
    for name, value in zip(statement.names, statement.values, strict=True):
        column, kind = shape.column(name), shape.types[name]
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            keys[name] = Choice((name,), (kind,), (compile_term(value, kind, name, scope),))
        else:
            operations.append(set_operation(column, kind, value, scope))
    table = shape.table
    missing = [column.name for column in table.partition_key if column.name not in keys]
    if missing:
        raise InvalidRequest(f"Some partition key parts are missing: {', '.join(missing)}")
    given = [column.name for column in table.clustering if column.name in keys]
    only_static = bool(operations) and all(o.column.kind is ColumnKind.STATIC for o in operations)
    if len(given) < len(table.clustering) and (given or not only_static):
        missing = [column.name for column in table.clustering if column.name not in keys]
        raise InvalidRequest(f"Some clustering keys are missing: {', '.join(missing)}")
    restrictions = Restrictions(
        tuple(keys[column.name] for column in table.partition_key),
        clustering=tuple(keys[name] for name in given),
    )
    static_row_only = bool(table.clustering) and not given
    return _plan(
        shape, restrictions, operations, _using(statement.using, scope), is_insert=not static_row_only
    )


def _update(statement: tree.Update, shape: TableShape, scope: Scope) -> ModificationPlan:
    using = _using(statement.using, scope)
    operations = [assignment_operation(shape, assignment, scope) for assignment in statement.assignments]
    _check_overlaps(operations)
    restrictions = analyse(shape, statement.where, scope, Rule("UPDATE"))
    if restrictions.lower is not None or restrictions.upper is not None:
        raise InvalidRequest(
            "Slice restrictions are not supported on the clustering columns in UPDATE statements"
        )
    touches_rows = any(operation.column.kind is ColumnKind.REGULAR for operation in operations)
    touches_rows = touches_rows or asks_rows(statement.conditions, shape)
    if not touches_rows and restrictions.has_clustering:
        raise InvalidRequest(_only_static("UPDATE"))
    if touches_rows:
        _require_clustering(shape, restrictions)
    return _plan(shape, restrictions, operations, using)


def _delete(statement: tree.Delete, shape: TableShape, scope: Scope) -> ModificationPlan:
    using = _using(statement.using, scope)
    if using[0] is not None:
        raise InvalidRequest("TTL attribute is not allowed for deletions")
    operations = [deletion_operation(shape, deletion, scope) for deletion in statement.columns]
    _check_overlaps(operations)
    restrictions = analyse(shape, statement.where, scope, Rule("DELETE"))
    check_deletion(statement.conditions, shape, restrictions, [o.column.kind for o in operations])
    if any(operation.column.kind is ColumnKind.REGULAR for operation in operations):
        if restrictions.clustering_width < len(shape.table.clustering):
            raise InvalidRequest("Range deletions are not supported for specific columns")
    elif operations and restrictions.has_clustering and not asks_rows(statement.conditions, shape):
        raise InvalidRequest(_only_static("DELETE"))
    return _plan(shape, restrictions, operations, using, deletes_rows=not operations)


def _only_static(verb: str) -> str:
    return (
        f"Invalid restrictions on clustering columns since the {verb} statement modifies only static columns"
    )


def _require_clustering(shape: TableShape, restrictions: Restrictions) -> None:
    missing = [column.name for column in shape.table.clustering[restrictions.clustering_width :]]
    if missing:
        raise InvalidRequest(f"Some clustering keys are missing: {', '.join(missing)}")


def _check_overlaps(operations: Sequence[Operation]) -> None:
    seen: dict[int, Operation] = {}
    for operation in operations:
        earlier = seen.get(operation.column.id)
        if earlier is not None and (earlier.exclusive or operation.exclusive):
            raise SyntaxError_(f"Multiple incompatible setting of column {operation.column.name}")
        seen[operation.column.id] = operation


def _plan(
    shape: TableShape,
    restrictions: Restrictions,
    operations: Sequence[Operation],
    using: tuple[TermPlan | None, TermPlan | None],
    *,
    is_insert: bool = False,
    deletes_rows: bool = False,
) -> ModificationPlan:
    ordered = sorted(operations, key=lambda operation: operation.column.id)
    regular = tuple(o for o in ordered if o.column.kind is ColumnKind.REGULAR)
    static = tuple(o for o in ordered if o.column.kind is ColumnKind.STATIC)
    assert len(regular) + len(static) == len(ordered), "columns of the key are not set"
    is_delete = deletes_rows or any(operation.term is None for operation in ordered)
    default_ttl = 0 if is_delete else int(shape.table.option("default_time_to_live", "0"))
    steps = None
    if using == (None, None) and not static and not deletes_rows and (is_insert or regular):
        steps = _bound_steps(shape, restrictions, regular)
    return ModificationPlan(
        shape, restrictions, is_insert, deletes_rows, regular, static, *using, default_ttl, steps
    )


def _bound_steps(
    shape: TableShape, restrictions: Restrictions, operations: Sequence[Operation]
) -> BoundSteps | None:
    """The step tables, or None when something needs the general path."""
    if (
        restrictions.lower
        or restrictions.upper
        or restrictions.clustering_width != len(shape.clustering_types)
    ):
        return None
    key = [_key_step(choice) for choice in restrictions.partition]
    clustering = [_key_step(choice) for choice in restrictions.clustering]
    cells: list[CellStep] = []
    for operation in operations:
        term = operation.term
        if type(operation) is not SetValue or not isinstance(term, Marker) or term.canonical is not None:
            return None
        cells.append((operation.column.id, term.index, term.validate))
    if None in key or None in clustering:
        return None
    return BoundSteps(
        tuple(step for step in key if step is not None),
        tuple(step for step in clustering if step is not None),
        tuple(cells),
    )


def _key_step(choice: Choice) -> KeyStep | None:
    term = choice.terms[0] if len(choice.terms) == 1 else None
    if choice.is_in or choice.joint or not isinstance(term, Marker) or term.canonical is not None:
        return None
    return term.index, term.validate, choice.names[0]


def key_bind_indexes(restrictions: Restrictions) -> tuple[int, ...]:
    """Bind indexes of the whole partition key in order, or () when a part is not a bind variable."""
    steps = [_bind_index(choice) for choice in restrictions.partition]
    return () if None in steps else tuple(step for step in steps if step is not None)


def _bind_index(choice: Choice) -> int | None:
    if choice.is_in or len(choice.terms) != 1 or not isinstance(choice.terms[0], Marker):
        return None
    return choice.terms[0].index


class BatchPlan(msgspec.Struct, frozen=True):
    """`kind`: LOGGED, UNLOGGED, COUNTER. All parts share the batch's bind variables."""

    kind: str
    parts: tuple[ModificationPlan, ...]
    timestamp: TermPlan | None

    def __post_init__(self) -> None:
        assert self.kind in BATCH_NAMES.values(), f"no batch is {self.kind}"
        assert self.timestamp is None or not any(part.timestamp for part in self.parts), "one time is given"

    @property
    def counts(self) -> bool:
        """Whether counters are changed."""
        return any(part.counts for part in self.parts)


def compile_batch(batch: tree.Batch, shapes: Sequence[TableShape], scope: Scope) -> BatchPlan:
    """`shapes`: the table of each statement. InvalidRequest for what a batch does not allow."""
    tables = [shape.table for shape in shapes]
    check_batch(batch.kind, tables, has_timestamp=batch.using.timestamp is not None)
    if batch.using.ttl is not None:
        raise InvalidRequest("Global TTL on the BATCH statement is not supported.")
    timestamp = None
    if batch.using.timestamp is not None:
        if any(statement.conditions is not None for statement in batch.statements):
            raise InvalidRequest("Cannot provide custom timestamp for conditional BATCH")
        if any(statement.using.timestamp is not None for statement in batch.statements):
            raise InvalidRequest("Timestamp must be set either on BATCH or individual statements")
        timestamp = compile_term(batch.using.timestamp, parse_type("bigint"), "[timestamp]", scope)
    parts = []
    for statement, shape in zip(batch.statements, shapes, strict=True):
        scope.enter(shape)
        parts.append(compile_modification(statement, shape, scope))
    return BatchPlan(batch.kind, tuple(parts), timestamp)


def reads_lists(prepared: Prepared) -> bool:
    """Whether a modification or batch needs lists that are there."""
    return any(plan.reads_lists for plan in plans_of(prepared))


def plans_of(prepared: Prepared) -> Sequence[ModificationPlan]:
    """The statement's plan, or those of a batch."""
    if isinstance(prepared.plan, BatchPlan):
        return prepared.plan.parts
    return (prepared.plan,) if isinstance(prepared.plan, ModificationPlan) else ()


def commands(entries: Sequence[tuple[Prepared, Values]], context: Context) -> list[ReadCommand]:
    """The reads that the statements need, one a partition and statement; InvalidRequest for unfit values."""
    found: list[ReadCommand] = []
    for prepared, values in entries:
        prepared.check_values(list(values))
        for plan in plans_of(prepared):
            if plan.reads_lists:
                found.extend(of_plan(plan, values, context))
    assert all(asked.key is not None for asked in found), "lists are read partition by partition"
    return found


def of_plan(plan: ModificationPlan, values: Values, context: Context) -> Iterator[ReadCommand]:
    """The reads that one statement needs, one a partition."""
    shape = plan.shape
    slices: tuple[Slice, ...] = ()
    if any(operation.reads_list for operation in plan.operations):
        parts = clusterings(shape, plan.restrictions, values, context)
        slices = tuple(Slice(part, part + b"\x00") for part in parts)
    if not slices:
        # No row lies in front of every clustering: only the static row is asked.
        slices = (Slice(b"", b"\x00"),)
    reads_static = any(operation.reads_list for operation in plan.static_operations)
    for key in partition_keys(plan.restrictions, values, context):
        token = token_of(key)
        yield ReadCommand(
            shape.table.id,
            token - 1,
            token,
            key,
            slices,
            (),
            reads_static,
            False,
            IN_COMBINATIONS_MAX,
            0,
            context.now_s,
            None,
            shape.table.gone,
            dead=shape.table.dead,
        )


def lists(asked: Sequence[ReadCommand], results: Sequence[ReadResult]) -> Lists:
    """Live cells with a path of the rows read, by place, sorted by path."""
    found: dict[ListPlace, Sequence[Cell]] = {}
    for command, result in zip(asked, results, strict=True):
        for partition in result.partitions:
            rows: list[tuple[bytes, Row]] = []
            if partition.static is not None:
                rows.append((b"", partition.static))
            rows += [(row.clustering, row) for row in partition.rows]
            for clustering, row in rows:
                # Several statements may have asked for one row: one answer counts.
                found.update(_of_row(row, (command.table_id, partition.key, clustering)))
    return found


def _of_row(row: Row, place: tuple[int, bytes, bytes]) -> Lists:
    cells: dict[ListPlace, list[Cell]] = {}
    for cell in row.cells:
        if cell.path is not None and cell.value is not None:
            cells.setdefault((*place, cell.column), []).append(cell)
    return {at: sorted(members, key=lambda cell: cell.path or b"") for at, members in cells.items()}
