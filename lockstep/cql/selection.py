"""The SELECT list compiled: which columns a row must offer and how each output comes from them.

Invariant: a record is a list with one slot a needed column (serialised value or None), then one slot a
column whose timestamp or ttl is asked (its Cell or None); outputs read records and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.cql import aggregates, tree
from lockstep.cql.catalog import TableShape, cql_name
from lockstep.cql.context import Context
from lockstep.cql.functions import cast_function
from lockstep.cql.json_text import row_text
from lockstep.cql.keys import routing_key
from lockstep.cql.prepared import ColumnSpec, Scope
from lockstep.cql.terms import Values, assignable_type, choose_overload, compile_term, fits
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CollectionType, CqlType, MapType, UserDefinedType, field_path, parse_type
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Cell
from lockstep.values.tokens import token_of

Record = list[Any]


class Moment(msgspec.Struct, frozen=True):
    """What outputs may use beside the record."""

    values: Values
    context: Context


Evaluate = Callable[[Record, Moment], bytes | None]


class Output(msgspec.Struct, frozen=True):
    """One result column. `slot` >= 0: simply that slot. `aggregate`: folds `evaluate` over the rows."""

    name: str
    type: CqlType
    evaluate: Evaluate
    slot: int = -1
    aggregate: aggregates.Aggregate | None = None


class Selection(msgspec.Struct, frozen=True):
    """`columns`: needed columns by slot; `cells`: column id and path (None for the column's
    only cell) of the slots behind them."""

    outputs: tuple[Output, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[int, bytes | None], ...]
    is_wildcard: bool
    has_aggregates: bool
    plain: tuple[int, ...] | None

    def specs(self, keyspace: str, table: str) -> tuple[ColumnSpec, ...]:
        return tuple(ColumnSpec(keyspace, table, output.name, output.type) for output in self.outputs)


class _Compiler:
    """Compiles the outputs of one SELECT and hands out slots."""

    def __init__(self, shape: TableShape, scope: Scope) -> None:
        self.shape = shape
        self.scope = scope
        self.slots: dict[str, int] = {}
        self.cells: dict[tuple[int, bytes | None], int] = {}

    def slot(self, name: str) -> int:
        self.shape.column(name)
        return self.slots.setdefault(name, len(self.slots))

    def output(self, selector: tree.Selector) -> Output:
        expression = selector.expression
        name = selector.alias if selector.alias is not None else shown(expression)
        if isinstance(expression, tree.Call) and expression.name in aggregates.NAMES:
            return self._aggregate(name, expression)
        if isinstance(expression, tree.ColumnName):
            slot = self.slot(expression.name)
            return Output(name, self.shape.types[expression.name], _take(slot), slot)
        evaluate, kind = self.expression(expression)
        return Output(name, kind, evaluate)

    def _aggregate(self, name: str, call: tree.Call) -> Output:
        if call.counts_rows or (call.name == "count" and isinstance(_only(call), tree.Literal)):
            found = aggregates.aggregate("count", None)
            return Output(name, found.returns, _always, aggregate=found)
        argument = _only(call)
        if argument is None:
            raise InvalidRequest(
                f"Invalid number of arguments in call to function {call.name}: 1 required but "
                f"{len(call.arguments)} provided"
            )
        evaluate, kind = self.expression(argument)
        found = aggregates.aggregate(call.name, kind)
        return Output(name, found.returns, evaluate, aggregate=found)

    def expression(self, term: tree.Term) -> tuple[Evaluate, CqlType]:
        """How to work a nested expression out, and its type."""
        if isinstance(term, tree.ColumnName):
            return _take(self.slot(term.name)), self.shape.types[term.name]
        if isinstance(term, tree.Cast):
            evaluate, source = self.expression(term.term)
            target = self.scope.type_named(term.type)
            return _applied(cast_function(source, target), [evaluate]), target
        if isinstance(term, tree.TypeHint):
            return self._hinted(term)
        if isinstance(term, tree.Element):
            return self._element(term)
        if isinstance(term, tree.Field):
            return self._field(term)
        if isinstance(term, tree.Call):
            return self._call(term)
        if isinstance(term, tree.Literal):
            natural = {"string": "text", "integer": "int", "float": "double", "hex": "blob"}
            if term.kind == "null":
                raise InvalidRequest("Cannot infer type for term null in selection clause (try using a cast)")
            kind = parse_type(natural.get(term.kind, term.kind))
            if term.kind == "integer" and not -(1 << 31) <= int(term.text[:40]) < 1 << 31:
                kind = parse_type("bigint" if -(1 << 63) <= int(term.text[:40]) < 1 << 63 else "varint")
            return self._term(term, kind)
        raise InvalidRequest(
            "Cannot infer type for a term in selection clause (try using a cast to force a type)"
        )

    def _term(self, term: tree.Term, kind: CqlType) -> tuple[Evaluate, CqlType]:
        plan = compile_term(term, kind, "[selection]", self.scope)

        def evaluate(record: Record, moment: Moment) -> bytes | None:
            value = plan.get(moment.values, moment.context)
            if value is UNSET:
                raise InvalidRequest("Invalid unset value in selection clause")
            return value

        return evaluate, kind

    def _hinted(self, term: tree.TypeHint) -> tuple[Evaluate, CqlType]:
        kind = self.scope.type_named(term.type)
        if isinstance(term.term, tree.Literal | tree.Bind | tree.UserLiteral):
            return self._term(term.term, kind)
        evaluate, found = self.expression(term.term)
        if not assignable_type(found, kind):
            raise InvalidRequest(f"Cannot assign value of type {found.text} to type {kind.text}")
        return evaluate, kind

    def _element(self, element: tree.Element) -> tuple[Evaluate, CqlType]:
        slot, kind = self.slot(element.name), self.shape.types[element.name]
        if isinstance(kind, MapType):
            key, _ = self._term(element.key, kind.key)
            return _element_of(slot, kind, key, 1), kind.value
        if isinstance(kind, CollectionType) and kind.name == "set":
            key, of_key = self._term(element.key, kind.element)
            return _element_of(slot, kind, key, 0), of_key
        raise InvalidRequest(
            f"Invalid element selection: {element.name} is of type {kind.text}, neither a map nor a set"
        )

    def _field(self, selected: tree.Field) -> tuple[Evaluate, CqlType]:
        evaluate, kind = self.expression(selected.term)
        position = self._field_position(selected, kind)
        assert isinstance(kind, UserDefinedType)
        return _field_of(evaluate, kind, position), kind.elements[position]

    def _field_position(self, selected: tree.Field, kind: CqlType) -> int:
        if not isinstance(kind, UserDefinedType):
            raise InvalidRequest(
                f"Invalid field selection: {shown(selected.term)} of type {kind.text} is not a user type"
            )
        found = kind.field(selected.field)
        if found is None:
            raise InvalidRequest(f"{kind.text} of type {shown(selected.term)} has no field {selected.field}")
        return found[0]

    def _call(self, call: tree.Call) -> tuple[Evaluate, CqlType]:
        if call.name in aggregates.NAMES:
            raise InvalidRequest("aggregate functions cannot be used as arguments of other functions")
        if call.name in ("ttl", "writetime") and call.keyspace is None:
            return self._cell_fact(call)
        if call.name == "token":
            return self._token(call)
        function = choose_overload(call, None, self._fit)
        evaluates = []
        for argument, kind in zip(call.arguments, function.arguments, strict=True):
            evaluate, _ = self._argument(argument, kind)
            evaluates.append(evaluate)
        return _applied(function.run, evaluates), function.returns

    def _argument(self, term: tree.Term, kind: CqlType) -> tuple[Evaluate, CqlType]:
        return self._term(term, kind) if isinstance(term, tree.Literal | tree.Bind) else self.expression(term)

    def _fit(self, term: tree.Term, kind: CqlType) -> int:
        if isinstance(term, tree.Literal | tree.Bind):
            return fits(term, kind, self.scope)
        _, found = self.expression(term)
        return (
            2
            if found == kind
            else int(found.name != "blob" and assignable_type(found, kind) and kind.name != "blob")
        )

    def _cell_fact(self, call: tree.Call) -> tuple[Evaluate, CqlType]:
        argument = _only(call)
        named = argument.term if isinstance(argument, tree.Field) else argument
        if not isinstance(named, tree.ColumnName):
            raise InvalidRequest(f"{call.name} expects one column name")
        column, path = self.shape.column(named.name), None
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(
                f"Cannot use selection function {call.name} on PRIMARY KEY part {column.name}"
            )
        kind = self.shape.types[column.name]
        if isinstance(argument, tree.Field):
            position = self._field_position(argument, kind)
            path = field_path(position) if kind.is_multicell else None
        elif kind.is_multicell:
            what = "UDT" if kind.name == "udt" else "collection"
            raise InvalidRequest(
                f"Cannot use selection function {call.name} on non-frozen {what} {column.name}"
            )
        index = self.cells.setdefault((column.id, path), len(self.cells))
        if call.name == "writetime":
            return _write_time(index), parse_type("bigint")
        return _time_to_live(index), parse_type("int")

    def _token(self, call: tree.Call) -> tuple[Evaluate, CqlType]:
        keys = self.shape.table.partition_key
        names = [argument.name for argument in call.arguments if isinstance(argument, tree.ColumnName)]
        if names != [column.name for column in keys] or len(names) != len(call.arguments):
            raise InvalidRequest(
                "Invalid call to function token: its arguments are the partition key columns "
                + ", ".join(column.name for column in keys)
            )
        slots = [self.slot(name) for name in names]

        def evaluate(record: Record, moment: Moment) -> bytes | None:
            return token_of(routing_key([record[slot] for slot in slots])).to_bytes(8, "big", signed=True)

        return evaluate, parse_type("bigint")


def compile_selection(
    shape: TableShape, selectors: Sequence[tree.Selector], also: Sequence[str], scope: Scope
) -> Selection:
    """Compile a SELECT list (() is `*`); `also` names columns that filters need beside it."""
    compiler = _Compiler(shape, scope)
    wildcard = not selectors
    if wildcard:
        selectors = [tree.Selector(tree.ColumnName(name), None) for name in wildcard_names(shape)]
    outputs = tuple(compiler.output(selector) for selector in selectors)
    for name in also:
        compiler.slot(name)
    has_aggregates = any(output.aggregate is not None for output in outputs)
    plain = None
    if not has_aggregates and all(output.slot >= 0 for output in outputs):
        plain = tuple(output.slot for output in outputs)
    columns = tuple(shape.column(name) for name in compiler.slots)
    return Selection(outputs, columns, tuple(compiler.cells), wildcard, has_aggregates, plain)


def as_json(selection: Selection) -> Selection:
    """The selection with one output, `[json]`: each row as a JSON object."""
    if selection.has_aggregates:
        raise InvalidRequest("SELECT JSON is not supported with aggregate functions")
    outputs = selection.outputs
    names = [output.name for output in outputs]
    kinds = [output.type for output in outputs]

    def evaluate(record: Record, moment: Moment) -> bytes:
        return row_text(names, kinds, [output.evaluate(record, moment) for output in outputs])

    output = Output("[json]", parse_type("text"), evaluate)
    return msgspec.structs.replace(selection, outputs=(output,), plain=None)


def wildcard_names(shape: TableShape) -> list[str]:
    """Columns of `*`: the primary key in order, then static and regular ones each by name."""
    table = shape.table
    return [
        column.name
        for group in (
            table.partition_key,
            table.clustering,
            tuple(sorted(table.static, key=lambda column: column.name)),
            tuple(sorted(table.regular, key=lambda column: column.name)),
        )
        for column in group
    ]


_COMPOUND = tree.ListLiteral | tree.SetLiteral | tree.MapLiteral | tree.TupleLiteral | tree.UserLiteral


def shown(term: tree.Term) -> str:
    """The name of a result column without an alias."""
    if isinstance(term, tree.ColumnName):
        return term.name
    if isinstance(term, tree.Literal):
        return f"'{term.text}'" if term.kind == "string" else term.text
    if isinstance(term, tree.Cast):
        return f"cast({shown(term.term)} as {term.type})"
    if isinstance(term, tree.TypeHint):
        return f"({term.type}){shown(term.term)}"
    if isinstance(term, tree.Element):
        return f"{cql_name(term.name)}[{shown(term.key)}]"
    if isinstance(term, _COMPOUND):
        return "..."
    if isinstance(term, tree.Field):
        return f"{shown(term.term)}.{term.field}"
    if isinstance(term, tree.Bind):
        return "?"
    assert isinstance(term, tree.Call)
    if term.counts_rows:
        return "count"
    arguments = ", ".join(
        cql_name(argument.name) if isinstance(argument, tree.ColumnName) else shown(argument)
        for argument in term.arguments
    )
    if term.name in ("ttl", "writetime") and term.keyspace is None:
        return f"{term.name}({arguments})"
    return f"{term.keyspace or 'system'}.{term.name}({arguments})"


def _only(call: tree.Call) -> tree.Term | None:
    return call.arguments[0] if len(call.arguments) == 1 else None


def _take(slot: int) -> Evaluate:
    return lambda record, moment: record[slot]


def _element_of(slot: int, kind: CollectionType, key: Evaluate, behind: int) -> Evaluate:
    """The part `behind` the one that equals `key` in a collection: 1 for a map's value, 0 for itself."""
    step = kind.parts_per_entry

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        value, wanted = record[slot], key(record, moment)
        if value is None or wanted is None:
            return None
        parts = kind.split(value)
        for at in range(0, len(parts), step):
            if parts[at] == wanted:
                return parts[at + behind]
        return None

    return evaluate


def _field_of(value_of: Evaluate, kind: UserDefinedType, position: int) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        value = value_of(record, moment)
        if value is None:
            return None
        parts = kind.split(value)
        return parts[position] if position < len(parts) else None

    return evaluate


def _always(record: Record, moment: Moment) -> bytes:
    return b""


def _applied(run: Callable[[Sequence[bytes], Context], bytes | None], parts: Sequence[Evaluate]) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        arguments = []
        for part in parts:
            argument = part(record, moment)
            if argument is None:
                return None
            arguments.append(argument)
        return run(arguments, moment.context)

    return evaluate


def _write_time(index: int) -> Evaluate:
    """Cell slots are counted from the end of the record."""

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        cell: Cell | None = record[-1 - index]
        return None if cell is None else cell.timestamp_us.to_bytes(8, "big", signed=True)

    return evaluate


def _time_to_live(index: int) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        cell: Cell | None = record[-1 - index]
        if cell is None or not cell.ttl_s:
            return None
        return max(cell.expires_at_s - moment.context.now_s, 0).to_bytes(4, "big", signed=True)

    return evaluate
