"""Bound modifications to mutations.

Invariant: the result depends on (plan, values, context) only; cells are sorted by (column, path), rows by
clustering, and a statement without effect gives no mutation. All mutations of one request carry the
context's mutation id, each for another partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.cql.bind.operations import RowWriter, merged_mutations
from lockstep.cql.compile.context import Context, ListIds, Lists
from lockstep.cql.compile.index_uses import check_indexed
from lockstep.cql.compile.modification import BatchPlan, BoundSteps, KeyStep, ModificationPlan
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.compile.ranges import clusterings, partition_keys, slices
from lockstep.cql.compile.terms import TermPlan, Values
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.clustering import check_clustering, encode_prefix, routing_key
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import TTL_S_MAX
from lockstep.values.rows import Cell, Deletion, Liveness, Mutation, RangeDeletion, Row
from lockstep.values.tokens import token_of

Modified = tuple[Mutation, ...]


def plan_modification(
    prepared: Prepared, values: Values, context: Context, lists: Lists | None = None
) -> Modified:
    """Mutations of one INSERT, UPDATE, DELETE or BATCH, one a partition; () when nothing is written.

    `values` are serialised bytes, None or UNSET, one for each bind variable. InvalidRequest when they
    do not fit. `lists`: what `list_reads` asked for.
    """
    if len(values) != len(prepared.bind_columns):
        prepared.check_values(list(values))
    plan = prepared.plan
    if isinstance(plan, ModificationPlan):
        if plan.steps is not None:
            return _from_steps(plan, plan.steps, values, context)
        return _general(plan, values, context, ListIds(context, lists))
    assert isinstance(plan, BatchPlan), f"{prepared.kind} is no modification"
    moment = _at_batch_time(plan, values, context)
    ids = ListIds(context, lists)
    parts = [_planned(part, values, moment, ids) for part in plan.parts]
    return merged_mutations([mutation for found in parts for mutation in found], adds=plan.counts)


def plan_batch(
    entries: Sequence[tuple[Prepared, Values]], context: Context, lists: Lists | None = None
) -> Modified:
    """Mutations of a protocol BATCH of prepared statements, merged to one a partition."""
    ids = ListIds(context, lists)
    found: list[Mutation] = []
    adds = False
    for prepared, values in entries:
        if not isinstance(prepared.plan, ModificationPlan):
            raise InvalidRequest(
                "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed."
            )
        prepared.check_values(list(values))
        found.extend(_planned(prepared.plan, values, context, ids))
        adds = adds or prepared.plan.counts
    return merged_mutations(found, adds=adds)


def _at_batch_time(plan: BatchPlan, values: Values, context: Context) -> Context:
    if plan.timestamp is None:
        return context
    return msgspec.structs.replace(context, timestamp_us=_timestamp(plan.timestamp, values, context))


def _planned(plan: ModificationPlan, values: Values, context: Context, ids: ListIds) -> Modified:
    if plan.steps is not None:
        return _from_steps(plan, plan.steps, values, context)
    return _general(plan, values, context, ids)


# The hot path


def key_of(steps: BoundSteps, values: Values) -> bytes:
    """The partition key. InvalidRequest when values do not fit."""
    return routing_key(_key_values(steps.key, values))


def _from_steps(plan: ModificationPlan, steps: BoundSteps, values: Values, context: Context) -> Modified:
    timestamp_us, now_s = context.timestamp_us, context.now_s
    key = key_of(steps, values)
    shape = plan.shape
    clustering = b""
    if steps.clustering:
        given = _key_values(steps.clustering, values)
        clustering = encode_prefix(shape.clustering_types, shape.descending, given)
        check_clustering(clustering, given)
    ttl_s = plan.default_ttl_s
    expires_at_s = now_s + ttl_s if ttl_s else 0
    cells = []
    for column, index, validate in steps.cells:
        value = values[index]
        if value is None:
            cells.append(Cell(column, None, timestamp_us, 0, context.deleted_at_s))
        elif value is not UNSET:
            validate(value)
            cells.append(Cell(column, value, timestamp_us, ttl_s, expires_at_s))
    if plan.is_insert:
        liveness = Liveness(timestamp_us, ttl_s, expires_at_s)
    elif cells:
        liveness = None
    else:
        return ()
    if shape.table.indexes:
        check_indexed(shape.table, cells)
    row = Row(clustering, liveness, None, tuple(cells))
    return (
        Mutation(
            shape.table.id,
            token_of(key),
            key,
            context.new_mutation_id,
            timestamp_us,
            None,
            (),
            None,
            (row,),
        ),
    )


def _key_values(steps: tuple[KeyStep, ...], values: Values) -> list[bytes]:
    found = []
    for index, validate, name in steps:
        value = values[index]
        if value is None:
            raise InvalidRequest(f"Invalid null value in condition for column {name}")
        if value is UNSET:
            raise InvalidRequest(f"Invalid unset value for column {name}")
        validate(value)
        found.append(value)
    return found


# The general path


def _general(plan: ModificationPlan, values: Values, context: Context, ids: ListIds) -> Modified:
    timestamp_us = context.timestamp_us
    if plan.timestamp is not None:
        timestamp_us = _timestamp(plan.timestamp, values, context)
    if plan.json is not None:
        values = plan.json.values(values, context)
    keys = partition_keys(plan.restrictions, values, context)
    if plan.deletes_rows:
        deletion = Deletion(timestamp_us, context.deleted_at_s)
        return tuple(_row_deletions(plan, key, deletion, values, context) for key in keys)
    ttl_s = _ttl(plan, values, context)
    found = []
    for key in keys:
        static = None
        if plan.static_operations:
            static = _written_row(plan, key, b"", values, context, timestamp_us, ttl_s, ids, is_static=True)
        rows: list[Row] = []
        if plan.writes_rows:
            for clustering in clusterings(plan.shape, plan.restrictions, values, context):
                row = _written_row(
                    plan, key, clustering, values, context, timestamp_us, ttl_s, ids, is_static=False
                )
                if row is not None:
                    rows.append(row)
        if static is not None or rows:
            found.append(_mutation(plan, key, context, timestamp_us, static=static, rows=tuple(rows)))
    return tuple(found)


def _written_row(
    plan: ModificationPlan,
    key: bytes,
    clustering: bytes,
    values: Values,
    context: Context,
    timestamp_us: int,
    ttl_s: int,
    ids: ListIds,
    *,
    is_static: bool,
) -> Row | None:
    place = (plan.shape.table.id, key, clustering)
    writer = RowWriter(values, context, timestamp_us, ttl_s, ids, place)
    for operation in plan.static_operations if is_static else plan.operations:
        operation.write(writer)
    liveness = None
    if plan.is_insert and not is_static:
        liveness = Liveness(timestamp_us, ttl_s, writer.expires_at_s)
    if liveness is None and not writer.cells and not writer.deletions:
        return None
    cells = writer.sorted_cells()
    if plan.shape.table.indexes:
        check_indexed(plan.shape.table, cells)
    return Row(clustering, liveness, None, cells, writer.sorted_deletions())


def _row_deletions(
    plan: ModificationPlan, key: bytes, deletion: Deletion, values: Values, context: Context
) -> Mutation:
    shape, restrictions = plan.shape, plan.restrictions
    timestamp_us = deletion.timestamp_us
    if not restrictions.has_clustering:
        return _mutation(plan, key, context, timestamp_us, deletion=deletion)
    if restrictions.clustering_width == len(shape.clustering_types):
        rows = tuple(
            Row(clustering, None, deletion)
            for clustering in clusterings(shape, restrictions, values, context)
        )
        return _mutation(plan, key, context, timestamp_us, rows=rows)
    ranges = tuple(
        RangeDeletion(part.start, part.end, deletion) for part in slices(shape, restrictions, values, context)
    )
    return _mutation(plan, key, context, timestamp_us, range_deletions=ranges)


def _mutation(
    plan: ModificationPlan,
    key: bytes,
    context: Context,
    timestamp_us: int,
    *,
    deletion: Deletion | None = None,
    range_deletions: tuple[RangeDeletion, ...] = (),
    static: Row | None = None,
    rows: tuple[Row, ...] = (),
) -> Mutation:
    return Mutation(
        plan.shape.table.id,
        token_of(key),
        key,
        context.new_mutation_id,
        timestamp_us,
        deletion,
        range_deletions,
        static,
        rows,
    )


def _timestamp(term: TermPlan, values: Values, context: Context) -> int:
    data = term.get(values, context)
    if data is UNSET:
        return context.timestamp_us
    if not data:
        raise InvalidRequest("Invalid null value of timestamp")
    timestamp_us = int.from_bytes(data, "big", signed=True)
    if timestamp_us == -(1 << 63):
        raise InvalidRequest(f"Invalid timestamp value {timestamp_us}")
    return timestamp_us


def _ttl(plan: ModificationPlan, values: Values, context: Context) -> int:
    if plan.ttl is None:
        return plan.default_ttl_s
    data = plan.ttl.get(values, context)
    if data is UNSET:
        return plan.default_ttl_s
    if not data:
        return 0
    ttl_s = int.from_bytes(data, "big", signed=True)
    if ttl_s < 0:
        raise InvalidRequest(f"A TTL must be greater or equal to 0, but was {ttl_s}")
    if ttl_s > TTL_S_MAX:
        raise InvalidRequest(f"ttl is too large. requested ({ttl_s}) maximum ({TTL_S_MAX})")
    return ttl_s
