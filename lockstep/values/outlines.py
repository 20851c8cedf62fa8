"""What a read wants to be told of its rows in place of them: rows as the protocol writes them, or what
aggregates make of them.

Invariant: what is told depends on the content that was read and on nothing else: replicas with equal content
tell the same, byte for byte, however their fragments were written and merged; and two that tell the same have
equal content, but for chance (one in 2^128), for `digest` covers all of it, tombstones too.
"""

from __future__ import annotations

import msgspec

PARTITION_KEY, CLUSTERING, STATIC, REGULAR = 0, 1, 2, 3


class OutlineColumn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`kind`: one of the four above; `position`: within the key; `type`: in CQL, without types of users."""

    kind: int
    position: int
    id: int
    type: str


class OutlineFold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A native aggregate of a column; of rows where there is none."""

    name: str
    column: OutlineColumn | None = None


class OutlineFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows count whose value of the column compares so with `value`; no row without one does."""

    column: OutlineColumn
    operator: str
    value: bytes = b""


class Outline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Either `packs`, the columns of rows, or `folds`. `clustering`: (type, whether it descends); `widths`:
    (column, bytes) of those whose values have one length. Rows count that pass all `filters`."""

    partition_key: tuple[str, ...]
    clustering: tuple[tuple[str, bool], ...]
    widths: tuple[tuple[int, int], ...] = ()
    packs: tuple[OutlineColumn, ...] = ()
    folds: tuple[OutlineFold, ...] = ()
    filters: tuple[OutlineFilter, ...] = ()


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`rows`: how many show. `folds`: of each (values that count, their exact sum or the extreme one).
    `dead`: tombstones that were scanned."""

    rows: int = 0
    digest: bytes = b""
    packed: bytes = b""
    folds: tuple[tuple[int, bytes | None], ...] = ()
    dead: int = 0
