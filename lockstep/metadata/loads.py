"""Bulk loads: which are under way, and how those ended that ended lately.

A load is a session: files are staged for it, outside of the stores, and one entry makes all of them part of
the table. Invariants. A job's name means one load for ever, as long as it is remembered: it runs, or was
committed with the files that have its digest, or was given up. What ended never runs again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from lockstep.metadata.part import Item, Part, collected, digest_of, digest_of_each
from lockstep.values.node_limits import LOADS_ENDED_KEPT_MAX, LOADS_RUNNING_MAX


class LoadState(enum.StrEnum):
    RUNNING = "running"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"


class Load(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`table_id` and `table_epoch` are those of the table when it began: of another the load is not.

    All its rows have the write time `timestamp_us`, unless the job gave them others. `stored_id` is the id
    under which its rows are stored: the table's, or with `overwrite` the one that the table has once the load
    replaces what was there. `began_ms` is the wall time from which times to live count. `lease_until_ms` is
    wall time as well: nobody ends the load before, unless asked to. `digest` is that of the list of its
    files, `ended_epoch` that of the entry which ended it.
    """

    job: str
    keyspace: str
    table: str
    table_id: int
    table_epoch: int
    stored_id: int
    timestamp_us: int
    began_epoch: int
    lease_until_ms: int
    overwrite: bool = False
    state: LoadState = LoadState.RUNNING
    digest: bytes = b""
    rows: int = 0
    size_bytes: int = 0
    ended_epoch: int = 0
    reason: str = ""
    began_ms: int = 0


class Loads(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`running` in the order in which they began, `ended` in the order in which they ended."""

    running: tuple[Load, ...] = ()
    ended: tuple[Load, ...] = ()

    @cached_property
    def by_job(self) -> dict[str, Load]:
        return {load.job: load for load in (*self.ended, *self.running)}

    @cached_property
    def committed_epochs(self) -> dict[int, int]:
        """By table, the epoch of the newest entry that committed one."""
        done = (load for load in self.ended if load.state is LoadState.COMMITTED)
        return {load.stored_id: load.ended_epoch for load in done}

    def begun(self, load: Load) -> Loads:
        assert load.job not in self.by_job, "a name is given once"
        assert len(self.running) < LOADS_RUNNING_MAX, "who begins one has looked"
        return Loads((*self.running, load), self.ended)

    def renewed(self, load: Load) -> Loads:
        """With another lease of one that runs."""
        assert load.state is LoadState.RUNNING, "what ended is not renewed"
        return Loads(tuple(load if one.job == load.job else one for one in self.running), self.ended)

    def without(self, ended: Load) -> Loads:
        """One that ran has become `ended`."""
        assert ended.state is not LoadState.RUNNING and ended.ended_epoch, "an end is one"
        running = tuple(one for one in self.running if one.job != ended.job)
        assert len(running) + 1 == len(self.running), "a load ends once"
        return Loads(running, (*self.ended, ended)[-LOADS_ENDED_KEPT_MAX:])

    def validate(self) -> None:
        jobs = [load.job for load in (*self.running, *self.ended)]
        assert len(jobs) == len(set(jobs)), "a name is given once"
        assert all(load.state is LoadState.RUNNING for load in self.running), "who runs has not ended"
        assert all(load.state is not LoadState.RUNNING for load in self.ended), "who ended does not run"
        epochs = [load.ended_epoch for load in self.ended]
        assert epochs == sorted(epochs), "loads end one after the other"


NO_LOADS: Final = Loads()


def _items(value: Loads) -> Iterator[Item]:
    for load in (*value.ended, *value.running):
        yield 0, load


def _of_items(items: Sequence[Item]) -> Loads:
    loads: list[Any] = [value for _, value in items]
    return Loads(
        tuple(load for load in loads if load.state is LoadState.RUNNING),
        tuple(load for load in loads if load.state is not LoadState.RUNNING),
    )


LOADS: Final[Part[Loads]] = Part(
    name="loads",
    number=25,
    empty=NO_LOADS,
    items=_items,
    kinds=(Load,),
    builder=collected(_of_items),
    digest=lambda value: digest_of((digest_of_each(value.running), digest_of_each(value.ended))),
    validate=lambda now, before: now[LOADS].validate(),
)
