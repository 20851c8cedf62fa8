"""Whom something is told, in the order in which they began to listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    def __init__(self) -> None:
        self._all: list[Callable[P, object]] = []

    def add(self, listener: Callable[P, object]) -> None:
        self._all.append(listener)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._all:
            listener(*args, **kwargs)
