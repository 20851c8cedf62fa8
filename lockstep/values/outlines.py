"""What a read wants to be told of its rows in place of them: rows as the protocol writes them, what
aggregates make of them, in all or by groups, or those rows alone that pass filters.

Invariant: what is told depends on the content that was read and on nothing else: replicas with equal content
tell the same, byte for byte, however their fragments were written and merged; and two that tell the same have
equal content, but for chance (one in 2^128), for `digest` covers all of it, tombstones too.
"""

from __future__ import annotations

import msgspec

#: Of outlines, as this node tells by them: 1 has lists in filters, groups, and rows that are given.
EDITION = 1
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
    """Rows count whose value of the column compares so with `value`; no row without one does. `listed`: it is
    to be one of these, which `=` has in place of one value."""

    column: OutlineColumn
    operator: str
    value: bytes = b""
    listed: tuple[bytes, ...] | None = None


class Grouping(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows are of one group that have the partition and the first `depth` clustering columns in common; all
    rows are where `depth` is None. `firsts`: columns of which the first row of a group is told. An answer
    begins no more than `most` groups."""

    depth: int | None
    firsts: tuple[OutlineColumn, ...]
    most: int = 1


class Outline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`packs`, the columns of rows, or `folds`, which may be by groups, or `gives`: the rows themselves.
    `clustering`: (type, whether it descends); `widths`: (column, bytes) of those whose values have one
    length. Rows count that pass all `filters`."""

    partition_key: tuple[str, ...]
    clustering: tuple[tuple[str, bool], ...]
    widths: tuple[tuple[int, int], ...] = ()
    packs: tuple[OutlineColumn, ...] = ()
    folds: tuple[OutlineFold, ...] = ()
    filters: tuple[OutlineFilter, ...] = ()
    grouping: Grouping | None = None
    gives: bool = False

    @property
    def edition(self) -> int:
        """What a replica has to know to tell this. One that knows less would tell of something else."""
        lists = any(one.listed is not None for one in self.filters)
        return EDITION if lists or self.gives or self.grouping is not None else 0


#: Of an aggregate (values that count, their exact sum or the extreme one).
Fold = tuple[int, bytes | None]
Folds = tuple[Fold, ...]


class ToldGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was read of a group, or the part of it that an answer has. `first`: the row that began it, packed.
    The others: where its last row that shows is, without `clustering` for a partition that has no rows."""

    first: bytes
    folds: Folds
    token: int
    key: bytes
    clustering: bytes | None = None


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`rows`: how many show. `dead`: tombstones that were scanned. `groups` in the order of their rows; where
    they are `closed` the last one has no more rows, and the answer ends with it. `edition`: of who tells."""

    rows: int = 0
    digest: bytes = b""
    packed: bytes = b""
    folds: Folds = ()
    dead: int = 0
    groups: tuple[ToldGroup, ...] = ()
    closed: bool = False
    edition: int = 0
