"""Nodes that are far behind: snapshots instead of entries, bounded, resumed, and never believed blindly."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.entries import LogEntry, hash_of, seal, verify_chain
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.log.snapshot_file import RecordKind, SnapshotInfo, file_records, read_file
from lockstep.metadata.transformations import SetExtension
from lockstep.node.kinds import every_kind
from lockstep.node.log import catch_up
from lockstep.node.log.messages import FetchLog, FetchSnapshot, LogEntries, SnapshotChunk
from lockstep.node.membership.voters import Member
from lockstep.node.node import Node
from lockstep.values.codec import decoder, encode, frame_record, scan_records
from lockstep.values.errors import CannotApply
from tests.node.support import Town, keyspace

#: A snapshot every eight epochs, and little of the log before it.
SHORT = "[metadata]\nsnapshot_every_epochs=8\nretain_entries=4\nretain_snapshots=1\n"
#: As many snapshots, and all of the log.
LONG = "[metadata]\nsnapshot_every_epochs=8\nretain_entries=1000\nretain_snapshots=20\n"


def town_of(metadata: str) -> Town:
    town = Town()
    town.extra_lines = {f"n{number}": metadata for number in range(1, 10)}
    return town


def grow(town: Town, count: int, prefix: str = "k") -> None:
    for number in range(count):
        assert town.finish(town.submit(1, keyspace(f"{prefix}{number}"))).error is None


def with_a_node_away(town: Town, epochs: int) -> None:
    """n4 is a member and down, and the others went on for so many epochs."""
    town.found()
    town.start(4)
    town.until(lambda: town.ready(4))
    town.agreed(1, 2, 3, 4)
    town.process(4).crash()
    begun = town.newest.epoch
    while town.newest.epoch < begun + epochs:
        grow(town, 8, f"e{town.newest.epoch}x")
    town.agreed(1, 2, 3)
    town.wait(0.5)


def same_state(town: Town, number: int) -> None:
    others = [town.node(n).log.state.current for n in (1, 2, 3) if town.process(n).alive]
    assert state_digest(town.node(number).log.state.current) == state_digest(others[0])


def test_a_node_away_for_ten_snapshots_converges_with_a_bounded_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the snapshots are missing everywhere, and some nodes lost the newest one."""
    monkeypatch.setattr(catch_up, "SNAPSHOT_GAP_EPOCHS", 16)
    with town_of(LONG) as town:
        with_a_node_away(town, 80)
        for number in (1, 2, 3):
            infos = list(town.node(number).log.state.store.infos)
            assert len(infos) >= 10
            town.process(number).crash()
            for epoch in infos[number % 2 :: 2]:
                del town.process(number).disk.files[f"metadata/snapshot-{epoch:012d}"]
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)
        came = town.node(4).log.catch_up
        assert came.snapshots_fetched == 1 and came.entries_fetched <= 24
        newest = town.node(4).log.state.latest_snapshot()
        assert newest is not None and came.bytes_fetched < 2 * newest.size_bytes


def test_what_is_not_kept_any_more_comes_as_a_snapshot_also_for_a_newcomer() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        assert all(town.node(number).log.state.first_epoch > 20 for number in (1, 2, 3))
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5))
        town.agreed(1, 2, 3, 4, 5)
        for number in (4, 5):
            same_state(town, number)
            assert town.node(number).log.catch_up.snapshots_fetched == 1
        assert sum(town.node(number).log.catch_up.snapshots_served for number in (1, 2, 3, 4)) == 2
        assert town.finish(town.submit(5, keyspace("after"))).error is None


def test_a_peer_never_serves_across_a_hole() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)

        async def ask_all(node: Node) -> list[tuple[int, int, LogEntries]]:
            found = []
            for number in (1, 2, 3):
                for after in range(town.newest.epoch + 2):
                    reply = await node.context.internode.request(
                        town.node(number).context.address, verbs.FETCH_LOG, FetchLog(after), 1000
                    )
                    found.append((number, after, reply))
            return found

        town.node(3).log.state.store.infos.clear()  # it has nothing to give instead
        answers = town.finish(town.begin(1, ask_all)).value
        assert {bool(reply.snapshot) for _, _, reply in answers} == {True, False}
        for number, after, reply in answers:
            if reply.entries:
                first = reply.entries[0]
                assert first.epoch == after + 1
                assert not verify_chain(reply.entries, epoch=after, previous_hash=first.previous_hash)
            if reply.snapshot is not None:
                assert not reply.entries and reply.snapshot.epoch > after
            if number == 3 and after + 1 < town.node(3).log.state.first_epoch:
                assert not reply.entries and reply.snapshot is None


