"""Bugs planted in repairs of lost groups: two histories, a wipe after a voice, or nobody who leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from lockstep.node.membership.identity import IdentityFile
from lockstep.node.recovery import applying, judging, moving
from lockstep.node.recovery.own_state import OwnState
from lockstep.node.recovery.recovery_file import RecoveryFile
from lockstep.recovery.steps import Applied, Record
from lockstep.sim.plant import Plant, Planted, replaced


async def _nothing(*_: object) -> None:
    return None


@contextlib.contextmanager
def _applied_again() -> Iterator[None]:
    plain = RecoveryFile.record

    async def record(self: RecoveryFile, record: Record) -> None:
        if not isinstance(record, Applied):
            await plain(self, record)

    with replaced((RecoveryFile, "record", record)):
        yield


def _swapped(*changes: tuple[Any, str, Any]) -> Plant:
    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with replaced(*changes):
            yield

    return planted


async def _unextended(runtime: Any, registry: Any, plan: Any) -> Any:
    """Bind to the new id, and leave the log as it is."""
    state = applying.MetadataState(runtime, registry, lambda _: None)
    state.load(quiet=True)
    value = state.current
    for entry in plan.entries:
        value = applying.apply_entry(value, entry, registry) if entry.epoch > value.epoch else value
    return value


@contextlib.contextmanager
def _speaks_on() -> Iterator[None]:
    """Votes and appends go on under an id that has ended."""
    plain = moving.Moving.__init__

    def init(self: Any, context: Any, log: Any, tail: Any, fall_silent: Any, begin_anew: Any) -> None:
        plain(self, context, log, tail, lambda: None, lambda why: None)

    with replaced((moving.Moving, "__init__", init)):
        yield


@contextlib.contextmanager
def _bound_first() -> Iterator[None]:
    """The new id is written before the groups are begun."""
    plain = applying.begin_groups

    async def begin(runtime: Any, anew: Any, value: Any, own: int) -> None:
        await IdentityFile(runtime).move(anew.cluster_id)
        runtime.probes.reach("recovery.moved")
        await plain(runtime, anew, value, own)

    with replaced((applying, "begin_groups", begin)):
        yield


@contextlib.contextmanager
def _tail_dropped() -> Iterator[None]:
    """What stands in journals and was not applied is not looked at."""
    with replaced((OwnState, "tail", lambda self, epoch: [])):
        yield


DISASTERS: Final = (
    Planted("reset_applied_again", "what was voted on is wiped", "disasters", _applied_again),
    Planted(
        "migrates_diverged",
        "a node with another history is let in",
        "disasters",
        _swapped((judging, "judge", lambda *_: None)),
    ),
    Planted(
        "reset_keeps_journals",
        "the old group's votes count under the new id",
        "disasters",
        _swapped((applying, "_begin_metadata_group", _nothing)),
    ),
    Planted(
        "reset_unextended",
        "the entry that names the new id is missing",
        "disasters",
        _swapped((applying, "_extend_metadata", _unextended)),
    ),
    Planted("moved_and_speaks_on", "the log goes on under an id that has ended", "disasters", _speaks_on),
    Planted("bound_before_begun", "a crash leaves old groups under the new id", "disasters", _bound_first),
    Planted("tails_not_surveyed", "acknowledged entries of survivors are lost", "disasters", _tail_dropped),
)
