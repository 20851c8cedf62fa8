"""Planted bugs of secondary indexes."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.coordination import index_reads
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.index.indexes import Indexes


def _not_built() -> contextlib.AbstractContextManager[None]:
    """A new index counts as built at once."""
    original = Indexes._ask

    def ask(self: Any, job: Any) -> None:
        if job.index_id is None:
            original(self, job)

    return replaced((Indexes, "_ask", ask))


def _streamed_not_indexed() -> contextlib.AbstractContextManager[None]:
    """Rows that come in files get no entries."""
    original = Indexes._ask

    def ask(self: Any, job: Any) -> None:
        if job.index_id is not None:
            original(self, job)

    return replaced((Indexes, "_ask", ask))


def _answers_believed() -> contextlib.AbstractContextManager[None]:
    """What the first replica says to match is answered."""

    def agreed(results: Any) -> Any:
        return results[0].partitions, results[0].end if results[0].more else None

    return replaced((index_reads, "agreed", agreed))


INDEXES = (
    Planted("index_not_built", "an index lacks rows that are older than it", "indexes", _not_built),
    Planted("index_answers_believed", "one replica's word is answered", "indexes", _answers_believed),
    Planted("index_streamed_not_indexed", "an index lacks rows that moved", "indexes", _streamed_not_indexed),
)
