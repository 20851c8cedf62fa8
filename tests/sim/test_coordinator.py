"""The request path of one real node among scripted peers: every case holds, every branch of refusal and
catch-up has a case, and mistakes planted in the product make the cases fail that are about them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from lockstep import coordination, quorum, replica
from lockstep.cli.sim import sim
from lockstep.coordination import reads, writes
from lockstep.coordination.writes import Write
from lockstep.quorum.failure_codes import LABELS, REASONS
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import End, Round
from lockstep.replica.messages import ReadReply, WriteRequest
from lockstep.replica.replica import ReplicaService
from lockstep.sim.coordinator.script import Verdict, cases, parse_case, play
from lockstep.sim.plant import replaced
from lockstep.values.errors import LockstepError
from lockstep.values.ids import mutation_id
from lockstep.values.limits import REQUEST_PLANS_MAX
from lockstep.values.rows import Mutation

CASES = cases()
#: Probes of what comes after the request path has judged, or of other things.
_OTHERS = (
    "read.local_failure",
    "read.narrowed",
    "read.told_apart",
    "replica.drain",
    "replica.expired",
    "replica.refused",
    "replica.refused.stale",
    "replica.write.accepted",
    "replica.write.applied",
    # Of tracked tables, which their scenarios must see.
    *("read.tracked_anew", "read.tracked_brought", "read.tracked_reread", "write.another_leads"),
    *("read.followed", "read.follows_all", "read.tracked_listed"),
    *("read.tracked_partial", "read.tracked_switched"),
    "replica.write.named",
)
_LABEL = re.compile(r'"((?:replica|read|write)\.[a-z_.]+)"')


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    return {name: play(case) for name, case in CASES.items()}


def branches() -> set[str]:
    """All branches of refusal and catch-up that the code names."""
    rooms = (Path(room.__file__).parent for room in (coordination, quorum, replica))
    named = {
        label for room in rooms for file in room.glob("*.py") for label in _LABEL.findall(file.read_text())
    }
    refusals = {*LABELS.values(), "replica.write.waits", "replica.read.waits"}
    return (named - set(_OTHERS)) | refusals


@pytest.mark.parametrize("name", CASES)
def test_a_case_holds(name: str, verdicts: dict[str, Verdict]) -> None:
    assert not verdicts[name].problem, "\n".join((verdicts[name].problem, *verdicts[name].seen))


def test_every_branch_of_refusal_and_catch_up_is_reached_by_a_case(verdicts: dict[str, Verdict]) -> None:
    assert len(branches()) > 30 and len(REASONS) == 8, "the labels are found"
    reached = {label for verdict in verdicts.values() for label in verdict.reached}
    assert sorted(branches() - reached) == []


def test_a_case_is_played_alike_each_time(verdicts: dict[str, Verdict]) -> None:
    for name in ("scan_behind", "write_behind_placement", "replica_read_overtaken"):
        assert play(CASES[name]).seen == verdicts[name].seen


# -- what a case would say of a product that is wrong ---------------------------------------------


def _needs_ignored() -> Any:
    """The replica answers whatever the request needs."""
    write = ReplicaService._receive_write
    read = ReplicaService._receive_read

    def writes_now(self: Any, peer: Any, request: Any, respond: Any) -> None:
        write(self, peer, msgspec.structs.replace(request, needs_epoch=0), respond)

    def reads_now(self: Any, peer: Any, request: Any, respond: Any) -> None:
        read(self, peer, msgspec.structs.replace(request, needs_epoch=0), respond)

    return replaced(
        (ReplicaService, "_receive_write", writes_now), (ReplicaService, "_receive_read", reads_now)
    )


def _all_of_epoch_needed() -> Any:
    """The replica catches up with the coordinator's epoch, not with what matters."""
    write = ReplicaService._receive_write
    read = ReplicaService._receive_read

    def later(self: Any, peer: Any, request: Any, respond: Any) -> None:
        write(self, peer, msgspec.structs.replace(request, needs_epoch=request.epoch), respond)

    def read_later(self: Any, peer: Any, request: Any, respond: Any) -> None:
        read(self, peer, msgspec.structs.replace(request, needs_epoch=request.epoch), respond)

    return replaced((ReplicaService, "_receive_write", later), (ReplicaService, "_receive_read", read_later))


