"""Bugs planted in repairs of lost groups: two histories, a wipe after a voice, or nobody who leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from lockstep.consensus.raft import Raft
from lockstep.metadata.groups.management import ManagementState, decode_state
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.recovery import applying, judging, management_cutting, moving
from lockstep.node.recovery.messages import Done
from lockstep.node.recovery.own_state import OwnState
from lockstep.node.recovery.recovery_file import RecoveryFile
from lockstep.node.recovery.reset_service import ResetService
from lockstep.recovery import management_cut
from lockstep.recovery.plan import ResetPlan
from lockstep.recovery.steps import Applied, Record
from lockstep.recovery.survey import Survey
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


def _prepared_acts() -> contextlib.AbstractContextManager[None]:
    """What was only promised is carried out at once, before all others have promised it."""
    plain = ResetService._prepare

    async def prepare(self: ResetService, plan: ResetPlan) -> Done:
        done = await plain(self, plan)
        await self._activate(plan.attempt)
        self._leave()
        return done

    return replaced((ResetService, "_prepare", prepare))


def _freshest_by_epoch() -> contextlib.AbstractContextManager[None]:
    """The longest log goes on, whatever a later leader wrote."""

    return replaced((Survey, "freshness", property(lambda self: (0, self.log_epoch))))


def _let_in_forgotten() -> contextlib.AbstractContextManager[None]:
    """Only the metadata say who is let in, also where the log before the cut does."""
    return replaced((management_cut, "_beside", lambda held, cluster: ((), ())))


def _snapshot_goes_on() -> contextlib.AbstractContextManager[None]:
    """A member's snapshot is taken for the state before the cut, whatever it holds."""
    plain = management_cutting._before

    def before(raft: Raft, index: int) -> ManagementState | None:
        snapshot = raft.snapshot
        return decode_state(snapshot.data) if snapshot is not None else plain(raft, index)

    return replaced((management_cutting, "_before", before))


DIRECTED: Final = (
    Planted("reset_prepared_acts", "half of the nodes are repaired", "", _prepared_acts),
    Planted("reset_longest_log", "what a later leader wrote is lost", "", _freshest_by_epoch),
    Planted("truncation_forgets_let_in", "newcomers are let in no more", "", _let_in_forgotten),
    Planted("truncation_keeps_snapshots", "what was to go is in what goes on", "", _snapshot_goes_on),
)

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
