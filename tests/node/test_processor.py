"""The leader's side of a submission, without the submitter's deadlines and retries around it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from lockstep.consensus.effects import Role
from lockstep.consensus.messages import VoteRequest
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log.messages import Submit, Submitted
from lockstep.node.node import Node
from lockstep.node.processors.raft import logged_entries
from lockstep.values.codec import encode
from lockstep.values.errors import (
    FrameCorrupt,
    InvalidRequest,
    LeadershipLost,
    LockstepError,
    NotLeader,
    Overloaded,
    Rejected,
)
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX
from tests.node.support import Outcome, Town, keyspace, table


def judge(town: Town, leader: int, name: str) -> Outcome:
    """Submit the creation of a keyspace right at the leader's processor."""

    async def work(node: Node) -> int:
        change = keyspace(name)
        kind, entry_id = node.log.registry.kind_of(change), node.runtime.random.bytes(16)
        assert node.log.processor is not None
        return await node.log.processor.submit(
            Submit(entry_id, kind, encode(change), "test", node.log.state.epoch)
        )

    return town.begin(leader, work)


def with_slow_disks(town: Town, sync_s: float) -> int:
    """The leader, where heartbeats are quick and appends wait for disks."""
    town.found()
    assert town.finish(town.submit(1, keyspace("old"))).error is None
    town.agreed(1, 2, 3)
    town.wait(0.5)
    for number in (1, 2, 3):
        settings = town.process(number).disk.settings
        settings.sync_low_s = settings.sync_high_s = sync_s
    return town.leader()


def test_a_refusal_waits_for_the_commit_of_what_it_was_judged_at() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.3)
        first = judge(town, leader, "k")
        town.wait(0.01)
        second, third = judge(town, leader, "k"), judge(town, leader, "old")
        town.wait(0.1)
        assert not first.done and not second.done and not third.done
        for outcome in (first, second, third):
            town.finish(outcome)
        assert first.error is None
        assert isinstance(second.error, Rejected) and isinstance(third.error, Rejected)
        assert second.done_s >= first.done_s


def take(node: Node, name: str, settled: list[int | LockstepError]) -> None:
    change = keyspace(name)
    kind, entry_id = node.log.registry.kind_of(change), node.runtime.random.bytes(16)
    assert node.log.processor is not None
    node.log.processor.take(
        Submit(entry_id, kind, encode(change), "test", node.log.state.epoch), settled.append
    )


def test_a_refusal_judged_at_what_the_group_did_not_take_is_not_told() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)
        settled: list[int | LockstepError] = []

        async def work(node: Node) -> None:
            driver = node.log.driver
            assert driver is not None
            asked = asyncio.Event()
            propose, driver.propose = driver.propose, lambda data: asked.set()  # type: ignore[method-assign]
            take(node, "k", settled)
            take(node, "k", settled)
            await asked.wait()
            driver.propose = propose  # type: ignore[method-assign]
            take(node, "other", settled)

        assert town.finish(town.begin(leader, work)).error is None
        town.until(lambda: len(settled) == 3)
        assert len([one for one in settled if isinstance(one, Overloaded)]) == 2, settled


def test_the_tip_is_in_the_log_before_anything_is_decided_by_it() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)
        settled: list[int | LockstepError] = []

        async def work(node: Node) -> tuple[int, int]:
            take(node, "k", settled)
            assert node.log.member.group is not None
            driver, processor = node.log.member.group
            tip, last = processor.tip_value(), driver.raft.last_index
            return tip.epoch, logged_entries((driver.raft.entry(last),))[0].epoch

        tip, logged = town.finish(town.begin(leader, work)).value
        assert tip == logged == town.newest.epoch + 1


def test_a_doubled_submission_stays_refused_although_it_would_be_accepted_now() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)

        def create(name: str, entry_id: bytes) -> Outcome:
            async def work(node: Node) -> int:
                kind, body = node.log.registry.encode(table(name))
                assert node.log.processor is not None
                return await node.log.processor.submit(
                    Submit(entry_id, kind, body, "test", node.log.state.epoch)
                )

            return town.finish(town.begin(leader, work))

        early = create("new", b"e" * 16)
        assert isinstance(early.error, Rejected)
        assert town.finish(town.submit(1, keyspace("new"))).error is None
        late = create("new", b"e" * 16)
        assert isinstance(late.error, Rejected)
        assert create("new", b"f" * 16).error is None


def test_a_frame_addressed_to_another_term_is_not_judged() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)
        other = next(number for number in (1, 2, 3) if number != leader)
        address = town.node(leader).context.address
        kind, body = town.node(leader).log.registry.encode(keyspace("new"))
        driver = town.node(leader).log.driver
        assert driver is not None
        term = driver.raft.term

        async def work(node: Node) -> Submitted:
            late = Submit(b"l" * 16, kind, body, "test", node.log.state.epoch, term - 1)
            reply: Submitted = await node.context.internode.request(address, verbs.SUBMIT, late, 1000)
            return reply

        outcome = town.finish(town.begin(other, work))
        assert outcome.error is None and outcome.value == Submitted(0, term)
        assert b"l" * 16 not in town.ids()


def test_a_refusal_judged_at_what_is_committed_needs_only_the_confirmed_leadership() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.3)
        outcome = judge(town, leader, "old")
        town.wait(0.1)
        assert outcome.done and isinstance(outcome.error, Rejected)


def test_a_leader_that_hears_nobody_refuses_nothing_also_at_what_is_committed() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)
        town.world.network.isolate(town.process(leader).host)
        outcome = judge(town, leader, "old")
        town.finish(outcome)
        assert isinstance(outcome.error, NotLeader)