def _refuses_any_difference() -> Any:
    """The replica refuses whoever is at another epoch."""
    write, check = ReplicaService.write, ReplicaService._check_read

    def strict(self: Any, request: Any, answer: Any) -> None:
        placement = self._plans.placement(request.mutation.table_id)
        if placement is not None and placement.epoch > request.epoch:
            raise self._stale(placement, request.mutation.table_id, request.epoch, "write")
        write(self, request, answer)

    def strict_read(self: Any, request: Any) -> int:
        placement = self._plans.placement(request.command.table_id)
        if placement is not None and placement.epoch > request.epoch:
            raise self._stale(placement, request.command.table_id, request.epoch, "read")
        return check(self, request)

    return replaced((ReplicaService, "write", strict), (ReplicaService, "_check_read", strict_read))


def _takes_stale_plans() -> Any:
    """The replica does not look at the epoch of the plan."""
    write, check = ReplicaService.write, ReplicaService._check_read

    def blind(self: Any, request: Any, answer: Any) -> None:
        write(self, msgspec.structs.replace(request, epoch=1 << 62), answer)

    def blind_read(self: Any, request: Any) -> int:
        return check(self, msgspec.structs.replace(request, epoch=1 << 62))

    return replaced((ReplicaService, "write", blind), (ReplicaService, "_check_read", blind_read))


def _read_judged_once() -> Any:
    """The replica does not judge again after a read that took its time."""

    async def once(self: Any, request: Any) -> Any:
        accepted = self._check_read(request)
        return ReadReply(accepted, await self._engine.read(request.command))

    return replaced((ReplicaService, "read", once))


def _write_not_verified() -> Any:
    """Enough answers to the plan end a write, whatever the coordinator has learned since."""

    def check(self: Any) -> None:
        self.end(None)

    return replaced((Write, "check", check))


def _read_not_verified() -> Any:
    return replaced((PlanBook, "changed_since", lambda self, table_id, tokens, epoch: False))


def _old_acceptances_count() -> Any:
    return replaced((Round, "counting", lambda self: list(self.accepted)))


def _new_identity_when_planned_again() -> Any:
    """A write that is planned again is another mutation."""
    prepare = Write._prepare
    numbers = iter(range(1, 1 << 20))

    def renamed(self: Any, plan: Any) -> None:
        mutation: Mutation = self.mutation
        self.mutation = msgspec.structs.replace(mutation, mutation_id=mutation_id(8, 1, next(numbers)))
        prepare(self, plan)

    return replaced((Write, "_prepare", renamed))


def _new_time_when_planned_again() -> Any:
    prepare = Write._prepare

    def later(self: Any, plan: Any) -> None:
        mutation: Mutation = self.mutation
        rows = tuple(
            msgspec.structs.replace(
                row,
                cells=tuple(
                    msgspec.structs.replace(cell, timestamp_us=cell.timestamp_us + 1) for cell in row.cells
                ),
            )
            for row in mutation.rows
        )
        self.mutation = msgspec.structs.replace(mutation, rows=rows) if self.round.accepted else mutation
        prepare(self, plan)

    return replaced((Write, "_prepare", later))


def _refusals_are_errors() -> Any:
    """A replica that is ahead fails the write."""
    failed = Write.failed

    def fatal(self: Any, context: Any, error: LockstepError) -> None:
        if error.code == "STALE_EPOCH":
            self.expired()
        else:
            failed(self, context, error)

    return replaced((Write, "failed", fatal))


def _every_newer_epoch_is_fetched_first() -> Any:
    """The coordinator learns of every epoch it hears of before it counts an answer."""
    replied = Write.replied

    def cautious(self: Any, context: Any, reply: Any, sender_epoch: int) -> None:
        if sender_epoch > self.owner.plans.epoch:
            asyncio.get_running_loop().call_later(0.05, cautious, self, context, reply, sender_epoch)
            return
        replied(self, context, reply, sender_epoch)

    return replaced((Write, "replied", cautious))


def _needs_whole_epoch_on_the_wire() -> Any:
    """A request says that it needs the newest epoch, not what mattered."""
    return replaced(
        (writes, "WriteRequest", lambda epoch, needs, mutation: WriteRequest(epoch, epoch, mutation)),
    )


