"""Every quorum of a request as a bit mask, and whether any two of them can miss each other.

Invariant: `missing_pairs` looks at each pair of the given sets; nothing is derived from the arithmetic that
the product uses. `missing_classes` is the same question over counts per class of interchangeable nodes, for
unions too large to list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from lockstep.placement.quorums import Requirement

#: Unions up to this many nodes are listed set by set: 4096 sets, at most 16 million pairs.
LISTED_NODES_MAX = 12
#: Pairs compared in one step: the block of results stays in the cache of a core.
_BLOCK_PAIRS = 1 << 17

Masks = np.ndarray[Any, np.dtype[np.uint16]]
Counts = np.ndarray[Any, np.dtype[np.int8]]


class Side(msgspec.Struct, frozen=True):
    """One side of a pair: which nodes (by position in the union) may answer, and what must be met.

    `homes` gives the data centre of every node of the union.
    """

    members: tuple[int, ...]
    homes: tuple[str, ...]
    needs: tuple[Requirement, ...]


def quorum_masks(side: Side) -> Masks:
    """Each set of members that meets every need, supersets too; shape (sets,), bit i is node i."""
    size = len(side.homes)
    assert size <= LISTED_NODES_MAX, "too many nodes to list every set"
    allowed = sum(1 << node for node in side.members)
    masks = np.arange(1 << size, dtype=np.uint16)
    masks = masks[(masks & np.uint16(~allowed & 0xFFFF)) == 0]
    for need in side.needs:
        counted = sum(1 << n for n in side.members if need.dc in ("", side.homes[n]))
        masks = masks[_bits(masks & np.uint16(counted)) >= need.count]
    return np.asarray(masks, dtype=np.uint16)


def _bits(masks: Masks) -> Counts:
    counts = np.zeros(masks.shape, dtype=np.int8)
    for bit in range(LISTED_NODES_MAX):
        counts += ((masks >> np.uint16(bit)) & np.uint16(1)).astype(np.int8)
    return counts


def missing_pairs(readers: Masks, writers: Masks) -> int:
    """How many pairs (reader set, writer set) have no node in common; every pair is compared."""
    if not len(readers) or not len(writers):
        return 0
    rows = max(1, _BLOCK_PAIRS // len(writers))
    met = 0
    for at in range(0, len(readers), rows):
        block = readers[at : at + rows, np.newaxis] & writers[np.newaxis, :]
        met += int(np.count_nonzero(block))
    return len(readers) * len(writers) - met


def missing_example(readers: Masks, writers: Masks) -> tuple[int, int] | None:
    """The first pair of masks without a common node, smallest sets first."""
    by_size = np.argsort(_bits(writers), kind="stable")
    for reader in readers[np.argsort(_bits(readers), kind="stable")]:
        apart = np.flatnonzero((writers[by_size] & reader) == 0)
        if len(apart):
            return int(reader), int(writers[by_size][apart[0]])
    return None


class Classes(msgspec.Struct, frozen=True):
    """Nodes of the union grouped by (asked by the read, asked by the write, data centre)."""

    sizes: tuple[int, ...]
    read: tuple[bool, ...]
    written: tuple[bool, ...]
    homes: tuple[str, ...]


def classes_of(reading: Side, writing: Side) -> Classes:
    found: dict[tuple[bool, bool, str], int] = {}
    for node, home in enumerate(reading.homes):
        key = (node in reading.members, node in writing.members, home)
        found[key] = found.get(key, 0) + 1
    keys = sorted(found)
    return Classes(
        tuple(found[key] for key in keys),
        tuple(key[0] for key in keys),
        tuple(key[1] for key in keys),
        tuple(key[2] for key in keys),
    )


def quorum_counts(classes: Classes, asked: Sequence[bool], needs: Sequence[Requirement]) -> Counts:
    """Each choice of how many nodes of every class answer that meets the needs; shape (choices, classes)."""
    limits = [size if use else 0 for size, use in zip(classes.sizes, asked, strict=True)]
    grids = np.meshgrid(*(np.arange(limit + 1, dtype=np.int8) for limit in limits), indexing="ij")
    counts: Counts = np.stack([grid.ravel() for grid in grids], axis=1)
    for need in needs:
        columns = [at for at, home in enumerate(classes.homes) if need.dc in ("", home)]
        counts = counts[counts[:, columns].sum(axis=1) >= need.count]
    return counts


def missing_classes(classes: Classes, readers: Counts, writers: Counts) -> int:
    """How many pairs of choices leave room for disjoint sets: in every class both fit side by side."""
    if not len(readers) or not len(writers):
        return 0
    sizes = classes.sizes
    rows = max(1, _BLOCK_PAIRS // len(writers))
    missing = 0
    for at in range(0, len(readers), rows):
        room = np.ones((len(readers[at : at + rows]), len(writers)), dtype=bool)
        for column in range(len(sizes)):
            together = readers[at : at + rows, column, np.newaxis] + writers[np.newaxis, :, column]
            room &= together <= sizes[column]
        missing += int(room.sum())
    return missing
