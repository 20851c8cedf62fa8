"""`metadata-proof/1` and `metadata-digest/1`: by what a node proves its log, and its value at an epoch."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """Where a chain of hashes is broken."""

    epoch: int
    reason: str


class Proof(msgspec.Struct, frozen=True):
    """`marks` are epochs and the hashes that were worked out anew for them."""

    schema: str = "metadata-proof/1"
    node: int = 0
    epoch: int = 0
    hash: str = ""
    oldest: int = 0
    oldest_value: int = 0
    problem: Problem | None = None
    broken: str | None = None
    marks: tuple[tuple[int, str], ...] = ()


class Digest(msgspec.Struct, frozen=True):
    schema: str = "metadata-digest/1"
    node: int = 0
    epoch: int = 0
    hash: str = ""
    digest: str = ""
    parts: dict[str, str] = {}
