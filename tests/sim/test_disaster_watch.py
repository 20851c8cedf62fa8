"""What is checked while lost groups are repaired: each invariant is shown to fail by what contradicts it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import IDENTITY, LINEAGE, Identity, Reset
from lockstep.metadata.groups.management import EMPTY_STATE, GENESIS, Link, Repair, link_hash
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.disasters.run import PLACES, ROLES, DisasterRun
from lockstep.sim.disasters.watch import DisasterWatch
from lockstep.sim.runner import run_of
from tests.metadata.histories import History, registry


def value(epoch: int, hash_: bytes, *repairs: Reset) -> ClusterMetadata:
    made = History(registry()).now
    lineage = ("a", *(one.cluster_id for one in repairs))
    made = made.changed(IDENTITY.set(Identity(lineage[-1], "test", lineage)), LINEAGE.set(repairs))
    return msgspec.structs.replace(made, epoch=epoch, hash=hash_)


def applied(watch: DisasterWatch, name: str, cluster: ClusterMetadata) -> None:
    watch(0, f"{name}.1", "metadata.applied", {"cluster": cluster})


def reset(cluster_id: str, epoch: int, hash_: bytes) -> Reset:
    return Reset(cluster_id, "reset", "ann", epoch, hash_, 1)


def test_two_entries_at_one_epoch_of_one_id_are_found() -> None:
    watch = DisasterWatch()
    applied(watch, "n1", value(3, b"x"))
    applied(watch, "n2", value(3, b"x"))
    with pytest.raises(Violation, match="another entry at epoch 3"):
        applied(watch, "n3", value(3, b"y"))


def test_another_history_under_another_id_is_none() -> None:
    watch = DisasterWatch()
    applied(watch, "n1", value(4, b"x"))
    applied(watch, "n2", value(4, b"y", reset("b", 3, b"w")))


def test_a_node_that_goes_back_is_found() -> None:
    watch = DisasterWatch()
    applied(watch, "n1", value(4, b"x"))
    with pytest.raises(Violation, match="went back"):
        applied(watch, "n1", value(3, b"w"))


def test_a_repair_that_continues_another_history_is_found() -> None:
    watch = DisasterWatch()
    applied(watch, "n1", value(3, b"x"))
    applied(watch, "n2", value(3, b"x"))
    applied(watch, "n3", value(4, b"z", reset("b", 3, b"x")))
    applied(watch, "n1", value(4, b"z", reset("b", 3, b"x")))
    applied(watch, "n2", value(4, b"y"))
    with pytest.raises(Violation, match="continues another history"):
        applied(watch, "n2", value(5, b"q", reset("b", 3, b"x")))


def test_two_stories_of_one_repair_are_found() -> None:
    watch = DisasterWatch()
    applied(watch, "n1", value(4, b"z", reset("b", 3, b"x")))
    with pytest.raises(Violation, match="tells otherwise"):
        applied(watch, "n2", value(5, b"q", reset("b", 2, b"x")))


def test_two_management_histories_are_found() -> None:
    watch = DisasterWatch()
    link = Link("a", Repair(), GENESIS, link_hash("a", Repair(), GENESIS))
    state = msgspec.structs.replace(EMPTY_STATE, index=4, hash=b"x" * 32, lineage=(link,))
    watch(0, "n1.1", "management.applied", {"state": state})
    with pytest.raises(Violation, match="another command 4"):
        other = msgspec.structs.replace(state, hash=b"y" * 32)
        watch(0, "n2.1", "management.installed", {"state": other})


@pytest.mark.parametrize(
    ("event", "facts", "found"),
    [
        ("recovery.applied", {"cluster": "b"}, "began anew under b twice"),
        ("node.ended", {"error": "metadata is corrupt at byte 0"}, "is corrupt"),
    ],
)
def test_a_second_wipe_and_damage_are_found(event: str, facts: dict[str, Any], found: str) -> None:
    watch = DisasterWatch()
    if event != "node.ended":
        watch.logged("n1", event, facts)
        watch.logged("n2", event, facts)
    with pytest.raises(Violation, match=found):
        watch.logged("n1", event, facts)


def test_consecutive_seeds_strike_everybody_at_every_record() -> None:
    struck = {(PLACES[seed % len(PLACES)], ROLES[seed // len(PLACES) % len(ROLES)]) for seed in range(30)}
    assert struck == {(place, role) for place in PLACES for role in ROLES}


def test_one_seed_is_one_run() -> None:
    first = run_of("disasters", 5).result()
    told = DisasterRun(5, trace=True)
    assert told.result().digest == first.digest and told.story
