"""Slow, obvious twins of what is computed for tablets, which tests compare it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.placement.tablets.packing import Piece
from lockstep.placement.tablets.shards import Replica
from lockstep.values.tokens import TOKEN_MIN

#: (last token, replicas) in the order of tokens.
Listed = list[tuple[int, tuple[Replica, ...]]]


def found_in_list(listed: Listed, token: int) -> tuple[int, tuple[Replica, ...]]:
    """The tablet of a token, by looking at one after the other."""
    return next(tablet for tablet in listed if token <= tablet[0])


def split_list(listed: Listed, rights: Sequence[int]) -> Listed:
    found: Listed = []
    left = TOKEN_MIN
    for right, replicas in listed:
        if right in rights:
            found.append(((left + right) // 2, replicas))
        found.append((right, replicas))
        left = right
    return found


def merged_list(listed: Listed, rights: Sequence[int]) -> Listed:
    return [tablet for tablet in listed if tablet[0] not in rights]


def unevenness(pieces: Sequence[Piece], weights: Sequence[float]) -> float:
    """Squares of shares of fullness, requests and tables, by their weights, from the pieces alone."""

    def squares(of: Callable[[Piece], int], chosen: Sequence[Piece]) -> float:
        total = sum(of(piece) for piece in chosen)
        found = 0.0
        for at, weight in enumerate(weights):
            share = weight / sum(weights)
            held = sum(of(piece) for piece in chosen if piece.bin == at)
            found += share * (held / total / share) ** 2 if total else 0.0
        return found

    everything = sum(piece.size for piece in pieces)
    found = squares(lambda piece: piece.size, pieces) + 0.01 * squares(lambda piece: piece.rate, pieces)
    for table in {piece.table for piece in pieces}:
        chosen = [piece for piece in pieces if piece.table == table]
        part = sum(piece.size for piece in chosen) / everything
        found += 0.005 * part * squares(lambda piece: piece.size, chosen)
    return found