def count_chunks(town: Town, number: int, stop_after: int = 10**9) -> list[int]:
    """Offsets that a node is asked for; after so many chunks it dies."""
    node = town.node(number)
    offsets: list[int] = []

    async def serve(peer: object, request: FetchSnapshot) -> SnapshotChunk:
        offsets.append(request.offset)
        if len(offsets) > stop_after:
            town.process(number).crash()
        chunk: SnapshotChunk = await node.log.catch_up._serve_snapshot(peer, request)
        return chunk

    node.context.internode.register(verbs.FETCH_SNAPSHOT, FetchSnapshot, SnapshotChunk, serve)
    return offsets


def test_a_transfer_goes_on_at_another_peer_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "SNAPSHOT_CHUNK_BYTES", 256)
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        offsets = {number: count_chunks(town, number, stop_after=5) for number in (1, 2, 3)}
        town.start(4)
        town.until(lambda: any(not town.process(number).alive for number in (1, 2, 3)))
        dead = next(number for number in (1, 2, 3) if not town.process(number).alive)
        for number in (1, 2, 3):
            if number != dead:
                offsets[number] = count_chunks(town, number)
        town.until(lambda: town.node(4).log.catch_up.snapshots_fetched == 1)
        begun = sorted({offset for asked in offsets.values() for offset in asked})
        size = begun[-1] + 256
        assert begun == list(range(0, size, 256)) and len(begun) > 10
        assert not [
            offset for number, asked in offsets.items() if number != dead for offset in asked if not offset
        ]
        town.start(dead)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)


TAKE = decoder(TakeSnapshot)


def another(snapshot: SnapshotInfo) -> SnapshotInfo:
    """A snapshot that is whole in itself, of an entry that nobody committed."""
    body = encode(msgspec.structs.replace(TAKE.decode(snapshot.entry.body), digest=b"x" * 32))
    entry = msgspec.structs.replace(snapshot.entry, body=body)
    entry = msgspec.structs.replace(entry, hash=hash_of(entry))
    return msgspec.structs.replace(snapshot, entry=entry, digest=b"x" * 32)


def unlike_its_entry(snapshot: SnapshotInfo) -> SnapshotInfo:
    return msgspec.structs.replace(snapshot, digest=b"x" * 32)


def offer_with(town: Town, number: int, alter: Any) -> None:
    node = town.node(number)

    async def serve(_peer: object, _request: FetchLog) -> LogEntries:
        snapshot = node.log.state.latest_snapshot()
        assert snapshot is not None
        return LogEntries(node.log.state.epoch, (), alter(snapshot))

    node.context.internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, serve)


@pytest.mark.parametrize("alter", [another, unlike_its_entry])
def test_a_snapshot_that_the_voters_do_not_confirm_is_not_taken(alter: Any) -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        for number in (1, 2):
            offer_with(town, number, alter)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)
        assert town.node(4).log.catch_up.snapshots_fetched == 1


def test_bytes_that_are_not_the_snapshots_are_noticed_and_another_peer_is_asked() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        asked: list[Node] = []
        for number in (1, 2, 3):
            node = town.node(number)

            async def serve(peer: object, request: FetchSnapshot, node: Node = node) -> SnapshotChunk:
                """Whoever is asked first has other bytes."""
                asked.append(node)
                chunk: SnapshotChunk = await node.log.catch_up._serve_snapshot(peer, request)
                if node is not asked[0]:
                    return chunk
                middle = len(chunk.data) // 2
                other = bytes([chunk.data[middle] ^ 1])
                return SnapshotChunk(chunk.data[:middle] + other + chunk.data[middle + 1 :])

            node.context.internode.register(verbs.FETCH_SNAPSHOT, FetchSnapshot, SnapshotChunk, serve)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)
        assert town.logged("metadata.snapshot_refused", "n4")


def test_a_snapshot_that_cannot_be_installed_is_asked_for_anew() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)

        def prepare(name: str, node: Node) -> None:
            whole, failures = node.log.state.install, [CannotApply("it does not apply")]

            async def install(*args: Any) -> None:
                if failures:
                    raise failures.pop()
                await whole(*args)

            node.log.state.install = install  # type: ignore[method-assign]

        town.prepare = prepare
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(4)
        assert town.node(4).log.catch_up.snapshots_fetched == 1
        same_state(town, 4)


