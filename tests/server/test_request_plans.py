"""Dry runs and forced removals as the admin API tells them, and what it refuses for people's sake."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import SetExtension
from lockstep.node.configuration import Configuration, PlacementSection
from lockstep.node.work.load_questions import Sizes
from lockstep.node.work.moved import Moved
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.server.admin import requests
from lockstep.server.admin.requests import Requests
from lockstep.values.errors import ConfigurationError, Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started
from tests.server.parts import as_services


class Place:
    """Requests of a node whose metadata is a history, and that believes some nodes dead."""

    def __init__(self, dead: tuple[int, ...] = (4,)) -> None:
        self.history: History = started([(100,), (200,), (300,), (400,)], ("ks", simple(2)))
        self.dead = dead
        #: Nodes that answer when they are asked, whatever was heard of them.
        self.answering: tuple[int, ...] = ()
        self.silent = 0
        self.rate = 0
        #: As many the node that is asked is set to have.
        self.tokens = 16
        place = self

        class Seen(SimpleNamespace):
            @property
            def cluster(self) -> Any:
                return place.history.now

            @property
            def configuration(self) -> Configuration:
                return Configuration(placement=PlacementSection(num_tokens=place.tokens))

            async def submit(self, body: Any) -> int:
                return place.history.submit(body).epoch

        async def answers(node: int) -> bool:
            return node in self.answering

        node = Seen(
            liveness=SimpleNamespace(
                alive=lambda node: node not in self.dead,
                answers_somebody=answers,
                silent_s=lambda _: 1.5,
                opinions=SimpleNamespace(suspected_in_s=lambda _: 3.0),
            ),
            management=SimpleNamespace(group=None),
            topology=SimpleNamespace(blocking=(), moved=Moved(), follows=lambda: ""),
            runtime=SimpleNamespace(clock=SimpleNamespace(wall_us=lambda: 0)),
            is_leader=True,
            own_id=lambda: 1,
            sizes=SimpleNamespace(ask=self.sizes),
            state=None,
        )
        self.requests = Requests(as_services(node))

    async def sizes(self, wanted: dict[NodeId, list[Any]], keyspace: str = "") -> dict[NodeId, Sizes]:
        """Every node but the silent one holds 1 MiB of whatever it is asked about."""
        return {
            node: Sizes((1 << 20,) * len(ranges), self.rate)
            for node, ranges in wanted.items()
            if node != self.silent
        }

    def ask(self, **body: Any) -> dict[str, Any]:
        return asyncio.run(self.requests.submit(body))


def test_a_dry_run_of_a_removal_tells_steps_moves_and_the_way_back_and_changes_nothing() -> None:
    place = Place()
    before = place.history.now
    plan = place.ask(kind="remove", node=4, dry_run=True)
    assert place.history.now is before
    assert plan["schema"] == "request-plan/1" and plan["point_of_no_return"] == "write_both_read_new"
    assert plan["moves"] and all(4 not in (m["source"], m["target"]) for m in plan["moves"])
    steps = {step["stage"]: step for step in plan["steps"]}
    assert steps["prepared"]["asked"] and 4 not in steps["prepared"]["asked"]
    assert steps["write_both_read_old"]["workers"] == [one["node"] for one in plan["receives"]]
    assert any("directory" in change["path"] for change in plan["afterwards"])


def test_a_live_node_is_neither_removed_nor_given_up() -> None:
    place = Place(dead=())
    place.answering = (4,)
    for force in (False, True):
        with pytest.raises(Rejected, match="node 4 is alive"):
            place.ask(kind="remove", node=4, force=force, dry_run=True)


def test_a_node_that_fell_silent_just_now_is_planned_to_go_and_stays_until_it_counts_as_dead() -> None:
    place = Place(dead=())
    why = "node 4 was seen alive 1.5 s ago and does not answer now: it counts as dead after 3.0 s more"
    for force in (False, True):
        assert place.ask(kind="remove", node=4, force=force, dry_run=True)["waits_for"].startswith(why)
        with pytest.raises(Rejected, match="does not answer now"):
            place.ask(kind="remove", node=4, force=force)
    place.dead = (4,)
    assert place.ask(kind="remove", node=4, dry_run=True)["waits_for"] is None


def test_a_node_that_was_not_heard_is_asked_before_it_is_removed() -> None:
    place = Place(dead=(4,))
    place.answering = (4,)
    for force in (False, True):
        with pytest.raises(Rejected, match="node 4 is alive"):
            place.ask(kind="remove", node=4, force=force, dry_run=True)


def test_an_operator_may_remove_a_node_that_seems_alive_by_saying_so() -> None:
    place = Place(dead=())
    plan = place.ask(kind="remove", node=4, presume_dead=True, dry_run=True)
    assert plan["moves"] and all(4 not in (m["source"], m["target"]) for m in plan["moves"])


def test_a_forced_removal_tells_what_it_degrades_before_and_does_it_then() -> None:
    place = Place()
    plan = place.ask(kind="remove", node=4, force=True, dry_run=True)
    assert plan["dry_run"] and plan["changes"] and place.history.now.degraded == ()
    done = place.ask(kind="remove", node=4, force=True, reason="burnt")
    assert done["degraded"] == plan["degraded"] and len(done["degraded"]) == len(place.history.now.degraded)
    assert place.history.now.directory.by_id[4].state is NodeState.LEFT
    assert done["epoch"] == place.history.now.epoch


def test_only_a_removal_is_forced() -> None:
    with pytest.raises(ConfigurationError, match="a move is not forced"):
        Place().ask(kind="move", node=2, tokens=[5], force=True)


def test_a_plan_tells_bytes_between_nodes_and_the_time_they_take() -> None:
    place = Place(dead=())
    place.rate = 1 << 20
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    place.history.submit(ChangeSchema(CreateTable("ks", "t", "uuid", columns)))
    plan = place.ask(kind="decommission", node=4, dry_run=True)
    assert plan["moves"] and all(move["bytes"] == move["ranges"] << 20 for move in plan["moves"])
    told = plan["estimate"]
    assert told["bytes"] == sum(move["bytes"] for move in plan["moves"]) and told["unknown_ranges"] == 0
    busiest = max(
        sum(m["bytes"] for m in plan["moves"] if m["target"] == one["node"]) for one in plan["receives"]
    )
    assert told["stream_s"] == busiest / place.rate and "the last stream" in told["rate_from"]
    assert told["streams"] == max(one["ranges"] for one in plan["receives"]) and told["streams_s"] > 0
    parts = told["stream_s"] + told["streams_s"] + told["barriers_s"]
    assert told["seconds"] == pytest.approx(parts, abs=0.01)
    # All but that of the way back.
    assert told["barriers"] == len(plan["steps"]) - 1


def test_sizes_of_a_node_that_does_not_answer_are_unknown_and_not_zero() -> None:
    place = Place(dead=())
    place.silent = 4
    plan = place.ask(kind="decommission", node=4, dry_run=True)
    assert {move["bytes"] for move in plan["moves"] if move["source"] == 4} == {None}
    assert plan["estimate"]["unknown_ranges"] > 0
    assert "streaming.throughput_bytes_s" in plan["estimate"]["rate_from"]


def test_a_join_is_planned_on_a_copy_in_which_the_newcomer_exists() -> None:
    place = Place(dead=())
    before = place.history.now
    plan = place.ask(kind="bootstrap", dry_run=True, new={"address": "127.0.0.9", "num_tokens": 2})
    assert place.history.now is before
    newcomer = before.directory.next_node_id
    assert (plan["kind"], plan["node"]) == ("bootstrap", newcomer)
    assert plan["receives"] and {one["node"] for one in plan["receives"]} == {newcomer}
    assert any(newcomer in step["workers"] for step in plan["steps"])
    with pytest.raises(ConfigurationError, match="not asked for here"):
        place.ask(kind="bootstrap")


def test_a_newcomer_is_planned_with_as_many_tokens_as_the_node_that_is_asked() -> None:
    """Its share of the ring is that of its tokens: with more it would seem to take in more."""
    place = Place(dead=())

    def ranges(**new: Any) -> int:
        (one,) = place.ask(kind="bootstrap", dry_run=True, new=new)["receives"]
        return int(one["ranges"])

    place.tokens = 2
    assert ranges() == ranges(num_tokens=2) < ranges(num_tokens=16)
    place.tokens = 0
    assert ranges() == ranges(num_tokens=16), "a node without tokens says nothing of others"
    for count in (0, 1025):
        with pytest.raises(ConfigurationError, match="1 to 1024 tokens"):
            ranges(num_tokens=count)


def test_a_replacement_is_planned_for_a_dead_node_only() -> None:
    with pytest.raises(Rejected, match="node 4 is alive"):
        Place(dead=()).ask(kind="replace", node=4, dry_run=True)
    place = Place(dead=(4,))
    plan = place.ask(kind="replace", node=4, dry_run=True)
    assert plan["replaced"] == 4 and all(4 not in (m["source"], m["target"]) for m in plan["moves"])
    with pytest.raises(ConfigurationError, match="no node 9"):
        place.ask(kind="replace", node=9, dry_run=True)


def test_a_plan_is_carried_out_while_what_it_was_made_against_holds() -> None:
    place = Place(dead=())
    base = place.ask(kind="decommission", node=4, dry_run=True)["base"]
    table = place.history.now.schema
    place.history.submit(SetExtension("label", b"x"))
    assert place.history.now.schema is table and place.history.now.epoch > base["epoch"]
    asked = place.ask(kind="decommission", node=4, base=base)
    assert asked["state"] in ("queued", "running")


def test_a_plan_is_refused_when_reality_moved_and_says_what_did(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(dead=())
    then = place.history.now

    async def value_at(_epoch: int) -> Any:
        return then

    monkeypatch.setattr(requests, "Past", lambda _state: SimpleNamespace(value_at=value_at))
    base = place.ask(kind="decommission", node=4, dry_run=True)["base"]
    place.ask(kind="move", node=2, tokens=[250])
    before = place.history.now
    with pytest.raises(Rejected, match=rf"since the plan of epoch {base['epoch']}: queue changed \(requests"):
        place.ask(kind="decommission", node=4, base=base)
    assert place.history.now is before
    with pytest.raises(Rejected, match="the plan is for cluster"):
        place.ask(kind="decommission", node=4, base={**base, "cluster": "another"})


@pytest.mark.parametrize("kind", ["move", "rebuild"])
def test_a_dead_node_is_given_no_work_of_its_own(kind: str) -> None:
    place = Place(dead=(4,))
    asked = {"kind": kind, "node": 4, "dry_run": True, **({"tokens": [999]} if kind == "move" else {})}
    with pytest.raises(Rejected, match="node 4 seems dead"):
        place.ask(**asked)
    place.answering = (4,)
    assert place.ask(**asked)["steps"]
