"""Snapshots, truncation and unknown kinds on whole nodes."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.extensions import EXTENSIONS
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.transformations import SetExtension
from lockstep.node import kinds
from lockstep.node.configuration import Configuration, MetadataSection
from lockstep.node.node import Node
from lockstep.values.errors import CannotApply, Rejected
from tests.node.support import Town, leave


class SnapshotTown(Town):
    """Nodes that take a snapshot every `every` epochs and keep few entries."""

    def __init__(self, every: int = 8, retain: int = 4, every_bytes: int = 0) -> None:
        super().__init__()
        self.section = MetadataSection(
            snapshot_every_epochs=every, retain_entries=retain, snapshot_every_bytes=every_bytes
        )

    def configuration(self, name: str) -> Configuration:
        return msgspec.structs.replace(super().configuration(name), metadata=self.section)


def grow(town: Town, count: int, through: int = 1) -> None:
    for number in range(count):
        outcome = town.submit(through, SetExtension(f"name-{number % 5}", str(number).encode()))
        assert town.finish(outcome).error is None


def snapshot_epochs(town: Town) -> list[int]:
    epochs = [value.service.snapshot_epoch for value in town.log.values]
    return sorted(set(epochs) - {0})


def test_the_leader_asks_for_one_snapshot_each_interval_and_nodes_drop_what_it_holds() -> None:
    with SnapshotTown() as town:
        town.found()
        grow(town, 40)
        town.wait(1.0)
        town.agreed(1, 2, 3)
        taken = snapshot_epochs(town)
        distances = [after - before for before, after in zip([0, *taken], taken, strict=False)]
        assert len(taken) >= 4 and min(distances) >= 8, taken
        for number in (1, 2, 3):
            state = town.node(number).log.state
            latest = state.latest_snapshot()
            assert latest is not None and latest.epoch == taken[-1]
            assert state.first_epoch >= taken[-3]
            assert state.first_epoch > 1
        digests = {town.node(n).log.state.latest_snapshot().digest for n in (1, 2, 3)}  # type: ignore[union-attr]
        assert len(digests) == 1


def test_a_snapshot_is_also_due_by_size_and_a_new_leader_asks_for_one_that_is_due() -> None:
    with SnapshotTown(every=0, every_bytes=2000) as town:
        town.found()
        grow(town, 30)
        town.wait(1.0)
        assert 1 <= len(snapshot_epochs(town)) <= 4
        reasons = {entry.body for entry in town.node(1).log.state.entries if entry.kind in SNAPSHOT_KINDS}
        assert all(b"2000 bytes" in body for body in reasons)
    with SnapshotTown(every=0) as town:
        town.found()
        grow(town, 12)
        town.wait(1.0)
        assert snapshot_epochs(town) == []
        town.section = MetadataSection(snapshot_every_epochs=8)
        for number in (1, 2, 3):
            town.process(number).crash()
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.until(lambda: len(snapshot_epochs(town)) == 1, limit_s=10.0)


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_node_comes_back_from_its_snapshot_and_a_retried_id_gets_the_first_epoch(kind: str) -> None:
    with SnapshotTown() as town:
        town.found()
        entry_id = b"0123456789abcdef"
        first = town.finish(town.submit(1, SetExtension("mine", b"1"), entry_id=entry_id, base_epoch=1)).value
        grow(town, 30)
        town.wait(1.0)
        assert town.node(1).log.state.first_epoch > first
        for number in (1, 2, 3):
            town.process(number).crash(kind)
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        again = town.finish(town.submit(2, SetExtension("mine", b"1"), entry_id=entry_id, base_epoch=1))
        assert again.error is None and again.value == first
        grow(town, 3)
        town.agreed(1, 2, 3)


def test_a_newcomer_joins_although_the_first_entries_are_gone() -> None:
    with SnapshotTown() as town:
        town.found()
        grow(town, 30)
        town.wait(1.0)
        assert town.node(1).log.state.first_epoch > 1
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        assert state_digest(town.node(4).log.cluster) == state_digest(town.node(1).log.cluster)


def test_a_newcomer_joins_although_voters_that_the_last_snapshot_names_have_left() -> None:
    with SnapshotTown(every=0) as town:
        town.found()
        for _ in range(2):
            grow(town, 12)
            assert town.finish(town.submit(1, TakeSnapshot("test"))).error is None
        for leaving in (3, 2):
            assert town.finish(town.submit(1, leave(town.node(leaving).context.own_id()))).error is None
            town.until(lambda at=leaving: f"n{at}" in town.ended)  # type: ignore[misc]
            town.process(leaving).crash("kill")
        town.wait(1.0)
        assert town.node(1).log.state.first_epoch > 1, "a newcomer cannot begin with the first entry"
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 4)


def test_a_truncation_is_applied_by_every_node_and_refused_beyond_the_latest_snapshot() -> None:
    with SnapshotTown(every=0, retain=1000) as town:
        town.found()
        grow(town, 5)
        refused = town.finish(town.submit(1, TruncateLog(3)))
        assert isinstance(refused.error, Rejected)
        taken = town.finish(town.submit(2, TakeSnapshot("asked for"))).value
        assert town.finish(town.submit(3, TruncateLog(taken))).error is None
        town.wait(1.0)
        for number in (1, 2, 3):
            assert town.node(number).log.state.first_epoch == taken
        grow(town, 3)
        town.agreed(1, 2, 3)


class Unheard(msgspec.Struct, frozen=True, array_like=True):
    """A kind that one node's version does not know."""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return cluster.changed(EXTENSIONS.set(cluster.extensions.insert("unheard", b"1")))


def knowing(*tables: dict[int, type]) -> Registry:
    everything = kinds.every_kind()
    for table in tables:
        for kind, found in table.items():
            everything._decoders[kind] = msgspec.msgpack.Decoder(found)
            everything._kinds[found] = kind
    return everything


def test_a_node_that_does_not_know_a_kind_stops_says_why_and_goes_on_after_an_upgrade() -> None:
    with Town() as town:
        old: list[str] = ["n3"]

        def prepare(name: str, node: Node) -> None:
            if name not in old:
                newer = knowing({3000: Unheard})
                node.log.registry._decoders.update(newer._decoders)
                node.log.registry._kinds.update(newer._kinds)

        town.prepare = prepare
        town.found()
        town.agreed(1, 2, 3)
        before = town.node(3).log.state.epoch
        leader = town.leader()
        through = leader if leader != 3 else 1
        outcome = town.finish(town.submit(through, Unheard()))
        if leader == 3:
            # The leader itself does not know the kind: it refuses, and nothing is in the log.
            assert isinstance(outcome.error, Rejected) and "not known" in outcome.error.message
            return
        assert outcome.error is None
        town.until(lambda: "n3" in town.ended)
        why = town.ended["n3"]
        assert isinstance(why, CannotApply) and "3000" in why.message and why.hint == "upgrade this node"
        assert town.logged("node.broken", "n3")
        assert town.node(3).log.state.epoch == before and not town.node(3).ready
        grow(town, 3, through)
        town.process(3).crash()
        town.start(3)
        town.until(lambda: "n3" in town.ended)
        assert isinstance(town.ended["n3"], CannotApply)
        old.clear()
        town.process(3).crash()
        town.start(3)
        town.until(lambda: town.ready(3))
        town.agreed(1, 2, 3)
        assert town.node(3).log.cluster.extensions.get("unheard") == b"1"


def test_the_snapshot_kinds_are_known_to_every_node() -> None:
    registry = kinds.every_kind()
    for kind in SNAPSHOT_KINDS:
        assert registry.since(kind) == 1