def test_who_waits_at_a_leader_that_loses_its_place_is_told_nothing_but_that() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 4.0)
        begun = [judge(town, leader, "k"), judge(town, leader, "k")]
        # Leadership is confirmed by heartbeats meanwhile; the append is not durable anywhere.
        town.wait(0.2)
        town.world.network.isolate(town.process(leader).host)
        town.until(lambda: not town.node(leader).log.is_leader, limit_s=3.0)
        town.wait(0.01)
        # Which of the two came first is drawn.
        assert {type(outcome.error) for outcome in begun} == {LeadershipLost, NotLeader}


def overtaken(town: Town, *, begin: bool) -> tuple[int, int, Outcome | None]:
    """(a leader that is cut off and does not know yet, the leader after it, what was begun at the first):
    the later one has committed; a peer has told the former one so, before any message of the new term."""
    old = with_slow_disks(town, 0.001)
    others = [number for number in (1, 2, 3) if number != old]
    process = town.process(old)
    process.drift_clock(0.05)
    town.world.network.isolate(process.host)
    begun = judge(town, old, "void") if begin else None
    town.until(lambda: any(town.node(number).log.is_leader for number in others))
    new = next(number for number in others if town.node(number).log.is_leader)
    town.finish(town.submit(new, keyspace("later")))
    before, learned = town.node(old).log.state.epoch, town.node(new).log.state.entries
    process.drift_clock(1.0)
    process.submit(lambda _: offered(town.node(old), learned[before:]))
    town.wait(0.02)
    assert town.node(old).log.state.epoch == len(learned)
    return old, new, begun


async def offered(node: Node, entries: list[LogEntry]) -> None:
    """What a catch-up does with what a peer sent."""
    assert node.log.is_leader
    node.log.state.offer(entries)


def test_a_leader_that_learns_a_later_leaders_entry_from_a_peer_gives_up_its_own() -> None:
    with Town() as town:
        old, new, begun = overtaken(town, begin=True)
        assert begun is not None and isinstance(begun.error, NotLeader)
        assert town.node(old).log.is_leader, "it has not heard of the new term"
        # What its log holds leads nowhere, so it judges nothing more in this term.
        refused = judge(town, old, "void")
        town.wait(0.01)
        assert isinstance(refused.error, NotLeader)
        town.world.network.heal()
        assert town.finish(town.submit(old, keyspace("after"))).error is None
        town.agreed(1, 2, 3)
        assert not town.ended and town.newest.schema.by_name.get("void") is None
        assert {"later", "after"} <= town.newest.schema.by_name.keys() and new != old


def test_a_leader_without_a_tip_judges_nothing_against_a_log_that_was_overtaken() -> None:
    with Town() as town:
        old, _, _ = overtaken(town, begin=True)
        processor = town.node(old).log.processor
        assert processor is not None
        # As after a change of role that left the term as it was.
        processor._tip, processor._overtaken_term = None, 0
        refused = judge(town, old, "more")
        town.wait(0.01)
        assert isinstance(refused.error, NotLeader)


def test_a_refusal_is_not_told_when_a_snapshot_jumped_over_what_it_was_judged_at() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.3)
        begun = judge(town, leader, "k")
        town.wait(0.01)
        refused = judge(town, leader, "k")
        town.wait(0.1)
        node = town.node(leader)
        processor, now = node.log.processor, node.log.state.current
        assert processor is not None and not refused.done

        async def work(_node: Node) -> None:
            # Two epochs of others, and none of them has what was appended here.
            later = msgspec.structs.replace(now, epoch=now.epoch + 2, hash=b"x" * 32)
            processor._applied(now, later, node.log.state.entries[-1])

        town.begin(leader, work)
        town.wait(0.01)
        assert isinstance(begun.error, LeadershipLost) and isinstance(refused.error, NotLeader)


def test_a_leader_does_not_count_itself_before_its_own_disk_has_the_entry() -> None:
    with Town() as town:
        leader = with_slow_disks(town, 0.001)
        settings = town.process(leader).disk.settings
        settings.sync_low_s = settings.sync_high_s = 1.0
        silent, follower = (number for number in (1, 2, 3) if number != leader)
        town.process(silent).crash()
        before = town.newest.epoch
        outcome = judge(town, leader, "k")
        town.wait(0.5)
        # One follower alone has it, so nobody may take it for committed.
        assert not outcome.done and town.node(follower).log.state.epoch == town.newest.epoch == before
        town.finish(outcome)
        assert outcome.error is None


def test_a_body_that_no_journal_could_hold_is_refused_before_it_is_judged() -> None:
    with Town(founders=1) as town:
        town.found()

        async def work(node: Node) -> int:
            assert node.log.processor is not None
            return await node.log.processor.submit(
                Submit(b"i" * 16, 1, bytes(ENTRY_BODY_BYTES_MAX + 1), "", 1)
            )

        assert isinstance(town.finish(town.begin(1, work)).error, InvalidRequest)


def test_a_message_counts_only_from_the_host_that_is_the_member() -> None:
    with Town() as town:
        town.found()
        leader = town.leader()
        voter, pretender = (number for number in (1, 2, 3) if number != leader)
        driver = town.node(voter).log.driver
        assert driver is not None
        term = driver.raft.term
        request = VoteRequest(driver.raft.group, pretender, voter, term + 5, 100, term + 4, True)
        address = town.node(pretender).context.address
        stranger = PeerInfo(pretender, "another-host", *address, "node")
        with pytest.raises(FrameCorrupt):
            driver.received(stranger, request)
        assert driver.raft.term == term and driver.raft.role is Role.FOLLOWER
