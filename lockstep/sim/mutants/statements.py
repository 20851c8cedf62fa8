"""Bugs planted in the product or in the model, which a run must find.

Invariant: a plant replaces named attributes for the time of a run; nothing else knows of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockstep.coordination import page as page_module
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile import if_clause as if_checks_module
from lockstep.cql.compile import ranges as ranges_module
from lockstep.cql.compile import select as select_module
from lockstep.cql.compile.conditional import ConditionalRequest
from lockstep.cql.functions import cell_facts as cell_facts_module
from lockstep.cql.functions.user_calls import UserCalls
from lockstep.cql.wire import messages as messages_module
from lockstep.schema.clustering import slice_for
from lockstep.sim.fuzz import facts as facts_module
from lockstep.sim.fuzz import queries as looks_module
from lockstep.sim.mutants.columns import VIEWS
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.index.indexes import Indexes
from lockstep.storage.rows import folding as folding_module
from lockstep.storage.rows import reconcile as reconcile_module
from lockstep.storage.rows import visible as visible_module
from lockstep.storage.rows.visible import live_view
from lockstep.values.rows import Cell, Slice

_SCENARIO: Final = "fuzz"
_Context = contextlib.AbstractContextManager[None]
_VIEWS: Final = {planted.name: planted.plant for planted in VIEWS}


def _smaller_value() -> _Context:
    rank = reconcile_module._rank

    def turned(cell: Cell) -> Any:
        alive, ends_s, value, ttl_s = rank(cell)
        return (alive, ends_s, bytes(255 - byte for byte in value) + b"\xff" * 8, ttl_s)

    return replaced((reconcile_module, "_rank", turned))


def _late_expiry() -> _Context:
    def late(partition: Any, now_s: int, *rest: Any) -> Any:
        return live_view(partition, now_s - 1, *rest)

    return replaced((page_module, "live_view", late))


def _static_on_demand() -> _Context:
    original = select_module._reads_static

    def asked(statement: Any, shape: Any, selection: Any, restrictions: Any) -> bool:
        named = {column.name for column in selection.columns}
        wanted = any(column.name in named for column in shape.table.static)
        return wanted and original(statement, shape, selection, restrictions)

    return replaced((select_module, "_reads_static", asked))


def _static_needs_rows() -> _Context:
    original = page_module.Page._close

    def close(self: Any, last: Any) -> None:
        original(self, last)
        if self._partitions and self._rows_of(last) == 0:
            self._partitions.pop()

    return replaced((page_module.Page, "_close", close))


def _open_bounds_closed() -> _Context:
    original = ranges_module._beyond

    def beyond(shape: Any, prefix: Sequence[bytes], bound: Any, *, above: bool) -> list[Slice]:
        return original(shape, prefix, (bound[0], True), above=above)

    return replaced((ranges_module, "_beyond", beyond))


def _falling_is_rising() -> _Context:
    """A slice of a column that lies in falling order is taken for one in rising order."""

    def turned_slice(types: Any, descending: Any, prefix: Any, low: Any, high: Any) -> Slice:
        place = len(prefix)
        turned = place < len(descending) and descending[place]
        low, high = (high, low) if turned else (low, high)
        return slice_for(types, descending, prefix, low, high)

    return replaced((ranges_module, "slice_for", turned_slice))


def _limit_of_rows() -> _Context:
    """LIMIT of groups counts rows."""
    consume = PageBuilder._consume

    def counted(self: Any, key: bytes, clustering: bytes, record: Any) -> None:
        consume(self, key, clustering, record)
        if self._groups is not None and self._plan.select.grouped and self._remaining > 1:
            self._remaining -= 1

    return replaced((PageBuilder, "_consume", counted))


def _sorts_whole() -> _Context:
    """ORDER BY of some columns sorts by all."""
    return replaced((PageBuilder, "_order", lambda self, entry: entry[0]))


def _times_of_all() -> _Context:
    """Write times of a slice or an element are those of all elements."""
    between = cell_facts_module._between

    def whole(of_key: Any, place: str, ends: Any) -> Any:
        return between(of_key, place, (None, None))

    return replaced((cell_facts_module, "_between", whole))


def _marker_stays() -> _Context:
    """Of two markers of one time the one without a TTL wins."""

    def rank(liveness: Any) -> Any:
        return (liveness.timestamp_us, liveness.ttl_s == 0, liveness.expires_at_s, liveness.ttl_s)

    return replaced((reconcile_module, "_liveness_rank", rank))


def _unset_is_null() -> _Context:
    read = messages_module._read_values

    def values(body: bytes, at: int, count: int) -> tuple[tuple[Any, ...], int]:
        found, end = read(body, at, count)
        return tuple(None if value is messages_module.UNSET else value for value in found), end

    return replaced((messages_module, "_read_values", values))


def _client_stamps_lost() -> _Context:
    read = messages_module._read_rare

    def rare(*given: Any) -> Any:
        serial, _, keyspace, now_s = read(*given)
        return serial, None, keyspace, now_s

    return replaced((messages_module, "_read_rare", rare))


def _client_seconds_lost() -> _Context:
    read = messages_module._read_rare

    def rare(*given: Any) -> Any:
        return (*read(*given)[:3], None)

    return replaced((messages_module, "_read_rare", rare))


def _elements_are_null() -> _Context:
    """Conditions find no entry of a map."""
    return replaced((if_checks_module, "_entry", lambda kind, current, key: None))


def _batch_asks_once() -> _Context:
    """Of a batch only the first condition of a row is looked at."""
    take = ConditionalRequest._take

    def first(self: Any, plan: Any, conditions: Any, values: Any) -> None:
        if not self._rows:
            take(self, plan, conditions, values)

    return replaced((ConditionalRequest, "_take", first))


def _refusal_is_bare() -> _Context:
    """Who is refused is not told why."""
    refuse = ConditionalRequest._refusal
    return replaced((ConditionalRequest, "_refusal", lambda self, records: refuse(self, ())))


def _dropped_cells_count() -> _Context:
    """Rows live on by the cells of columns that were dropped."""
    is_live = visible_module.row_is_live
    return replaced((visible_module, "row_is_live", lambda row, now_s, dropped=(): is_live(row, now_s)))


def _index_of_first_row() -> _Context:
    """A mutation of several rows is indexed by its first entry."""
    entries = Indexes.entries
    return replaced((Indexes, "entries", lambda self, *of: entries(self, *of)[:1]))


def _later_pages_anew() -> _Context:
    """The limit of a partition begins anew on each page."""
    original = PageBuilder.__init__

    def init(self: Any, plan: Any) -> None:
        original(self, plan)
        self._partition_rows = 0

    return replaced((PageBuilder, "__init__", init))


def _folds_once() -> _Context:
    """Of several rows the first alone is folded."""
    fold = UserCalls.fold

    def anew(self: Any, code: Any, state: Any, rows: Any) -> Any:
        return fold(self, code, state, rows[:1])

    return replaced((UserCalls, "fold", anew))


def _model_deletes_less() -> _Context:
    """In the model: a deletion does not cover what has its own timestamp."""
    see = facts_module.Content.see

    def spared(self: Any, row: Any, deletions: list[int], columns: Any, now_s: int) -> Any:
        return see(self, row, [stamp - 1 for stamp in deletions], columns, now_s)

    return replaced((facts_module.Content, "see", spared))


def _model_expires_late() -> _Context:
    """In the model: what ends in this second is still there."""
    return replaced((facts_module, "_over", lambda fact, now_s: fact.ttl_s > 0 and fact.ends_s < now_s))


def _model_bounds_closed() -> _Context:
    """In the model: `>` is `>=`."""
    compared = facts_module._compared
    return replaced(
        (
            facts_module,
            "_compared",
            lambda op, left, right: compared(op.replace(">", ">=")[:2], left, right),
        )
    )


def _model_limits_rows() -> _Context:
    """In the model: PER PARTITION LIMIT is of all partitions together."""

    def limited(rows: list[Any], limit: int) -> list[Any]:
        return rows[: limit or None]

    return replaced((looks_module, "_per_partition", limited))


def _dead_cells_shown() -> _Context:
    """Cells at or below the time of their column's drop are there when it is added again."""
    return replaced((folding_module, "without_dead", lambda row, dead: row))


