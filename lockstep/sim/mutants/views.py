"""Planted bugs of materialized views."""

from __future__ import annotations

import contextlib
from typing import Any

from msgspec import structs

from lockstep.cql.bind.keys import routing_key
from lockstep.handoff import view_log, view_pairs, view_updates
from lockstep.handoff.view_log import Updates, ViewLog
from lockstep.handoff.view_updates import ViewOf
from lockstep.node.work.view_builds import Build, ViewBuilds, joined
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.rows import Partition
from lockstep.values.tokens import TOKEN_MAX


def _not_logged() -> contextlib.AbstractContextManager[None]:
    """View updates are sent, but kept nowhere."""
    original = Updates.__init__

    def init(self: Any, *rest: Any) -> None:
        original(self, *rest)
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


def _one_pair_for_all() -> contextlib.AbstractContextManager[None]:
    """All replicas of a base bring what they derive to the same replica of a view."""
    return replaced((view_pairs, "paired_with", lambda _base, view, _dc_of, _own: view[0]))


def _dead_for_pairs() -> contextlib.AbstractContextManager[None]:
    """That a value has lost is told to the paired replica alone."""
    return replaced((view_log, "for_all", lambda _mutation: False))


def _not_completed() -> contextlib.AbstractContextManager[None]:
    """A write whose coordinator died counts as one that every replica has."""
    original = ViewLog._expect

    def expect(self: Any, mutation_id: Any, record: Any) -> None:
        original(self, mutation_id, record)
        self.settled([mutation_id])

    return replaced((ViewLog, "_expect", expect))


def _not_built() -> contextlib.AbstractContextManager[None]:
    """A new view counts as built at once."""
    return replaced((ViewBuilds, "_next", lambda self, table_id: None))


def _page_ends_its_partition() -> contextlib.AbstractContextManager[None]:
    """A partition counts as gone through with the first page that ends in it."""
    original = ViewBuilds._keep

    async def keep(self: Any, table_id: int, build: Build) -> None:
        whole = tuple((left, right + (right + 1 < TOKEN_MAX)) for left, right in build.covered)
        await original(self, table_id, structs.replace(build, covered=joined(whole)))

    return replaced((ViewBuilds, "_keep", keep))


def _empty_keys_skipped() -> contextlib.AbstractContextManager[None]:
    """A view has no rows whose key no request can name."""
    return replaced((view_updates, "derived_key", routing_key))


VIEWS = (
    Planted("view_empty_key", "a view lacks rows whose key is empty", "views", _empty_keys_skipped),
    Planted("view_old_row_kept", "a row is at two keys of a view", "views", _old_row_kept),
    Planted("view_one_pair", "a replica of a view lacks rows", "views", _one_pair_for_all),
    Planted("view_page_ends_its_partition", "a view lacks rows", "builds", _page_ends_its_partition),
    Planted("view_not_built", "a view lacks rows that are older than it", "views", _not_built),
)
#: What a test brings about.
DIRECTED = (
    Planted("view_write_not_completed", "a replica of a base lacks a write for good", "", _not_completed),
    Planted("view_not_logged", "a view lacks a row after all nodes lost power", "", _not_logged),
    Planted(
        "view_dead_for_pairs",
        "a row stays where it was while a replica of its base is away",
        "",
        _dead_for_pairs,
    ),
    Planted("view_late_value_ignored", "a row is at two keys of a view", "", _late_value_ignored),
)
