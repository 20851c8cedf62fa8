"""The SELECT list compiled: columns, what is inside them, functions, aggregates, arithmetic; which columns a
row must offer and how each output comes from them.

Invariant: a compiled expression reads the slots it was given and, for aggregates, what was folded; nothing
else. A record is a list with one slot a needed column (serialised value or None), then one slot a cell whose
timestamp or ttl is asked (its Cell or None, or all cells of a column); outputs read records and what was
folded over them, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from lockstep.cql.bind import evaluation
from lockstep.cql.bind.evaluation import Evaluate, Moment, Record, take
from lockstep.cql.bind.json_values import row_text
from lockstep.cql.compile.literals import counts_rows, natural_type, shown
from lockstep.cql.compile.prepared import ColumnSpec, Scope, TableShape
from lockstep.cql.compile.terms import (
    assignable_type,
    check_operands,
    choose_overload,
    compile_term,
    fits,
    is_loose,
)
from lockstep.cql.functions import aggregates, cell_facts
from lockstep.cql.functions.arithmetic import cast_function, negation, operand_types, operation
from lockstep.cql.functions.cell_facts import key_type, position_in
from lockstep.cql.functions.native import family
from lockstep.cql.functions.signatures import Known
from lockstep.cql.functions.user_aggregates import UserAggregate, aggregates_in, finished, row_of
from lockstep.cql.functions.user_functions import choose_own, is_native, overloads_in, qualified
from lockstep.cql.parse import tree
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.log_tables import token_in
from lockstep.schema.model import Column
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    parse_type,
)
from lockstep.schema.user_types import mentions
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import CQL_EXPRESSION_DEPTH_MAX

Typed = tuple[Evaluate, CqlType]

_COMPOUND = tree.ListLiteral | tree.SetLiteral | tree.MapLiteral | tree.TupleLiteral | tree.UserLiteral


class Folding(msgspec.Struct, frozen=True):
    """One aggregate of a SELECT list: it folds `evaluate` over the rows of a group. `native`: its name, where
    it is of a column as it is stored or, without `column`, of rows."""

    aggregate: aggregates.Aggregate
    evaluate: Evaluate
    native: str = ""
    column: Column | None = None

    def __post_init__(self) -> None:
        assert self.column is None or self.native, "a column as it is stored is folded by what is native"


class CellSlot(msgspec.Struct, frozen=True):
    """A slot for the only cell of a column, or for all its cells (`whole`)."""

    column: int
    whole: bool


class Expressions:
    """Compiles the expressions of one SELECT and hands out slots."""

    def __init__(self, shape: TableShape, scope: Scope) -> None:
        self.shape = shape
        self.scope = scope
        self.slots: dict[str, int] = {}
        self.cells: dict[CellSlot, int] = {}
        self.foldings: list[Folding] = []
        #: Whether anything but what aggregates fold is needed of rows.
        self.reads_rows = False
        self._in_aggregate = False
        self._depth = 0

    def slot(self, name: str) -> int:
        self.shape.column(name)
        self.reads_rows = self.reads_rows or not self._in_aggregate
        return self.slots.setdefault(name, len(self.slots))

    def compile(self, term: tree.Term, wanted: Known = None) -> Typed:
        """How to work an expression out, and its type; `wanted` is what a bind variable would be."""
        if self._depth >= CQL_EXPRESSION_DEPTH_MAX:
            raise InvalidRequest("The statement is nested too deeply")
        self._depth += 1
        found = self._compiled(term, wanted)
        self._depth -= 1
        assert self._depth >= 0, "each expression that is compiled was begun"
        return found

    def _compiled(self, term: tree.Term, wanted: Known) -> Typed:
        if isinstance(term, tree.ColumnName):
            return evaluation.take(self.slot(term.name)), self.shape.types[term.name]
        if isinstance(term, tree.Literal | tree.Bind):
            return self._plain(term, wanted)
        if isinstance(term, tree.Call):
            return self._call(term, wanted)
        if isinstance(term, tree.Arithmetic | tree.Negation):
            return self._computation(term, wanted)
        if isinstance(term, tree.Cast):
            evaluate, source = self.compile(term.term)
            target = self.scope.type_named(term.type)
            return evaluation.applied_run(cast_function(source, target, shown(term.term)), [evaluate]), target
        if isinstance(term, tree.TypeHint):
            return self._hinted(term)
        if isinstance(term, tree.Element):
            return self._element(term)
        if isinstance(term, tree.Span):
            return self._span(term)
        if isinstance(term, tree.Field):
            return self._field(term)
        if isinstance(term, tree.TupleLiteral) and len(term.items) == 1:
            return self.compile(term.items[0], wanted)
        return self._compound(term, wanted)

    # Literals

    def _plain(self, term: tree.Literal | tree.Bind, wanted: Known) -> Typed:
        kind = wanted
        if kind is None and isinstance(term, tree.Literal):
            kind = natural_type(term)
        if kind is None:
            raise InvalidRequest(
                f"Cannot infer type for term {shown(term)} in selection clause "
                "(try using a cast to force a type)"
            )
        return self.plain_term(term, kind)

    def plain_term(self, term: tree.Term, kind: CqlType) -> Typed:
        plan = compile_term(term, kind, "[selection]", self.scope)

        def evaluate(record: Record, moment: Moment) -> bytes | None:
            value = plan.get(moment.values, moment.context)
            if value is UNSET:
                raise InvalidRequest("Invalid unset value in selection clause")
            return value

        return evaluate, kind

    def _hinted(self, term: tree.TypeHint) -> Typed:
        kind, inner = self.scope.type_named(term.type), term.term
        if isinstance(inner, tree.MapLiteral) and isinstance(kind, UserDefinedType):
            named = [(key.name, value) for key, value in inner.entries if isinstance(key, tree.ColumnName)]
            if len(named) == len(inner.entries):
                inner = tree.UserLiteral(tuple(named))
        if isinstance(inner, tree.Literal | tree.Bind | tree.UserLiteral):
            return self.plain_term(inner, kind)
        evaluate, found = self.compile(inner, kind)
        if not assignable_type(found, kind):
            raise InvalidRequest(f"Cannot assign value of type {found.text} to type {kind.text}")
        return evaluate, kind

    def _compound(self, term: tree.Term, wanted: Known) -> Typed:
        """A collection or tuple of expressions, of the type wanted or else that of its first element."""
        if isinstance(term, tree.TupleLiteral):
            parts = [self.compile(item) for item in term.items]
            of_parts = wanted if isinstance(wanted, TupleType) else TupleType(tuple(k for _, k in parts))
            if len(of_parts.elements) != len(parts):
                raise InvalidRequest(f"Cannot assign value {shown(term)} to type {of_parts.text}")
            evaluates = [
                self._as(item, kind) for item, kind in zip(term.items, of_parts.elements, strict=True)
            ]
            return evaluation.joined(of_parts.join, evaluates, takes_null=True), of_parts
        if isinstance(term, tree.MapLiteral):
            kind = (
                wanted
                if isinstance(wanted, MapType)
                else MapType(
                    self._common([key for key, _ in term.entries]),
                    self._common([value for _, value in term.entries]),
                    frozen=True,
                )
            )
            pairs = [(self._as(key, kind.key), self._as(value, kind.value)) for key, value in term.entries]
            flat = [part for pair in pairs for part in pair]
            return evaluation.joined(kind.join, flat, takes_null=False), kind
        if not isinstance(term, tree.ListLiteral | tree.SetLiteral):
            raise InvalidRequest(f"Cannot infer type for term {shown(term)} in selection clause")
        return self._listed(term, wanted)

    def _listed(self, term: tree.ListLiteral | tree.SetLiteral, wanted: Known) -> Typed:
        if wanted is not None and wanted.name in ("list", "set", "vector"):
            if (wanted.name == "set") != isinstance(term, tree.SetLiteral):
                raise InvalidRequest(f"Cannot assign value {shown(term)} to type {wanted.text}")
            if all(isinstance(item, tree.Literal | tree.Bind) for item in term.items):
                return self.plain_term(term, wanted)
            kind: CqlType = wanted
        elif isinstance(term, tree.ListLiteral):
            kind = ListType(self._common(term.items), frozen=True)
        else:
            kind = SetType(self._common(term.items), frozen=True)
        parts = [self._as(item, kind.element) for item in term.items]
        assert isinstance(kind, CollectionType) or kind.name == "vector"
        return evaluation.joined(kind.join, parts, takes_null=False), kind  # type: ignore[attr-defined]

    def _common(self, items: Sequence[tree.Term]) -> CqlType:
        """The one type of several elements: that of those which are no literals, else of the first."""
        kinds = [self.compile(item)[1] for item in items if not isinstance(item, tree.Literal | tree.Bind)]
        kinds += [self.compile(item)[1] for item in items if isinstance(item, tree.Literal)]
        if not kinds:
            raise InvalidRequest("Cannot infer type for an empty literal in selection clause (try a cast)")
        return kinds[0]

    def _as(self, term: tree.Term, kind: CqlType) -> Evaluate:
        evaluate, found = self.compile(term, kind)
        if not assignable_type(found, kind):
            raise InvalidRequest(
                f"Cannot assign value {shown(term)} of type {found.text} to type {kind.text}"
            )
        return evaluate

    # Inside columns

    def _element(self, element: tree.Element) -> Typed:
        evaluate, kind = self.compile(element.term)
        of_key = key_type(element, kind)
        key, _ = self.plain_term(element.key, of_key)
        assert isinstance(kind, CollectionType)
        if isinstance(kind, MapType):
            return evaluation.element_of(evaluate, kind, key, 1), kind.value
        return evaluation.element_of(evaluate, kind, key, 0), kind.element

    def _span(self, span: tree.Span) -> Typed:
        evaluate, kind = self.compile(span.term)
        of_key = key_type(span, kind)
        ends = [None if end is None else self.plain_term(end, of_key)[0] for end in (span.low, span.high)]
        assert isinstance(kind, CollectionType)
        return evaluation.span_of(evaluate, kind, of_key, ends[0], ends[1]), kind

    def _field(self, selected: tree.Field) -> Typed:
        evaluate, kind = self.compile(selected.term)
        position = position_in(selected, kind)
        assert isinstance(kind, UserDefinedType)
        return evaluation.field_of(evaluate, kind, position), kind.elements[position]

    # Calls

    def _call(self, call: tree.Call, wanted: Known) -> Typed:
        native = call.keyspace in (None, "system")
        if native and call.name in aggregates.NAMES:
            return self._aggregate(call)
        if call.name in cell_facts.NAMES and call.keyspace is None:
            return cell_facts.cell_fact(self, call)
        if native and call.name == "token":
            return self._token(call)
        own = _own_aggregates(call, self.scope)
        if own:
            return _user_aggregate(self, call, own, wanted)
        found = family(call.keyspace, call.name)
        if found is not None:
            function = found.function([self._known(argument) for argument in call.arguments], None)
        else:
            function = choose_overload(call, wanted, self._fit, self.scope)
        pairs = zip(call.arguments, function.arguments, strict=True)
        return evaluation.applied(function, [self._as(term, kind) for term, kind in pairs]), function.returns

    def _known(self, term: tree.Term) -> Known:
        if isinstance(term, tree.Literal):
            return natural_type(term)
        if isinstance(term, tree.Bind):
            return None
        if isinstance(term, _COMPOUND) and not (isinstance(term, tree.TupleLiteral) and len(term.items) == 1):
            return None
        kind = self.scope.types.get(term)
        if kind is None:
            before = len(self.foldings)
            kind = self.compile(term)[1]
            # Only its type is wanted: what it folds is compiled again.
            assert len(self.foldings) >= before, "what is compiled takes no folding away"
            del self.foldings[before:]
            self.scope.types[term] = kind
        return kind

    def _fit(self, term: tree.Term, kind: CqlType) -> int:
        if isinstance(term, tree.Literal | tree.Bind):
            return fits(term, kind, self.scope)
        found = self._known(term)
        if found is None:
            return fits(term, kind, self.scope)
        if found == kind:
            return 2
        return int(found.name != "blob" and assignable_type(found, kind) and kind.name != "blob")

    def _aggregate(self, call: tree.Call) -> Typed:
        if self._in_aggregate:
            raise InvalidRequest("aggregate functions cannot be used as arguments of aggregate functions")
        native, column = call.name, None
        if counts_rows(call):
            found = aggregates.aggregate("count", None)
            evaluate: Evaluate = evaluation.always
        else:
            if len(call.arguments) != 1:
                raise InvalidRequest(
                    f"Invalid number of arguments in call to function {call.name}: 1 required but "
                    f"{len(call.arguments)} provided"
                )
            self._in_aggregate = True
            evaluate, kind = self.compile(call.arguments[0])
            assert self._in_aggregate, "aggregates are not inside each other"
            self._in_aggregate = False
            found = aggregates.aggregate(call.name, kind)
            argument = call.arguments[0]
            if isinstance(argument, tree.ColumnName):
                column = self.shape.column(argument.name)
            else:
                native = ""
        self.foldings.append(Folding(found, evaluate, native, column))
        return evaluation.folded(len(self.foldings) - 1), found.returns

    def _computation(self, term: tree.Arithmetic | tree.Negation, wanted: Known) -> Typed:
        if isinstance(term, tree.Negation):
            evaluate, kind = self.compile(term.term, wanted)
            function = negation(kind, shown(term.term))
            return evaluation.applied(function, [evaluate]), function.returns
        known = (self._operand(term.left), self._operand(term.right))
        check_operands(term, known, wanted)
        left, right = operand_types(
            shown(term),
            known,
            (is_loose(term.left), is_loose(term.right)),
            wanted,
        )
        function = operation(term.operator, left, right, (shown(term.left), shown(term.right)))
        sides = [self.compile(term.left, left)[0], self.compile(term.right, right)[0]]
        return evaluation.applied(function, sides), function.returns

    def _operand(self, term: tree.Term) -> Known:
        if is_loose(term) and not isinstance(term, tree.Literal):
            return None if isinstance(term, tree.Bind) else _type_of_loose(self, term)
        return self._known(term)

    def _token(self, call: tree.Call) -> Typed:
        kinds = self.shape.partition_types
        if len(call.arguments) != len(kinds):
            raise InvalidRequest(
                f"Invalid number of arguments in call to function token: "
                f"{len(kinds)} required but {len(call.arguments)} provided"
            )
        pairs = zip(call.arguments, kinds, strict=True)
        parts = [self._as(term, kind) for term, kind in pairs]
        of_key = partial(token_in, self.shape.table)
        return evaluation.token_of_key(parts, of_key), evaluation.BIGINT

    def cell_slot(self, column: int, *, whole: bool) -> int:
        return self.cells.setdefault(CellSlot(column, whole), len(self.cells))


def _own_aggregates(call: tree.Call, scope: Scope) -> tuple[UserAggregate, ...]:
    """The user aggregates that a call may mean; () when it can only mean functions of the same name."""
    if call.keyspace is None and is_native(call.name):
        return ()
    space = scope.space_of(call.keyspace, call.name)
    own = aggregates_in(space, call.name)
    count = len(call.arguments)
    takes = [one for one in own if len(one.arguments) == count]
    return own if takes or not overloads_in(space, call.name) else ()


def _user_aggregate(
    expressions: Expressions, call: tree.Call, own: Sequence[UserAggregate], wanted: Known
) -> Typed:
    if expressions._in_aggregate:
        raise InvalidRequest("aggregate functions cannot be used as arguments of aggregate functions")
    expressions._in_aggregate = True
    aggregate = choose_own(call.name, own, call.arguments, wanted, expressions._fit)
    pairs = zip(call.arguments, aggregate.arguments, strict=True)
    row = row_of([expressions._as(term, kind) for term, kind in pairs])
    assert expressions._in_aggregate, "aggregates are not inside each other"
    expressions._in_aggregate = False
    expressions.foldings.append(Folding(aggregate.gather, row))
    return finished(aggregate, evaluation.folded(len(expressions.foldings) - 1)), aggregate.returns


def _type_of_loose(expressions: Expressions, term: tree.Term) -> Known:
    """The type of a nested number without columns; None when it holds nothing but bind variables."""
    if isinstance(term, tree.Arithmetic):
        kinds = [expressions._operand(side) for side in (term.left, term.right)]
        known = [kind for kind in kinds if kind is not None]
        if len(known) == 2:
            return operation(term.operator, known[0], known[1], ("", "")).returns
        return known[0] if known else None
    if isinstance(term, tree.Negation):
        return expressions._operand(term.term)
    assert isinstance(term, tree.TupleLiteral)
    return expressions._operand(term.items[0])


__all__ = ["Evaluate", "Moment", "Output", "Record", "Selection", "as_json", "compile_selection"]


class Output(msgspec.Struct, frozen=True):
    """One result column. `slot` >= 0: simply that slot."""

    name: str
    type: CqlType
    evaluate: Evaluate
    slot: int = -1


class Selection(msgspec.Struct, frozen=True):
    """`columns`: needed columns by slot; `cells`: the slots behind them; `foldings`: aggregates inside the
    outputs; `grouping`: key columns and functions of them whose values tell groups apart; `named`: what the
    outputs are of. `reads_rows`: whether outputs need more of rows than what aggregates make of them.
    `user_typed`: positions of the outputs that hold values of user-defined types."""

    outputs: tuple[Output, ...]
    columns: tuple[Column, ...]
    cells: tuple[CellSlot, ...]
    is_wildcard: bool
    plain: tuple[int, ...] | None
    foldings: tuple[Folding, ...] = ()
    grouping: tuple[Evaluate, ...] = ()
    named: tuple[Column, ...] = ()
    reads_rows: bool = True
    user_typed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.outputs, "rows have columns"
        assert self.plain is None or len(self.plain) == len(self.outputs), (
            "each output is a slot, or none counts"
        )
        assert self.plain is None or not self.foldings, "what is folded is no column as it is"
        assert max(one.slot for one in self.outputs) < len(self.columns), "an output's slot is of a column"

    @property
    def has_aggregates(self) -> bool:
        return bool(self.foldings)

    def specs(self, keyspace: str, table: str) -> tuple[ColumnSpec, ...]:
        return tuple(ColumnSpec(keyspace, table, output.name, output.type) for output in self.outputs)


def _named(expression: tree.Term, expressions: Expressions) -> tree.Term:
    """A column that is cast to the type it has keeps its name."""
    if not isinstance(expression, tree.Cast) or not isinstance(expression.term, tree.ColumnName):
        return expression
    kind = expressions.shape.types.get(expression.term.name)
    return expression.term if kind == expressions.scope.type_named(expression.type) else expression


def _output(expressions: Expressions, selector: tree.Selector) -> Output:
    expression = selector.expression
    name = selector.alias
    if name is None:
        name = shown(qualified(_named(expression, expressions), expressions.shape.space))
    if isinstance(expression, tree.ColumnName):
        slot = expressions.slot(expression.name)
        return Output(name, expressions.shape.types[expression.name], take(slot), slot)
    evaluate, kind = expressions.compile(expression)
    return Output(name, kind, evaluate)


def compile_selection(
    shape: TableShape,
    selectors: Sequence[tree.Selector],
    also: Sequence[str],
    scope: Scope,
    grouping: Sequence[tree.Term] = (),
) -> Selection:
    """Compile a SELECT list (() is `*`); `also` names columns that filters need beside it."""
    expressions = Expressions(shape, scope)
    wildcard = not selectors
    if wildcard:
        selectors = [tree.Selector(tree.ColumnName(name), None) for name in wildcard_names(shape)]
    outputs = tuple(_output(expressions, selector) for selector in selectors)
    by_id = shape.table.by_id
    named = [*map(shape.column, expressions.slots), *(by_id[cell.column] for cell in expressions.cells)]
    reads_rows = expressions.reads_rows or bool(expressions.cells)
    groups = tuple(expressions.compile(term)[0] for term in grouping)
    for name in also:
        expressions.slot(name)
    plain = None
    if not expressions.foldings and all(output.slot >= 0 for output in outputs):
        plain = tuple(output.slot for output in outputs)
    columns = tuple(shape.column(name) for name in expressions.slots)
    return Selection(
        outputs,
        columns,
        tuple(expressions.cells),
        wildcard,
        plain,
        tuple(expressions.foldings),
        groups,
        tuple(named),
        reads_rows,
        tuple(at for at, output in enumerate(outputs) if mentions(output.type, "udt")),
    )


def as_json(selection: Selection) -> Selection:
    """The selection with one output, `[json]`: each row as a JSON object."""
    outputs = selection.outputs
    names = [output.name for output in outputs]
    kinds = [output.type for output in outputs]

    def evaluate(record: Record, moment: Moment) -> bytes:
        return row_text(names, kinds, [output.evaluate(record, moment) for output in outputs])

    output = Output("[json]", parse_type("text"), evaluate)
    return msgspec.structs.replace(selection, outputs=(output,), plain=None, user_typed=())


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