def _one_plan_only() -> Any:
    """A request gives up after as many plans as it may make at once."""
    planned = Round.planned

    def impatient(self: Any, newest: Any, *, paused: bool = False) -> Any:
        if paused and self.plans_made >= REQUEST_PLANS_MAX:
            return (*self._over(End.FAILED),)
        return planned(self, newest, paused=paused)

    return replaced((Round, "planned", impatient))


def _no_repair() -> Any:
    async def nothing(*_: Any) -> None:
        return None

    return replaced((reads, "repair", nothing))


MISTAKES: tuple[tuple[Callable[[], Any], tuple[str, ...]], ...] = (
    (_needs_ignored, ("replica_behind_placement", "replica_behind_table", "replica_behind_type")),
    (_all_of_epoch_needed, ("replica_behind_elsewhere",)),
    (_refuses_any_difference, ("replica_ahead_elsewhere",)),
    (_takes_stale_plans, ("replica_ahead_placement", "replica_ahead_table", "replica_ahead_keyspace")),
    (_read_judged_once, ("replica_read_overtaken",)),
    (_write_not_verified, ("write_verified_against_own_epoch",)),
    (_read_not_verified, ("read_verified_against_own_epoch", "read_keyspace_dropped")),
    (_old_acceptances_count, ("write_acceptance_before_change",)),
    (_new_identity_when_planned_again, ("write_behind_placement", "write_keyspace_altered")),
    (_new_time_when_planned_again, ("write_own_acceptance_before_change",)),
    (_refusals_are_errors, ("write_behind_placement", "write_refused_twice")),
    (_every_newer_epoch_is_fetched_first, ("write_replicas_ahead_elsewhere",)),
    (_needs_whole_epoch_on_the_wire, ("write_behind_placement", "write_together")),
    (_one_plan_only, ("write_many_changes",)),
    (_no_repair, ("read_repair_in_time", "read_repair_behind")),
)


@pytest.mark.parametrize(("plant", "found_by"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_a_mistake_makes_the_cases_about_it_fail(plant: Callable[[], Any], found_by: tuple[str, ...]) -> None:
    with plant():
        assert [name for name in found_by if not play(CASES[name]).problem] == []
    for name in found_by:
        assert not play(CASES[name]).problem, "the mistake is gone"


# -- the texts themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("n2 dances", "no such step"),
        ("n2 gets READ d planned 8 needs 5", "nothing came to n2"),
        ("n2 says ok", "n2 has nothing to answer"),
        ("client gets ok", "waits for nothing"),
        ("client QUORUM: SELECT c FROM ks.t WHERE k = 'd'", "which no step names"),
        ("n1 is at 9", "n1 is at 8"),
        ("n1 reaches 9", "n1 stays at 8"),
        ("n2 sends READ a planned 8 needs 5\nn2 hears ok at 8", "n2 hears no rows at 8"),
        ("n2 sends READ a planned 8 needs 5", "which no step names"),
        ("n1 counts stale_table 1", "it counts 0"),
        ("n1 asked n2 for the log", "n1 asked []"),
    ],
)
def test_a_step_that_does_not_come_true_fails_the_case(steps: str, problem: str) -> None:
    verdict = play(parse_case("made", f"# Made for this test.\n{steps}\n"))
    assert problem in verdict.problem


def test_the_command_prints_a_line_a_case_and_the_transcript_of_one_that_fails() -> None:
    runner = CliRunner()
    held = runner.invoke(sim, ["coordinator", "--case", "write_together"], standalone_mode=False)
    assert held.return_value == 0
    assert held.output.startswith("ok      write_together: ") and "1 cases, 0 failed" in held.output
    with _write_not_verified():
        broken = runner.invoke(
            sim, ["coordinator", "--case", "write_verified_against_own_epoch"], standalone_mode=False
        )
    assert broken.return_value == 1
    assert "FAILED  write_verified" in broken.output and "-> n2: WRITE #1 d 1=x@10" in broken.output
    unknown = runner.invoke(sim, ["coordinator", "--case", "nothing"], standalone_mode=False)
    assert isinstance(unknown.exception, LockstepError)
