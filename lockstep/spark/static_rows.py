"""Rows of a partition that has static values and no rows: as reads show it, without clustering columns.

Invariant: what is told apart here is written as an INSERT of the partition key and the static columns alone;
a row that lacks a clustering column and is anything else stays where a missing key is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class Kinds(msgspec.Struct, frozen=True):
    """Names of the columns that are written, by what they are, but for the partition key."""

    clustering: tuple[str, ...]
    static: tuple[str, ...]
    regular: tuple[str, ...]

    @property
    def may_be_alone(self) -> bool:
        """Whether a row could have static values alone."""
        return bool(self.clustering and self.static)


def kinds_of(columns: Iterable[tuple[str, str]]) -> Kinds:
    """Of names with their kinds as the schema tables tell them."""
    told = list(columns)
    clustering, static, regular = (
        tuple(name for name, kind in told if kind == wanted) for wanted in ("clustering", "static", "regular")
    )
    return Kinds(clustering, static, regular)


def parted(kinds: Kinds, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows that have a whole key or ought to, and those of static values alone without the columns that
    these lack; None where there are none."""
    if not kinds.may_be_alone or not batch.column(kinds.clustering[0]).null_count:
        return batch, None
    alone = pc.is_null(batch.column(kinds.clustering[0]))
    for name in (*kinds.clustering[1:], *kinds.regular):
        alone = pc.and_(alone, pc.is_null(batch.column(name)))
    has_static = pc.is_valid(batch.column(kinds.static[0]))
    for name in kinds.static[1:]:
        has_static = pc.or_(has_static, pc.is_valid(batch.column(name)))
    alone = pc.and_(alone, has_static)
    if not pc.any(alone).as_py():
        return batch, None
    gone = (*kinds.clustering, *kinds.regular)
    kept = [name for name in batch.schema.names if name not in gone]
    return batch.filter(pc.invert(alone)), batch.filter(alone).select(kept)
