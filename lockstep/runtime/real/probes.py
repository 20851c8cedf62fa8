"""Probes of production: nothing happens at a named place.

Invariant: free of effects, and as cheap as a call can be.
"""

from __future__ import annotations

from typing import Any


class NoProbes:
    """Probes port."""

    def reach(self, label: str) -> None:
        return

    async def linger(self, label: str) -> None:
        return

    def observe(self, kind: str, **facts: Any) -> None:
        return
