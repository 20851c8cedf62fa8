"""Catching up from peers: merged, bounded, verified; one history."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.log.entries import LogEntry, hash_of
from lockstep.node.log import metadata_state
from lockstep.node.log.messages import Announce, FetchLog, LogEntries
from lockstep.node.node import Node
from lockstep.values.errors import CannotApply
from lockstep.values.limits import LOG_FETCH_BYTES_MAX, LOG_FETCH_ENTRIES_MAX
from tests.node.support import Town, keyspace


def serve_with(town: Town, number: int, alter: Any) -> list[FetchLog]:
    """Let a node answer fetches through `alter(reply)`; returns the requests n4 sent it."""
    node = town.node(number)
    asked: list[FetchLog] = []

    async def serve(peer: PeerInfo, request: FetchLog) -> LogEntries:
        if peer.node_id == 4:
            asked.append(request)
        return alter(LogEntries(node.log.state.epoch, node.log.state.entries_after(request.after)))

    node.context.internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, serve)
    return asked


def grow(town: Town, count: int) -> None:
    outcomes = [town.submit(1, keyspace(f"k{number}")) for number in range(count)]
    for outcome in outcomes:
        assert town.finish(outcome).error is None


def test_a_long_log_is_fetched_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_state, "LOG_FETCH_ENTRIES_MAX", 8)
    with Town() as town:
        town.found()
        grow(town, 30)
        sizes: list[int] = []
        for number in (1, 2, 3):
            serve_with(town, number, lambda reply: (sizes.append(len(reply.entries)), reply)[1])
        town.start(4)
        town.until(lambda: town.ready(4))
        assert max(sizes) == 8 and sum(sizes) >= 31
        town.agreed(1, 2, 3, 4)


def test_batches_are_bounded_by_bytes_too_and_never_empty() -> None:
    with Town(founders=1) as town:
        town.found()
        state = town.node(1).log.state
        one = state.entries[0]
        for body, expected in ((1000, LOG_FETCH_ENTRIES_MAX), (LOG_FETCH_BYTES_MAX // 4, 4)):
            state.entries = [msgspec.structs.replace(one, body=bytes(body))] * 600
            assert len(state.entries_after(3)) == expected
        state.entries = [msgspec.structs.replace(one, body=bytes(LOG_FETCH_BYTES_MAX + 1))] * 3
        assert len(state.entries_after(1)) == 1
        assert state.entries_after(600) == state.entries_after(601) == ()


def quiet(node: Node) -> None:
    """It hears of newer epochs only where a test makes it."""
    node.log.catch_up.heard = lambda address, epoch: None  # type: ignore[method-assign]


def with_a_node_behind(town: Town, entries: int = 5) -> Node:
    """n4, a member that is not a voter and knows nothing of the last entries."""
    town.found()
    town.start(4)
    town.until(lambda: town.ready(4))
    quiet(town.node(4))
    grow(town, entries)
    town.agreed(1, 2, 3)
    assert town.node(4).log.state.epoch == town.newest.epoch - entries
    return town.node(4)


def test_requests_for_one_gap_share_one_fetch() -> None:
    with Town() as town:
        behind = with_a_node_behind(town)
        asked = serve_with(town, 1, lambda reply: reply)
        begun = [
            town.begin(
                4, lambda node, epoch=epoch: node.context.catch_up.reach(epoch, town.node(1).context.address)
            )
            for epoch in (town.newest.epoch, town.newest.epoch - 1, town.newest.epoch) * 5
        ]
        for outcome in begun:
            assert town.finish(outcome).error is None
        assert behind.log.state.epoch == town.newest.epoch
        assert len(asked) == 1


def test_news_that_come_while_a_fetch_runs_are_fetched_too() -> None:
    with Town() as town:
        behind = with_a_node_behind(town, entries=2)
        source = town.node(1)
        answered: list[int] = []

        def first_is_old(reply: LogEntries) -> LogEntries:
            answered.append(reply.epoch)
            if len(answered) == 1:
                # Meanwhile it is heard of the second entry.
                behind.log.catch_up._want(source.context.address, reply.epoch)
                return LogEntries(reply.epoch - 1, reply.entries[:1])
            return reply

        serve_with(town, 1, first_is_old)
        town.finish(
            town.begin(4, lambda node: node.log.catch_up.reach(town.newest.epoch - 1, source.context.address))
        )
        town.until(lambda: behind.log.state.epoch == town.newest.epoch, limit_s=1.0)
        assert len(answered) == 2


def test_an_answer_with_a_hole_is_not_taken_and_not_waited_for() -> None:
    with Town() as town:
        behind = with_a_node_behind(town)
        epoch = behind.log.state.epoch
        serve_with(town, 1, lambda reply: LogEntries(reply.epoch, reply.entries[1:]))
        outcome = town.finish(
            town.begin(
                4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(1).context.address)
            )
        )
        assert outcome.error is not None and outcome.error.code == "PEER_TIMEOUT"
        assert behind.log.state.epoch == epoch and behind.broken is not None and not behind.broken.done()
        assert town.logged("metadata.fetch_gap", "n4")
        # The same peer is asked again once it can answer.
        serve_with(town, 1, lambda reply: reply)
        outcome = town.finish(
            town.begin(
                4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(1).context.address)
            )
        )
        assert outcome.error is None and behind.log.state.epoch == town.newest.epoch


def forged(entry: LogEntry, previous_hash: bytes) -> LogEntry:
    """Somebody else's entry at the same epoch, whole in itself."""
    changed = msgspec.structs.replace(entry, actor="somebody else", previous_hash=previous_hash)
    return msgspec.structs.replace(changed, hash=hash_of(changed))


