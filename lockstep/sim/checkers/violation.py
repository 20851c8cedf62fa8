"""What a checker raises."""

from __future__ import annotations


class Violation(AssertionError):
    """`invariant` is an id of the design; the message says who, when and what."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
