"""SELECT compiled, and bound to values as read commands.

Owns: SelectPrepared (per statement) and SelectPlan (per execution). Invariant: the rows of the commands, in
order and narrowed by the plan's checks and limits, are the rows asked.
"""

from __future__ import annotations

import msgspec

from lockstep.cql.bind.page_positions import PagePosition
from lockstep.cql.bind.records import check_grouping
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.expressions import Moment, Selection, as_json, compile_selection
from lockstep.cql.compile.index_uses import index_read
from lockstep.cql.compile.outlining import Outlined, bound_outline, outline_of
from lockstep.cql.compile.prepared import Prepared, Scope, TableShape
from lockstep.cql.compile.ranges import Check, bound_filters, partition_keys, slices, token_range
from lockstep.cql.compile.restrictions import Restrictions, Rule
from lockstep.cql.compile.terms import TermPlan, Values, compile_term
from lockstep.cql.compile.where import analyse
from lockstep.cql.parse import tree
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.log_tables import token_in
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import parse_type
from lockstep.schema.view_changes import unmarking
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import PAGE_ROWS_MAX
from lockstep.values.outlines import Outline
from lockstep.values.rows import ALL_ROWS, IndexRead, Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

POINT = "POINT"
RANGE = "RANGE"


class SelectPrepared(msgspec.Struct, frozen=True):
    """`sorts`: by how many columns of the clustering rows of several partitions are sorted after reading;
    equal ones stay in the order of their partitions. 0: not at all."""

    shape: TableShape
    restrictions: Restrictions
    selection: Selection
    reads_static: bool
    distinct: bool
    reverse: bool
    sorts: int
    limit: TermPlan | None
    per_partition_limit: TermPlan | None
    #: Ids of columns whose cells make no row exist, ascending.
    dropped: tuple[int, ...] = ()
    grouped: bool = False
    #: What replicas may tell in place of rows; None for rows.
    outline: Outlined | None = None

    def __post_init__(self) -> None:
        table, point = self.shape.table, self.is_point
        assert 0 <= self.sorts <= len(table.clustering), "rows are sorted by clustering columns"
        assert point or not (self.reverse or self.sorts), "the order of rows is that of given partitions"
        assert not (self.distinct and self.restrictions.has_clustering), "distinct partitions are whole"
        assert not self.reads_static or table.static, "static content is that of static columns"
        assert self.dropped == tuple(sorted(set(self.dropped))), "columns ascend by id"

    @property
    def is_point(self) -> bool:
        return bool(self.restrictions.partition)

    @property
    def folds(self) -> bool:
        """Whether result rows stand for groups of rows."""
        return self.grouped or self.selection.has_aggregates


class SelectPlan(msgspec.Struct, frozen=True):
    """One execution. `kind` POINT: `keys` in the order of the answer; RANGE: tokens (left, right].

    `limit`, `per_partition_limit`, `page_size`: rows, or -1 for none. `start`: where the page begins.
    A plan that can match nothing has no keys, or left == right.
    """

    select: SelectPrepared
    kind: str
    keys: tuple[bytes, ...]
    left: int
    right: int
    slices: tuple[Slice, ...]
    checks: tuple[Check, ...]
    moment: Moment
    limit: int
    per_partition_limit: int
    page_size: int
    start: PagePosition | None
    index: IndexRead | None = None
    outline: Outline | None = None

    def __post_init__(self) -> None:
        assert self.kind == POINT or not self.keys, "who scans asks for no keys"
        assert self.left <= self.right, "a range begins before its end"
        assert min(self.limit, self.per_partition_limit) >= -1, "a limit counts rows, or is none"

    @property
    def is_empty(self) -> bool:
        return not self.slices or (not self.keys if self.kind == POINT else self.left >= self.right)