def forged_history(entries: list[LogEntry], first: int) -> tuple[LogEntry, ...]:
    """The entries from epoch `first` on, as another history has them."""
    previous, made = entries[first - 2].hash, []
    for entry in entries[first - 1 :]:
        made.append(forged(entry, previous))
        previous = made[-1].hash
    return tuple(made)


@pytest.mark.parametrize("damage", ["hash", "link"])
def test_a_peer_whose_entries_are_damaged_is_not_believed_and_others_are_asked(damage: str) -> None:
    with Town() as town:
        behind = with_a_node_behind(town)

        def damaged(reply: LogEntries) -> LogEntries:
            at = 1 if damage == "link" else 0
            wrong = msgspec.structs.replace(reply.entries[at], actor="somebody else")
            if damage == "link":
                wrong = forged(reply.entries[at], b"x" * 32)
            return LogEntries(reply.epoch, (*reply.entries[:at], wrong, *reply.entries[at + 1 :]))

        serve_with(town, 1, damaged)
        town.begin(4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(1).context.address))
        town.until(lambda: bool(town.logged("metadata.fetch_damaged", "n4")))
        outcome = town.finish(
            town.begin(
                4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(2).context.address)
            )
        )
        assert outcome.error is None and behind.log.state.epoch == town.newest.epoch
        assert len(town.logged("metadata.fetch_damaged", "n4")) == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_peer_with_another_history_is_refused_when_the_voters_confirm_ours(known: bool) -> None:
    """Whether the foreign entry is at an epoch the node has (`known`) or its history ends before that."""
    with Town() as town:
        behind = with_a_node_behind(town)
        epoch = behind.log.state.epoch

        def forge(reply: LogEntries) -> LogEntries:
            history = town.node(1).log.state.entries
            return LogEntries(reply.epoch, forged_history(history, epoch)[0 if known else 1 :])

        asked = serve_with(town, 1, forge)
        town.begin(4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(1).context.address))
        town.until(lambda: bool(town.logged("metadata.fork_refused", "n4")))
        assert town.logged("metadata.fork_refused", "n4")[0]["confirmed"]
        assert behind.log.histories.forks_seen == 1 and behind.ready and behind.log.state.epoch == epoch
        outcome = town.finish(
            town.begin(
                4, lambda node: node.log.catch_up.reach(town.newest.epoch, town.node(2).context.address)
            )
        )
        assert outcome.error is None and behind.log.state.epoch == town.newest.epoch and len(asked) == 1


def mislead(town: Town, number: int, count: int) -> None:
    """Make a node apply an entry that nobody else has."""
    node = town.node(number)
    entries = town.node(1).log.state.entries
    wrong = forged_history(entries, node.log.state.epoch + 1)[:count]
    town.world.monitors.clear()  # the checker of one history would see it at once

    async def apply(own: Node) -> None:
        own.log.state.offer(wrong)
        await own.log.state.wait_for(wrong[-1].epoch)

    assert town.finish(town.begin(number, apply)).error is None


