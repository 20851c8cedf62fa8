"""The SELECT list compiled: which columns a row must offer and how each output comes from them.

Invariant: a record is a list with one slot a needed column (serialised value or None), then one slot a
cell whose timestamp or ttl is asked (its Cell or None, or all cells of a column); outputs read records and
what was folded over them, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.cql.bind.evaluation import Evaluate, Moment, Record, take
from lockstep.cql.bind.json_text import row_text
from lockstep.cql.compile.catalog import TableShape
from lockstep.cql.compile.expressions import CellSlot, Expressions, Folding
from lockstep.cql.compile.literals import shown
from lockstep.cql.compile.prepared import ColumnSpec, Scope
from lockstep.cql.functions.user_functions import qualified
from lockstep.cql.parse import tree
from lockstep.schema.model import Column
from lockstep.schema.types import CqlType, parse_type

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
    outputs are of."""

    outputs: tuple[Output, ...]
    columns: tuple[Column, ...]
    cells: tuple[CellSlot, ...]
    is_wildcard: bool
    plain: tuple[int, ...] | None
    foldings: tuple[Folding, ...] = ()
    grouping: tuple[Evaluate, ...] = ()
    named: tuple[Column, ...] = ()

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
    )


def as_json(selection: Selection) -> Selection:
    """The selection with one output, `[json]`: each row as a JSON object."""
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