def compile_select(
    statement: tree.Select, shape: TableShape, scope: Scope, *, is_virtual: bool = False
) -> SelectPrepared:
    """InvalidRequest when the table cannot answer the statement."""
    if statement.using.ttl is not None or statement.using.timestamp is not None:
        raise InvalidRequest("Only USING TIMEOUT is allowed in SELECT statements")
    allow = statement.allow_filtering or is_virtual
    restrictions = analyse(shape, statement.where, scope, Rule("SELECT", allow))
    also = [found.column.name for found in restrictions.filters]
    grouping = check_grouping(statement, shape, restrictions) if statement.group_by else ()
    selection = compile_selection(shape, statement.selectors, also, scope, grouping)
    if statement.distinct:
        _check_distinct(statement, shape, restrictions, selection)
    if statement.json:
        selection = as_json(selection)
    if statement.per_partition_limit is not None and selection.has_aggregates and not statement.group_by:
        raise InvalidRequest("PER PARTITION LIMIT is not allowed with aggregate queries.")
    reverse = _reversed(statement, shape, restrictions)
    limit = _limit_term(statement.limit, "[limit]", scope)
    per_partition_limit = _limit_term(statement.per_partition_limit, "[per_partition_limit]", scope)
    several = any(choice.is_in for choice in restrictions.partition)
    outline = None
    if not (reverse or is_virtual):
        outline = outline_of(statement, shape, restrictions, selection, grouping)
    sorts = max((shape.column(name).position + 1 for name, _ in statement.order_by), default=0)
    return SelectPrepared(
        shape,
        restrictions,
        selection,
        _reads_static(statement, shape, selection, restrictions),
        statement.distinct,
        reverse,
        sorts if several else 0,
        limit,
        per_partition_limit,
        unmarking(shape.table),
        bool(statement.group_by),
        outline,
    )


def _limit_term(term: tree.Term | None, receiver: str, scope: Scope) -> TermPlan | None:
    return None if term is None else compile_term(term, parse_type("int"), receiver, scope)


def _check_distinct(
    statement: tree.Select, shape: TableShape, restrictions: Restrictions, selection: Selection
) -> None:
    told = (ColumnKind.PARTITION_KEY, ColumnKind.STATIC)
    chosen = restrictions.filters + (restrictions.index.conditions if restrictions.index is not None else ())
    if restrictions.has_clustering or any(one.column.kind not in told for one in chosen):
        raise InvalidRequest(
            "SELECT DISTINCT with WHERE clause only supports restriction by partition key "
            "and/or static columns."
        )
    if selection.is_wildcard and shape.table.clustering:
        raise InvalidRequest(
            "SELECT DISTINCT queries must only request partition key columns and/or static columns"
        )
    for column in selection.named:
        if column.kind not in told:
            raise InvalidRequest(
                "SELECT DISTINCT queries must only request partition key columns and/or static columns "
                f"(not {column.name})"
            )
    if not restrictions.partition:
        for column in shape.table.partition_key:
            if column not in selection.named:
                raise InvalidRequest(
                    "SELECT DISTINCT queries must request all the partition key columns "
                    f"(missing {column.name})"
                )
    if statement.per_partition_limit is not None:
        raise InvalidRequest("PER PARTITION LIMIT is not allowed with SELECT DISTINCT queries")


