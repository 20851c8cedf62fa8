"""Planted bugs of materialized views."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.node.view_builds import ViewBuilds
from lockstep.replication.view_log import Updates
from lockstep.replication.view_updates import ViewOf
from lockstep.sim.planted.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.rows import Partition


def _not_logged() -> contextlib.AbstractContextManager[None]:
    """View updates are sent, but kept nowhere."""
    original = Updates.__init__

    def init(self: Any, owner: Any, records: Any) -> None:
        original(self, owner, records)
        self.batch = []

    return replaced((Updates, "__init__", init))


def _old_row_kept() -> contextlib.AbstractContextManager[None]:
    """Nobody looks where a row was before."""
    original = ViewOf.derived

    def derived(self: Any, before: Any, mutation: Any, now_s: int) -> Any:
        return original(self, Partition(before.token, before.key), mutation, now_s)

    return replaced((ViewOf, "derived", derived))


def _late_value_ignored() -> contextlib.AbstractContextManager[None]:
    """A value that comes late, and has lost already, is taken for nothing to tell."""
    original = ViewOf._row

    def row(self: Any, keys: Any, clustering: Any, old: Any, told: Any, new: Any, *rest: Any) -> Any:
        return original(self, keys, clustering, old, [] if old == new else told, new, *rest)

    return replaced((ViewOf, "_row", row))


def _not_built() -> contextlib.AbstractContextManager[None]:
    """A new view counts as built at once."""
    return replaced((ViewBuilds, "_next", lambda self, table_id: None))


VIEWS = (
    Planted("view_old_row_kept", "a row is at two keys of a view", "views", _old_row_kept),
    Planted("view_not_built", "a view lacks rows that are older than it", "views", _not_built),
)
#: What a test brings about.
DIRECTED = (
    Planted("view_not_logged", "a view lacks a row after all nodes lost power", "", _not_logged),
    Planted("view_late_value_ignored", "a row is at two keys of a view", "", _late_value_ignored),
)