def test_a_node_whose_history_a_majority_contradicts_stops_serving_and_says_why() -> None:
    with Town() as town:
        behind = with_a_node_behind(town)
        mislead(town, 4, 2)
        newest = town.node(1).log.state.epoch
        town.begin(4, lambda node: node.log.catch_up.reach(newest, town.node(1).context.address))
        town.until(lambda: "n4" in town.ended)
        assert isinstance(town.ended["n4"], CannotApply) and "majority" in str(town.ended["n4"])
        assert behind.log.state.epoch < newest
        assert (
            not behind.ready and town.logged("node.broken", "n4") and town.logged("metadata.fork_lost", "n4")
        )


def test_without_a_majority_a_node_keeps_its_history_and_refuses_the_peer() -> None:
    with Town() as town:
        behind = with_a_node_behind(town)
        mislead(town, 4, 2)
        town.process(2).crash()
        town.process(3).crash()
        newest = town.node(1).log.state.epoch
        town.begin(4, lambda node: node.log.catch_up.reach(newest, town.node(1).context.address))
        town.until(lambda: bool(town.logged("metadata.fork_refused", "n4")))
        assert not town.logged("metadata.fork_refused", "n4")[0]["confirmed"]
        assert "n4" not in town.ended and behind.ready


def test_an_announcement_of_another_history_is_noticed() -> None:
    with Town() as town:
        behind = with_a_node_behind(town)

        async def announce(node: Node) -> None:
            node.context.internode.send(behind.context.address, verbs.ANNOUNCE, Announce(2, b"x" * 32))

        town.finish(town.begin(2, announce))
        town.until(lambda: bool(town.logged("metadata.fork_refused", "n4")))
        assert behind.ready and behind.log.histories.forks_seen == 1


def test_a_voter_whose_metadata_log_is_older_than_its_raft_log_gets_back_to_the_same_history() -> None:
    with Town() as town:
        town.found()
        grow(town, 3)
        town.agreed(1, 2, 3)
        file = town.process(2).disk.file("metadata/log-000000000001")
        short = len(file.durable)
        grow_more = [town.finish(town.submit(1, keyspace(f"later{number}"))) for number in range(4)]
        assert all(outcome.error is None for outcome in grow_more)
        town.agreed(1, 2, 3)
        town.process(2).crash()
        for content in (file.durable, file.cache):
            del content[short:]
        town.log.forget("n2")
        town.start(2)
        town.until(lambda: town.ready(2))
        town.agreed(1, 2, 3)
        assert [e.hash for e in town.node(2).log.state.entries] == [
            e.hash for e in town.node(1).log.state.entries
        ]


def test_a_voter_whose_raft_log_contradicts_its_metadata_log_does_not_serve() -> None:
    with Town() as town:
        town.found()
        grow(town, 2)
        town.agreed(1, 2, 3)
        with Town(seed=99) as other:
            other.found()
            grow(other, 2)
            foreign = bytes(other.process(2).disk.file("metadata/log-000000000001").durable)
        town.process(2).crash()
        file = town.process(2).disk.file("metadata/log-000000000001")
        file.durable[:] = file.cache[:] = foreign
        town.log.forget("n2")
        town.world.monitors.clear()
        town.start(2)
        town.until(lambda: "n2" in town.ended)
        assert not town.nodes["n2"].ready


def test_waits_for_an_epoch_are_counted_also_those_in_vain() -> None:
    with Town() as town:
        node = with_a_node_behind(town)
        catch_up, source = node.log.catch_up, town.node(1).context.address
        epoch = town.node(1).log.state.epoch

        async def wait(epoch: int) -> None:
            await catch_up.reach(epoch, source, 2000)

        had, had_ms = sum(catch_up.waits.counts), catch_up.waits.total_ms
        assert town.finish(town.begin(4, lambda _node: wait(epoch))).error is None
        assert sum(catch_up.waits.counts) == had + 1 and had_ms < catch_up.waits.total_ms < had_ms + 2000
        assert town.finish(town.begin(4, lambda _node: wait(epoch))).error is None
        assert sum(catch_up.waits.counts) == had + 1, "who has the epoch does not wait"
        assert town.finish(town.begin(4, lambda _node: wait(epoch + 1))).error is not None
        assert sum(catch_up.waits.counts) == had + 2 and catch_up.waits.total_ms >= had_ms + 2000
