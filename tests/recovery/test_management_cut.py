"""The plan that takes commands out of the management group's log: what members hold, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from lockstep.consensus.messages import Entry, EntryKind
from lockstep.metadata.directory import LINEAGE
from lockstep.metadata.groups.management import (
    Action,
    Admit,
    Command,
    Expel,
    Found,
    Host,
    RecordVoters,
    encode_command,
)
from lockstep.metadata.lineage import MANAGEMENT_TRUNCATION, ResetManagement
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.recovery.living import anew_from
from lockstep.recovery.management_cut import (
    ManagementCut,
    ManagementHeld,
    PlannedCut,
    described,
    held_of,
    plan_cut,
    state_before,
)
from lockstep.values.codec import decoder
from lockstep.values.errors import PreconditionError
from tests.metadata.histories import History, founder
from tests.recovery.test_living import DRAWN, REGISTRY, answers, history

NEWCOMER = Host("9f", "127.0.0.9", 7000)
GONE = Host("8f", "127.0.0.8", 7000)
ACTIONS: Sequence[Action] = (
    Found("cluster-1", "test", (Host(founder(1, (10,)).host_id, "127.0.0.1", 7000),)),
    Admit(NEWCOMER, 3),
    Admit(GONE, 3),
    Expel(GONE.host_id, "it left"),
    RecordVoters((1, 2, 3), 1, 4),
)


def entries(*more: bytes) -> list[Entry]:
    """Of a log whose first entry has no command, from index 1 on."""
    made = [Entry(1, 1, EntryKind.CONFIGURATION, b"")]
    for index, action in enumerate(ACTIONS, 2):
        data = encode_command(Command(index.to_bytes(16, "big"), index - 1, "ann", action))
        made.append(Entry(index, 1, EntryKind.NORMAL, data))
    made += [Entry(index, 1, EntryKind.NORMAL, data) for index, data in enumerate(more, len(made) + 1)]
    return made


def held(made: History, node: int, cut: ManagementCut, **changed: Any) -> ManagementHeld:
    log = entries(b"poison", b"later")
    told = ManagementHeld(
        node, "it is poison", 6, 7, 8, 0, (1, 2, 3), tuple(map(described, log[cut.index - 1 :]))
    )
    told = held_of(told, state_before(None, log, cut.index), made.now.directory.by_host_id)
    return msgspec.structs.replace(told, **changed)


def planned(made: History, cut: ManagementCut, *told: ManagementHeld, leader: int = 1) -> PlannedCut:
    return plan_cut(made.now, answers(made, 1, 2, 3, leader=leader), told, cut, DRAWN)


def test_every_command_is_told_also_one_that_cannot_be_read() -> None:
    told = [described(entry) for entry in entries(b"poison")]
    assert [one.kind for one in told] == [
        "configuration", "found", "admit", "admit", "expel", "record_voters", "unreadable",
    ]  # fmt: skip
    assert "9f at 127.0.0.9:7000" in told[2].summary and "it left" in told[4].summary
    assert told[5].summary == "1, 2, 3 as of epoch 4" and told[6].summary.startswith("6 bytes")


@pytest.mark.parametrize("index", range(3, 9))
def test_the_state_before_is_what_a_member_had_then(index: int) -> None:
    """Made from the whole log, and from a snapshot at any place before it."""
    log = entries(b"poison")
    whole = state_before(None, log, index)
    if index > 7:
        assert whole is None, "behind what cannot be read there is no state"
        return
    assert whole is not None and whole.index == index - 1
    for base in range(3, index + 1):
        snapshot = state_before(None, log, base)
        assert snapshot is not None and state_before(snapshot, log[base - 1 :], index) == whole
    assert state_before(whole, log, index - 1) is None, "a snapshot has more than that"


def test_what_no_metadata_says_goes_on_and_all_begin_alike() -> None:
    made, cut = history(2), ManagementCut(7, "ann", committed=True)
    found = planned(made, cut, *(held(made, node, cut) for node in (1, 2, 3)))
    body = decoder(ResetManagement).decode(found.plan.last.body)
    assert (found.source, body.admitted, body.expelled) == (1, (NEWCOMER,), (GONE.host_id,))
    assert found.plan.by_log and found.plan.kind == MANAGEMENT_TRUNCATION
    tip = Tip(made.now, REGISTRY)
    appended = tip.judge(b"e" * 16, found.plan.last.kind, found.plan.last.body, "ann", 1, 4)
    assert isinstance(appended, Appended)
    after = tip.value
    assert after.parts[LINEAGE][-1].lost == "commands 7 to 8 of the management group"
    anew = anew_from(after, appended.entry)
    assert (anew.admitted, anew.expelled, anew.management) == ((NEWCOMER,), (GONE.host_id,), (2,))


def test_where_snapshots_hold_what_goes_the_metadata_say_what_goes_on() -> None:
    made, cut = history(2), ManagementCut(4, "ann", committed=True)
    none = {"has_before": False, "admitted": (), "expelled": (), "digest": b"", "snapshot": 6}
    first = held(made, 1, cut, **none)
    found = planned(made, cut, first, held(made, 2, cut), held(made, 3, cut, **none))
    assert found.source == 2 and "snapshots" not in found.plan.lost
    found = planned(made, cut, *(held(made, node, cut, **none) for node in (1, 2, 3)))
    assert found.source == 0 and "snapshots hold the commands" in found.plan.lost
    assert decoder(ResetManagement).decode(found.plan.last.body).admitted == ()


@pytest.mark.parametrize(
    ("cut", "changed", "leader", "text"),
    [
        (ManagementCut(7, "ann"), {}, 1, "commands up to index 7 are committed"),
        (ManagementCut(8, "ann"), {}, 1, ""),
        (ManagementCut(9, "ann", committed=True), {}, 1, "the log ends at index 8"),
        (ManagementCut(1, "ann", committed=True), {}, 1, "the first one founds the cluster"),
        (ManagementCut(7, "ann", committed=True), {"broken": ""}, 1, "the group does its work"),
        (ManagementCut(7, "ann", committed=True), {"digest": b"other"}, 1, "have different states"),
        (ManagementCut(7, "ann", committed=True), {}, 0, "nobody leads the metadata group"),
    ],
)
def test_what_is_refused(cut: ManagementCut, changed: dict[str, Any], leader: int, text: str) -> None:
    made = history(2)
    told = [held(made, 1, cut), *(held(made, node, cut, **changed) for node in (2, 3))]
    if not text:
        assert planned(made, cut, *told, leader=leader).last == 8
        return
    with pytest.raises(PreconditionError, match=text):
        planned(made, cut, *told, leader=leader)
    with pytest.raises(PreconditionError, match="no member"):
        planned(made, cut)


def test_the_entry_keeps_nothing_but_for_a_truncation() -> None:
    made, cut = history(2), ManagementCut(7, "ann", committed=True)
    body = decoder(ResetManagement).decode(planned(made, cut, held(made, 1, cut)).plan.last.body)
    kinds = {"kind": "management"}
    broken = [
        msgspec.structs.replace(body, repaired=msgspec.structs.replace(body.repaired, **kinds)),
        msgspec.structs.replace(body, admitted=(NEWCOMER, NEWCOMER)),
        msgspec.structs.replace(body, expelled=(NEWCOMER.host_id,)),
    ]
    for one in broken:
        kind, data = REGISTRY.encode(one)
        assert isinstance(Tip(made.now, REGISTRY).judge(b"f" * 16, kind, data, "ann", 1, 4), Refused)


def test_the_digest_is_of_what_was_shown() -> None:
    made, cut = history(2), ManagementCut(7, "ann", committed=True)
    told = [held(made, node, cut) for node in (1, 2, 3)]
    digest = planned(made, cut, *told).digest
    assert planned(made, cut, *told).digest == digest
    later = [msgspec.structs.replace(one, last=9) for one in told]
    assert planned(made, cut, *later).digest != digest