def _planted(name: str, harm: str, plant: Callable[[], _Context]) -> Planted:
    return Planted(name=name, harm=harm, scenario=_SCENARIO, plant=plant)


PLANTS: Final[dict[str, Planted]] = {
    planted.name: planted
    for planted in (
        _planted("smaller_value", "of two values of one time the smaller wins", _smaller_value),
        _planted("late_expiry", "what expires is seen a second too long", _late_expiry),
        _planted("static_on_demand", "a partition of static content alone is left out", _static_on_demand),
        _planted("static_needs_rows", "conditions miss the static row of an absent row", _static_needs_rows),
        _planted("open_bounds_closed", "slices and deletions hold their open bounds", _open_bounds_closed),
        _planted("falling_is_rising", "slices of falling columns are turned round", _falling_is_rising),
        _planted("limit_of_rows", "LIMIT of groups counts their rows", _limit_of_rows),
        _planted("sorts_whole", "ORDER BY of some columns sorts by all", _sorts_whole),
        _planted("times_of_all", "times of slices and elements are those of all", _times_of_all),
        _planted("marker_stays", "a row outlives the marker that expires", _marker_stays),
        _planted("unset_is_null", "what is unset is deleted", _unset_is_null),
        _planted("client_stamps_lost", "writes ignore timestamps beside them", _client_stamps_lost),
        _planted("client_seconds_lost", "statements ignore seconds beside them", _client_seconds_lost),
        _planted("elements_are_null", "conditions find no entry of a map", _elements_are_null),
        _planted("batch_asks_once", "a batch looks at its first condition", _batch_asks_once),
        _planted("refusal_is_bare", "a refused condition shows no row", _refusal_is_bare),
        _planted("dropped_cells_count", "a row lives on by a dropped column", _dropped_cells_count),
        _planted("dead_cells_shown", "a column that comes back shows what died", _dead_cells_shown),
        _planted("index_of_first_row", "an index lacks values of a mutation", _index_of_first_row),
        _planted("later_pages_anew", "a limit of partitions begins anew on each page", _later_pages_anew),
        _planted("folds_once", "a user's aggregate takes one row", _folds_once),
        _planted("view_old_row_kept", "a row is at two keys of a view", _VIEWS["view_old_row_kept"]),
        _planted("model_deletes_less", "the model spares what a deletion covers", _model_deletes_less),
        _planted("model_expires_late", "the model lets things live too long", _model_expires_late),
        _planted("model_bounds_closed", "the model closes open bounds", _model_bounds_closed),
        _planted("model_limits_rows", "the model limits all partitions together", _model_limits_rows),
    )
}