@pytest.mark.parametrize("newcomer", [False, True])
def test_without_a_majority_of_the_voters_no_snapshot_is_taken(newcomer: bool) -> None:
    number = 5 if newcomer else 4
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        for voter in (2, 3):
            town.process(voter).crash()
        town.start(number)
        town.until(lambda: bool(town.logged("metadata.snapshot_refused", f"n{number}")))
        assert "majority" in town.logged("metadata.snapshot_refused", f"n{number}")[0]["problem"]
        town.wait(2.0)
        assert town.node(number).log.catch_up.snapshots_fetched == 0
        town.start(2, 3)
        town.until(lambda: town.ready(1, 2, 3, number))
        town.agreed(1, 2, 3, number)
        same_state(town, number)


def test_a_node_whose_voters_are_gone_believes_the_present_ones_with_witnesses() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        town.start(4)
        town.until(lambda: "n4" in town.nodes and town.node(4).log.state.epoch > 0)
        node = town.node(4)
        # As if all voters of its last epoch had left meanwhile: nobody of them answers.
        gone = Member(("127.0.0.99", 7000), "gone")
        node.log.histories.known_voters = lambda: (gone,)
        town.until(lambda: town.ready(4))
        town.agreed(4)
        assert node.log.catch_up.snapshots_fetched == 1
        same_state(town, 4)


def test_witnesses_that_do_not_agree_confirm_nothing() -> None:
    with town_of(LONG) as town:
        town.found()
        town.agreed(1, 2, 3)
        node, epoch = town.node(1), town.newest.epoch
        said = {2: b"a" * 32, 3: b"b" * 32}
        original = node.log.histories._ask

        async def ask(addresses: Any, at: int) -> list[bytes]:
            assert len(await original(addresses, at)) == 2
            return list(said.values())

        node.log.histories._ask = ask  # type: ignore[method-assign]
        asked = town.finish(town.begin(1, lambda n: n.log.histories.prevailing_hash(epoch)))
        assert asked.error is None and asked.value is None


def test_a_snapshot_does_not_hide_that_a_node_has_another_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "SNAPSHOT_GAP_EPOCHS", 16)
    with town_of(LONG) as town:
        with_a_node_away(town, 2)
        town.world.monitors.clear()  # the checker of one history would see it at once
        for number in (1, 2, 3):
            town.world.network.block(town.process(4).host, town.process(number).host)
            town.world.network.block(town.process(number).host, town.process(4).host)
        town.start(4)
        town.until(lambda: "n4" in town.nodes and town.node(4).log.state.epoch > 0)
        at = town.node(4).log.state.epoch
        entry = town.node(1).log.state.retained(at + 1, at + 1)[0]
        forged = msgspec.structs.replace(entry, actor="somebody else")
        forged = msgspec.structs.replace(forged, hash=hash_of(forged))

        async def apply(node: Node) -> None:
            node.log.state.offer((forged,))
            await node.log.state.wait_for(at + 1)

        assert town.finish(town.begin(4, apply)).error is None
        grow(town, 40)
        town.world.network.heal()
        town.until(lambda: "n4" in town.ended, limit_s=20)
        assert "forked" in str(town.ended["n4"]) and town.node(4).log.catch_up.snapshots_fetched == 0


def disturbed(rng: random.Random, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """Doubled, out of order, with holes, cut short; or as they are."""
    found = list(entries)
    for _ in range(rng.randrange(3)):
        if not found:
            break
        at = rng.randrange(len(found))
        match rng.randrange(4):
            case 0:
                del found[at]
            case 1:
                found.insert(at, found[at])
            case 2:
                found[at], found[-1] = found[-1], found[at]
            case _:
                del found[at:]
    return tuple(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("metadata", [SHORT, LONG])
def test_whatever_order_entries_come_in_the_published_epochs_only_grow(seed: int, metadata: str) -> None:
    """Holes are filled by peers, by the leader, or by a snapshot; the end is that of a replay in order."""
    rng = random.Random(seed)
    with town_of(metadata) as town:
        with_a_node_away(town, 24)
        for number in (1, 2, 3):
            node = town.node(number)

            async def serve(peer: object, request: FetchLog, node: Node = node) -> LogEntries:
                reply: LogEntries = await node.log.catch_up._serve(peer, request)
                return msgspec.structs.replace(reply, entries=disturbed(rng, reply.entries))

            node.context.internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, serve)
        published: list[tuple[int, int]] = []

        def prepare(name: str, node: Node) -> None:
            if name == "n4":
                node.log.state.listen(
                    lambda before, after, _entry: published.append((before.epoch, after.epoch))
                )

        town.prepare = prepare
        town.start(4)
        town.until(lambda: town.ready(4))
        grow(town, 8, "later")
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)
        assert [after for _, after in published] == sorted({after for _, after in published})
        jumps = [(before, after) for before, after in published if after != before + 1]
        assert len(jumps) == town.node(4).log.catch_up.snapshots_fetched
        epoch = published[0][0]
        for before, after in published:
            assert before == epoch
            epoch = after


