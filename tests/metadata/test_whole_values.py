"""A value with something in every part: all of it is stored, comes back, and counts in the digest."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lockstep.metadata.access.roles import ACCESS, Role, access_of
from lockstep.metadata.cdc import GENERATIONS, Generation, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.directory import (
    EXCLUDED,
    FEATURE_STATE,
    IDENTITY,
    LINEAGE,
    Exclusion,
    FeatureState,
    Reset,
)
from lockstep.metadata.groups.ringed import QUORUM, RINGED, Ringed
from lockstep.metadata.groups.service import MANAGEMENT_PLACE, SERVICE, ManagementPlace
from lockstep.metadata.loads import LOADS, Load, Loads, LoadState
from lockstep.metadata.log.apply import part_digests, state_digest
from lockstep.metadata.log.recent_ids import RecentIds, no_recent_ids
from lockstep.metadata.repairs import (
    REPAIRS,
    Repair,
    Repaired,
    RepairPart,
    Repairs,
    RepairState,
    TableRepairs,
)
from lockstep.metadata.requests import REQUESTS, RequestState
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema
from lockstep.metadata.transformations import SetExtension
from lockstep.metadata.transitions import TRANSITIONS, transitions_of
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import simple, started
from tests.metadata.stored import as_stored, from_stored, stored
from tests.metadata.test_log import register

replace: Callable[..., Any] = msgspec.structs.replace


def rich() -> ClusterMetadata:
    made = started([(0,), (100,), (200,)], ("one", simple(1)), ("two", simple(2)))
    for number in (7, 8):
        made.submit(register(number))
    made.submit(PrepareOperation(Bootstrap(NodeId(4), (50, 70))))
    for node in (2, 3):
        made.submit(EnqueueRequest(Decommission(NodeId(node)), actor="test"))
    made.submit(SetExtension("tool", b"says"))
    replication = (("class", "NetworkTopologyStrategy"), ("dc1", "2"))
    made.submit(ChangeSchema(CreateKeyspace("three", replication, tablets=(("initial", "4"),))))
    key = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)
    on = (("cdc", (("enabled", "true"),)),)
    table = CreateTable("three", "t", "00000000-0000-0000-0000-000000000003", (key,), on)
    made.submit(ChangeCaptured(ChangeSchema(table), 9_000))
    value = made.now
    ended = value.requests.with_ended(3, RequestState.CANCELLED, "why", 9)
    part = RepairPart("one", 1, (7,), (Range(0, 10),))
    running = Repair(4, NodeId(1), (part,), (NodeId(1),), True, 100, 1, 9)
    identity, repair = value.identity, Reset("other", "reset", "ann", 5, b"hash", 1_000, "nothing")
    return value.changed(
        IDENTITY.set(replace(identity, lineage=(*identity.lineage, "other"))),
        LINEAGE.set((repair,)),
        RINGED.set(Ringed(QUORUM)),
        MANAGEMENT_PLACE.set(ManagementPlace((NodeId(1), NodeId(2), NodeId(4)))),
        REQUESTS.set(ended),
        SERVICE.set(replace(value.service, leaving=(NodeId(3),))),
        EXCLUDED.set((Exclusion(NodeId(5), 8, "its disk is suspect"),)),
        DEGRADED.set((Degraded(2, Range(0, 10), 7, (NodeId(2),), (NodeId(3),), ("two",)),)),
        FEATURE_STATE.set(FeatureState(("a", "b"), 4)),
        GENERATIONS.set((*value.generations, Generation(9_000, "id", 1, 8, packed(array("q", [5, 6]))))),
        REPAIRS.set(
            Repairs(
                (running,),
                (replace(running, id=3, state=RepairState.FAILED, reason="why", ended_epoch=9, ended_s=120),),
                (TableRepairs(7, (Repaired(Range(0, 10), 100, 90, 8),)),),
                5,
            )
        ),
        LOADS.set(
            Loads(
                (Load("a", "three", "t", 1, 2, 1, 1_000, 3, 4_000),),
                (
                    Load(
                        "b",
                        "three",
                        "t",
                        1,
                        2,
                        5,
                        1_000,
                        3,
                        4_000,
                        True,
                        LoadState.ABORTED,
                        b"d",
                        1,
                        2,
                        9,
                        "why",
                        7,
                    ),
                ),
            )
        ),
        ACCESS.set(
            access_of(
                [Role("ann", True, True, "$2a$", ("dc1",)), Role("bob", member_of=("ann",))], []
            ).with_grant("bob", "data", {"SELECT"})
        ),
    )


RICH = rich()
RICH.validate()


def test_all_of_a_value_comes_back_from_its_stored_form() -> None:
    again = from_stored(stored(RICH))
    assert again == RICH
    for part in RICH.parts.listed():
        assert again.parts[part] == RICH.parts[part], part.name
    assert part_digests(again) == part_digests(RICH) and state_digest(again) == state_digest(RICH)


def elements() -> list[tuple[str, ClusterMetadata]]:
    """The value with one field, of it or of an element of it, set to another value at a time."""
    found = [(field, replace(RICH, **{field: other})) for field in ("epoch", "hash")
             for _, other in others(getattr(RICH, field))]  # fmt: skip
    for part in RICH.parts.listed():
        if part.name not in ("schema", "placements", "recent_ids", "extensions", "access", "transitions"):
            variants = others(RICH.parts[part])
            found.extend((f"{part.name}{path}", RICH.changed(part.set(other))) for path, other in variants)
    first, *rest = RICH.transitions.listed()
    for path, other in others(first):
        transitions = transitions_of((other, *rest))
        found.append((f"transitions{path}", RICH.changed(TRANSITIONS.set(transitions))))
    return found


def others(value: Any) -> list[tuple[str, Any]]:
    """What differs from `value` in one scalar, or by an element that is missing."""
    if isinstance(value, bool):
        return [("", not value)]
    if isinstance(value, int):
        return [("", value + 1)]
    if isinstance(value, bytes):
        return [("", value + b"8 bytes!")]
    if isinstance(value, str):
        return [("", value + "x")] if type(value) is str else []
    if isinstance(value, msgspec.Struct):
        return [
            (f".{field}{path}", replace(value, **{field: other}))
            for field in value.__struct_fields__
            for path, other in others(getattr(value, field))
        ]
    if isinstance(value, tuple) and value:
        changed = [(f"[{at}]{path}", (*value[:at], other, *value[at + 1 :]))
                   for at, one in enumerate(value) for path, other in others(one)]  # fmt: skip
        return [("[-]", value[1:]), *changed] if len({type(one) for one in value}) == 1 else changed
    return []


@pytest.mark.slow
def test_whatever_differs_gives_other_bytes_and_another_digest() -> None:
    variants = elements()
    assert len(variants) > 150
    digests = {state_digest(RICH): "nothing"}
    known = {stored(RICH)}
    for path, value in variants:
        digest = state_digest(value)
        assert digest not in digests, f"{path} counts as {digests[digest]}"
        digests[digest] = path
        data = stored(value)
        assert data not in known and as_stored(data) == value, path
        known.add(data)


@pytest.mark.parametrize("name", [part.name for part in RICH.parts.listed()])
def test_where_two_values_differ_is_visible_at_once(name: str) -> None:
    (part,) = (part for part in RICH.parts.listed() if part.name == name)
    other = RICH.changed(part.set(part.empty))
    mine, theirs = dict(part_digests(RICH)), dict(part_digests(other))
    assert list(mine) == list(theirs)
    assert [one for one in mine if mine[one] != theirs[one]] == [name]


# -- ids that are kept


@pytest.mark.parametrize("first", [1, 60, 64, 65])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_every_kept_id_counts_in_the_digest(first: int, count: int) -> None:
    ids = [number.to_bytes(16, "big") for number in range(count)]
    seen = {RecentIds.from_listed(first, tuple(ids)).digest}
    for at in range(count):
        changed = (*ids[:at], b"x" * 16, *ids[at + 1 :])
        seen.add(RecentIds.from_listed(first, changed).digest)
    seen.add(RecentIds.from_listed(first + 1, tuple(ids)).digest)
    assert len(seen) == count + 2


def test_digests_of_ids_stay_what_they_were() -> None:
    """Entries of snapshots name digests, so a version that made others could not apply an old log."""
    ids = tuple(number.to_bytes(16, "big") for number in range(200))
    assert RecentIds.from_listed(60, ids).digest.hex()[:16] == "451940daa6aac13e"


def test_digests_of_ids_do_not_depend_on_when_they_were_asked_for() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        asked = unasked = no_recent_ids()
        for epoch in range(1, 300):
            entry_id = epoch.to_bytes(16, "big")
            asked, unasked = asked.with_entry(epoch, entry_id), unasked.with_entry(epoch, entry_id)
            if draw.random() < 0.1:
                assert asked.digest == RecentIds.from_listed(asked.first_epoch, asked.listed()).digest
        assert asked.digest == unasked.digest and asked == unasked
        assert asked != unasked.with_entry(300, b"e" * 16) and asked != RecentIds.from_listed(
            2, asked.listed()
        )
        assert asked != 7 and hash(asked) == hash(unasked)
