"""Entries, their chain, applying them, and the leader's tip."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest

from lockstep.metadata.cluster import GENESIS_HASH, empty_cluster
from lockstep.metadata.log.apply import apply_entry, part_digests, state_digest
from lockstep.metadata.log.entries import LogEntry, seal, verify_chain
from lockstep.metadata.log.recent_ids import RECENT_IDS, RecentIds, no_recent_ids
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.tip import Appended, Duplicate, Expired, Refused, Tip
from lockstep.metadata.transformations import KINDS, Register
from lockstep.values import codec
from lockstep.values.errors import CannotApply, Rejected
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX, RECENT_ENTRY_IDS_MAX
from tests.metadata.histories import History, SetKeyspaces, network, registry, ring_with, simple, started
from tests.metadata.stored import from_stored, stored


def register(number: int) -> Register:
    return Register(f"host-{number}", f"10.0.0.{number}", 7000, 9042, 7080, "dc1", "r1", "1")


def history() -> History:
    made = started([(0,), (100,)], ("one", simple(1)), ("two", network(dc1=2)))
    made.submit(register(7))
    made.submit(register(8))
    return made


def test_a_chain_is_accepted_only_whole_and_unchanged() -> None:
    entries = history().entries
    assert verify_chain(entries, epoch=0, previous_hash=GENESIS_HASH) is None
    assert verify_chain(entries[2:], epoch=2, previous_hash=entries[1].hash) is None
    for at in range(len(entries)):
        for change in (
            {"body": b"\x90"},
            {"actor": "mallory"},
            {"commit_time_us": 5},
            {"kind": 99},
            {"entry_id": b"x" * 16},
            {"previous_hash": b"y" * 32},
            {"hash": b"z" * 32},
            {"epoch": 99},
        ):
            forged = [*entries]
            forged[at] = msgspec.structs.replace(entries[at], **change)
            assert verify_chain(forged, epoch=0, previous_hash=GENESIS_HASH) is not None, (at, change)
    gap = entries[:1] + entries[2:]
    assert verify_chain(gap, epoch=0, previous_hash=GENESIS_HASH) == "entry 3 follows epoch 1"


def test_the_term_is_outside_the_hash() -> None:
    entries = history().entries
    later = [msgspec.structs.replace(entry, term=9) for entry in entries]
    assert verify_chain(later, epoch=0, previous_hash=GENESIS_HASH) is None


def test_replay_from_stored_bytes_gives_identical_bytes_and_digests() -> None:
    made = history()
    again = made.replayed()
    assert stored(again) == stored(made.now)
    assert state_digest(again) == state_digest(made.now)
    assert from_stored(stored(made.now)) == made.now
    assert stored(from_stored(stored(made.now))) == stored(made.now)
    made.now.validate()


def test_digests_differ_exactly_in_the_parts_that_differ() -> None:
    made = history()
    before, after = dict(part_digests(made.values[-2])), dict(part_digests(made.values[-1]))
    assert {name for name in before if before[name] != after[name]} == {"directory", "recent_ids"}
    assert len({state_digest(value) for value in made.values}) == len(made.values)


def test_parts_an_entry_does_not_change_stay_the_same_objects() -> None:
    made = history()
    before, after = made.values[-2], made.values[-1]
    assert after.directory is not before.directory
    assert after.placements is before.placements and after.schema is before.schema
    changed = made.submit(SetKeyspaces((("one", simple(1)), ("other", simple(1)), ("two", network(dc1=2)))))
    assert changed.placements is after.placements
    changed = made.submit(SetKeyspaces((("one", simple(1)), ("three", simple(3)))))
    assert ring_with(changed, simple(1)) is ring_with(after, simple(1))
    assert [ring.replication for ring in changed.placements.rings] == [simple(1), simple(3)]


def test_an_entry_that_does_not_follow_cannot_be_applied() -> None:
    made = history()
    with pytest.raises(CannotApply, match="follows epoch"):
        apply_entry(made.now, made.entries[1], made.registry)
    other = started([(5,)]).entries[0]
    with pytest.raises(CannotApply, match="another history"):
        apply_entry(made.now, msgspec.structs.replace(other, epoch=made.now.epoch + 1), made.registry)


def entry_after(made: History, kind: int, body: bytes) -> LogEntry:
    return seal(
        epoch=made.now.epoch + 1,
        entry_id=b"e" * 16,
        kind=kind,
        body=body,
        actor="",
        commit_time_us=0,
        term=1,
        previous_hash=made.now.hash,
    )


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (77, b"", "not known to this version"),
        (EntryKind.REGISTER, b"\xc1", "cannot be read"),
        (EntryKind.REGISTER, codec.encode(["only a host id"]), "cannot be read"),
        (EntryKind.REGISTER, codec.encode(register(1)), "refused here"),
    ],
)
def test_unknown_unreadable_and_refused_entries_stop_the_node(kind: int, body: bytes, why: str) -> None:
    made = history()
    with pytest.raises(CannotApply, match=why):
        apply_entry(made.now, entry_after(made, kind, body), made.registry)


def test_a_kind_has_one_meaning() -> None:
    with pytest.raises(AssertionError, match="registered twice"):
        Registry(KINDS, {EntryKind.REGISTER: SetKeyspaces})


def judge(tip: Tip, entry_id: bytes, number: int, base_epoch: int | None = None) -> object:
    kind, body = registry().encode(register(number))
    return tip.judge(entry_id.ljust(16), kind, body, "test", 0, 1, base_epoch=base_epoch)


def test_each_judgement_counts_on_the_entries_before_it() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    first = judge(tip, b"a", 20)
    assert isinstance(first, Appended) and first.entry.epoch == made.now.epoch + 1
    refused = judge(tip, b"b", 20)
    assert isinstance(refused, Refused) and refused.judged_epoch == first.entry.epoch
    assert "belongs to node" in refused.rejection.message and refused.rejection.epoch == first.entry.epoch
    assert isinstance(judge(tip, b"c", 21), Appended)
    tip.validate()


def test_the_same_id_is_appended_once_and_says_where() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    first = judge(tip, b"a", 20)
    assert isinstance(first, Appended)
    assert judge(tip, b"a", 20) == Duplicate(first.entry.epoch, committed=False)
    tip.applied_now(apply_entry(made.now, first.entry, made.registry))
    assert judge(tip, b"a", 20) == Duplicate(first.entry.epoch, committed=True)
    assert tip.judge(made.entries[0].entry_id, 1, b"", "", 0, 1) == Duplicate(1, committed=True)


def test_truncation_drops_what_was_built_on_the_entry() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    kept, dropped = judge(tip, b"a", 20), judge(tip, b"b", 21)
    assert isinstance(kept, Appended) and isinstance(dropped, Appended)
    tip.truncate_from(dropped.entry.epoch)
    assert tip.epoch == kept.entry.epoch
    assert tip.value.directory.by_host_id.get("host-21") is None
    again = judge(tip, b"b", 21)
    assert isinstance(again, Appended) and again.entry == dropped.entry
    with pytest.raises(AssertionError):
        tip.truncate_from(made.now.epoch)


def test_a_new_leader_rebuilds_the_same_tip() -> None:
    made = history()
    tip, other = Tip(made.now, made.registry), Tip(empty_cluster(), made.registry)
    entries = [
        found.entry for found in (judge(tip, b"a", 20), judge(tip, b"b", 21)) if isinstance(found, Appended)
    ]
    other.rebuild(made.now, entries)
    assert stored(other.value) == stored(tip.value)
    assert judge(other, b"a", 20) == Duplicate(entries[0].epoch, committed=False)


def test_a_tip_knows_what_pending_entries_make_of_the_very_value_they_were_judged_at() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    appended = [
        found for found in (judge(tip, b"a", 20), judge(tip, b"b", 21)) if isinstance(found, Appended)
    ]
    first, second = (found.entry for found in appended)
    after_first = tip.value_at(first, made.now)
    assert after_first is not None and after_first.epoch == first.epoch
    assert tip.value_at(second, after_first) is tip.value
    other = entry_after(made, EntryKind.REGISTER, codec.encode(register(30)))
    equal = from_stored(stored(made.now))
    for entry, before in (
        (other, made.now),
        (second, made.now),
        (first, after_first),
        (first, equal),
        (made.entries[-1], made.values[-2]),
        (msgspec.structs.replace(second, epoch=second.epoch + 1), tip.value),
    ):
        assert tip.value_at(entry, before) is None, entry.epoch
    assert not tip.forked_at(made.now) and not tip.forked_at(after_first) and not tip.forked_at(tip.value)
    stranger = apply_entry(made.now, other, made.registry)
    assert tip.forked_at(stranger)
    assert not tip.forked_at(msgspec.structs.replace(stranger, epoch=tip.epoch + 1)), (
        "nothing was appended there"
    )
    assert not tip.forked_at(msgspec.structs.replace(stranger, epoch=made.now.epoch))
    tip.applied_now(after_first)
    assert tip.value_at(second, after_first) is tip.value and tip.value_at(first, made.now) is None
    assert tip.applied is after_first
    tip.validate()


@pytest.mark.slow
def test_a_tip_that_is_no_chain_is_noticed() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    judge(tip, b"a", 20)
    first = tip.value
    judge(tip, b"b", 21)
    tip.validate()
    (one, _), (two, value) = tip._pending
    foreign = seal(
        epoch=two.epoch, entry_id=two.entry_id, kind=two.kind, body=two.body, actor="", commit_time_us=0,
        term=1, previous_hash=bytes(32),
    )  # fmt: skip
    for wrong in (
        [(two, value)],
        [(one, first), (one, first)],
        [(one, first), (foreign, value)],
        [(one, first), (two, first)],
        [(one, first), (two, msgspec.structs.replace(value, hash=bytes(32)))],
        [(one, first), (two, msgspec.structs.replace(value, epoch=value.epoch + 1))],
    ):
        tip._pending = deque(wrong)
        with pytest.raises(AssertionError):
            tip.validate()
    tip._pending = deque([(one, first), (foreign, value)])
    with pytest.raises(AssertionError, match="chain"):
        tip.applied_now(first)
    with pytest.raises(AssertionError, match="never goes back"):
        tip.applied_now(made.values[-2])


def test_applying_another_entry_than_the_pending_one_is_noticed() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    judge(tip, b"a", 20)
    stranger = entry_after(made, EntryKind.REGISTER, codec.encode(register(30)))
    with pytest.raises(AssertionError, match="another entry"):
        tip.applied_now(apply_entry(made.now, stranger, made.registry))


def test_a_submission_older_than_the_kept_ids_is_expired() -> None:
    made = history()
    ids = tuple(number.to_bytes(16, "big") for number in range(3))
    kept = RecentIds.from_listed(made.now.epoch - 2, ids)
    tip = Tip(made.now.changed(RECENT_IDS.set(kept)), made.registry)
    assert judge(tip, b"old", 20, base_epoch=made.now.epoch - 4) == Expired(made.now.epoch - 2)
    assert isinstance(judge(tip, b"young", 20, base_epoch=made.now.epoch - 3), Appended)


def test_unreadable_and_oversized_submissions_are_refused_not_fatal() -> None:
    made = history()
    tip = Tip(made.now, made.registry)
    for kind, body in ((77, b""), (EntryKind.REGISTER, b"\xc1"), (2, bytes(ENTRY_BODY_BYTES_MAX + 1))):
        judged = tip.judge(b"x" * 16, kind, body, "", 0, 1)
        assert isinstance(judged, Refused) and isinstance(judged.rejection, Rejected)
    assert tip.epoch == made.now.epoch


def test_the_newest_ids_are_kept_in_order_up_to_the_limit() -> None:
    recent = no_recent_ids()
    total = RECENT_ENTRY_IDS_MAX + 50
    for epoch in range(1, total + 1):
        recent = recent.with_entry(epoch, epoch.to_bytes(16, "big"))
    assert recent.first_epoch == 51 and len(recent.listed()) == RECENT_ENTRY_IDS_MAX
    assert recent.epoch_of((50).to_bytes(16, "big")) is None
    assert recent.epoch_of((51).to_bytes(16, "big")) == 51
    assert RecentIds.from_listed(recent.first_epoch, recent.listed()) == recent
    with pytest.raises(AssertionError, match="applied twice"):
        recent.with_entry(total + 1, total.to_bytes(16, "big"))


def test_a_body_whose_text_is_no_text_cannot_be_applied_and_is_refused_at_the_tip() -> None:
    made = started([(0,)])
    body = b"\x92\xa2\xff\xfe\xc4\x00"
    with pytest.raises(CannotApply, match="cannot be read"):
        made.registry.decode(EntryKind.SET_EXTENSION, body)
    judged = Tip(made.now, made.registry).judge(b"x" * 16, EntryKind.SET_EXTENSION, body, "", 0, 1)
    assert isinstance(judged, Refused)