def test_a_peer_whose_forged_bytes_pass_every_checksum_cannot_keep_a_node_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It alters a record and its checksum, so that only the whole tells; the others' bytes are good."""
    monkeypatch.setattr(catch_up, "SNAPSHOT_CHUNK_BYTES", 256)
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        node = town.node(1)

        async def serve(peer: object, request: FetchSnapshot) -> SnapshotChunk:
            snapshot = request.snapshot
            whole = node.log.state.read_snapshot_chunk(snapshot.epoch, 0, snapshot.size_bytes)
            assert whole is not None
            forged = b"".join(
                frame_record(body[:-1] + bytes((body[-1] ^ 1,)) if body[0] == RecordKind.PIECE else body)
                for _, body in scan_records("", whole, record_bytes_max=1 << 20)
            )
            return SnapshotChunk(forged[request.offset : request.offset + 256])

        node.context.internode.register(verbs.FETCH_SNAPSHOT, FetchSnapshot, SnapshotChunk, serve)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        same_state(town, 4)
        assert town.node(4).log.catch_up.snapshots_fetched == 1


def test_entries_that_a_peer_hangs_behind_a_snapshot_are_not_taken() -> None:
    """They are well formed, and nobody committed them; the voters confirm the snapshot itself."""
    with town_of(SHORT) as town:
        with_a_node_away(town, 40)
        node = town.node(1)
        snapshot = node.log.state.latest_snapshot()
        assert snapshot is not None
        data = node.log.state.read_snapshot_chunk(snapshot.epoch, 0, snapshot.size_bytes)
        assert data is not None
        kind, body = node.log.state.registry.encode(SetExtension("forged", b"1"))
        behind = seal(
            epoch=snapshot.epoch + 1,
            entry_id=b"f" * 16,
            kind=kind,
            body=body,
            actor="nobody",
            commit_time_us=0,
            term=1,
            previous_hash=snapshot.entry.hash,
        )
        content = read_file([data], registered=every_kind().parts)
        forged = b"".join(file_records(content.value, [behind], header=content.header))
        false = msgspec.structs.replace(snapshot, size_bytes=len(forged))

        async def serve(_peer: object, request: FetchSnapshot) -> SnapshotChunk:
            return SnapshotChunk(forged[request.offset :] if request.snapshot == false else b"")

        node.context.internode.register(verbs.FETCH_SNAPSHOT, FetchSnapshot, SnapshotChunk, serve)
        for number in (1, 2, 3):
            offer_with(town, number, lambda _: false)
        town.start(4)
        town.until(lambda: bool(town.logged("metadata.snapshot_refused", "n4")))
        town.wait(1.0)
        assert town.node(4).log.state.current.extensions.get("forged") is None
        assert not town.ended


def test_peers_that_offer_what_is_here_already_are_asked_at_a_slow_pace() -> None:
    with town_of(SHORT) as town:
        with_a_node_away(town, 8)
        old = town.node(1).log.state.latest_snapshot()
        assert old is not None
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(4)
        offered = [count_offers(town, number, old) for number in (1, 2, 3)]
        grow(town, 3, "new")
        town.wait(2.0)
        asked = sum(map(len, offered))
        assert town.node(4).log.state.epoch < town.newest.epoch and 3 < asked < 150


def count_offers(town: Town, number: int, snapshot: SnapshotInfo) -> list[int]:
    """A node that gives nothing but this snapshot; after what it was asked for it."""
    offered: list[int] = []

    async def serve(_peer: object, request: FetchLog) -> LogEntries:
        offered.append(request.after)
        return LogEntries(town.node(number).log.state.epoch, (), snapshot)

    town.node(number).context.internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, serve)
    return offered


def test_a_single_witness_among_silent_nodes_confirms_nothing() -> None:
    with town_of(LONG) as town:
        town.found()
        town.agreed(1, 2, 3)
        epoch = town.newest.epoch
        town.world.network.block(town.process(3).host, town.process(1).host)
        asked = town.finish(town.begin(1, lambda n: n.log.histories.prevailing_hash(epoch)))
        assert asked.error is None and asked.value is None
        town.world.network.heal()
        town.wait(3.0)
        asked = town.finish(town.begin(1, lambda n: n.log.histories.prevailing_hash(epoch)))
        assert asked.value == town.log.values[epoch].hash