def _reversed(statement: tree.Select, shape: TableShape, restrictions: Restrictions) -> bool:
    """Whether ORDER BY asks for exactly the reverse of the clustering order."""
    if not statement.order_by:
        return False
    if restrictions.uses_indexes:
        raise InvalidRequest("ORDER BY with 2ndary indexes is not supported.")
    if not restrictions.partition:
        raise InvalidRequest(
            "ORDER BY is only supported when the partition key is restricted by an EQ or an IN."
        )
    fixed = {choice.names[0] for choice in restrictions.clustering if not choice.is_in}
    expected = shape.table.clustering
    turns: list[bool] = []
    at = 0
    # Of a column that is named twice the last word counts, in the place of the first.
    for name, descending in dict(statement.order_by).items():
        column = shape.column(name)
        if column.kind is not ColumnKind.CLUSTERING:
            raise InvalidRequest(
                "Order by is currently only supported on the clustered columns of the PRIMARY KEY, "
                f"got {name}"
            )
        while at < len(expected) and expected[at].name != name and expected[at].name in fixed:
            at += 1
        if at >= len(expected) or expected[at].name != name:
            raise InvalidRequest(
                "Order by currently only supports the ordering of columns following their declared order "
                "in the PRIMARY KEY"
            )
        turns.append(descending != column.descending)
        at += 1
    if len(set(turns)) > 1:
        raise InvalidRequest("Unsupported order by relation")
    return turns[0]


def _reads_static(
    statement: tree.Select, shape: TableShape, selection: Selection, restrictions: Restrictions
) -> bool:
    """Static content is read when it is asked for, and when whole partitions are: one without rows is then
    answered by a row of nulls."""
    if not shape.table.static:
        return False
    if statement.distinct or selection.is_wildcard or not restrictions.has_clustering:
        return True
    static_ids = {column.id for column in shape.table.static}
    kinds = {column.kind for column in selection.columns}
    return ColumnKind.STATIC in kinds or bool(static_ids & {cell.column for cell in selection.cells})


def plan_select(
    prepared: Prepared,
    values: Values,
    context: Context,
    page: PagePosition | None = None,
    page_size: int = -1,
) -> SelectPlan:
    """Bind a prepared SELECT. `page_size` <= 0 means no paging. InvalidRequest for unfit values."""
    prepared.check_values(values)
    select = prepared.plan
    assert isinstance(select, SelectPrepared)
    restrictions = select.restrictions
    one_row = select.folds and not select.grouped
    size = min(page_size, PAGE_ROWS_MAX) if page_size > 0 and not one_row else -1
    if select.sorts and size > 0:
        raise InvalidRequest(
            "Cannot page queries with both ORDER BY and a IN restriction on the partition key; you must "
            "either remove the ORDER BY or the IN and sort client side, or disable paging for this query"
        )
    keys: tuple[bytes, ...] = ()
    left, right = TOKEN_MIN, TOKEN_MAX
    if select.is_point:
        keys = tuple(partition_keys(restrictions, values, context))
        if restrictions.tokens:
            within = token_range(restrictions, values, context)
            keys = tuple(
                key for key in keys if within and within[0] < token_in(select.shape.table, key) <= within[1]
            )
    else:
        left, right = token_range(restrictions, values, context) or (TOKEN_MIN, TOKEN_MIN)
    slots = {column.name: slot for slot, column in enumerate(select.selection.columns)}
    assert len(slots) == len(select.selection.columns), "a column that is needed has one slot"
    limit = _limit(select.limit, "LIMIT", values, context)
    if page is not None:
        limit = page.remaining
    return SelectPlan(
        select,
        POINT if select.is_point else RANGE,
        keys,
        left,
        right,
        ALL_ROWS if select.distinct else slices(select.shape, restrictions, values, context),
        bound_filters(restrictions.filters, slots, values, context) if restrictions.filters else (),
        Moment(values, context),
        -1 if one_row else limit,
        _limit(select.per_partition_limit, "PER PARTITION LIMIT", values, context),
        size,
        page,
        index_read(restrictions.index, values, context) if restrictions.index is not None else None,
        None if select.outline is None else bound_outline(select.outline, values, context),
    )


def _limit(term: TermPlan | None, what: str, values: Values, context: Context) -> int:
    if term is None:
        return -1
    data = term.get(values, context)
    if data is UNSET:
        return -1
    if not data:
        raise InvalidRequest(f"Invalid null value of {what.lower()}")
    found = int.from_bytes(data, "big", signed=True)
    if found <= 0:
        raise InvalidRequest(f"{what} must be strictly positive")
    return found
