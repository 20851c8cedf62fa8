"""The kinds of processors, the test processor, and what submitters are told when replies are lost."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.transformations import SetExtension
from lockstep.node.configuration import parse
from lockstep.node.log.messages import Submit
from lockstep.node.node import Node
from lockstep.node.processors.base import LocalProcessor, Processor, Settle
from lockstep.node.processors.kinds import (
    GatedProcessor,
    RemoteProcessor,
    Surroundings,
    chosen,
    from_entry_points,
)
from lockstep.values.errors import ConfigurationError, OutcomeUnknown, Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Town, keyspace, table

FIRST_ID = b"first-submission"
FOUNDERS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def gated(town: Town, *numbers: int, lines: str = "", cluster: str = "") -> None:
    """These nodes have the test processor."""
    quoted = ", ".join(f'"{founder}"' for founder in town.founders)
    for number in numbers:
        who = cluster or (f"founders=[{quoted}]" if number <= len(town.founders) else f"seeds=[{quoted}]")
        town.cluster_lines[f"n{number}"] = f"{who}\n[testing]\nfaults=true\n{lines}"


def three(town: Town) -> tuple[int, int, int]:
    """A leader and two others, all of them voters."""
    gated(town, 1, 2, 3)
    town.found()
    town.until(lambda: len(town.newest.voters) == 3)
    town.agreed(1, 2, 3)
    town.wait(1.0)
    leader = town.leader()
    others = [number for number in (1, 2, 3) if number != leader]
    return leader, others[0], others[1]


def extension(name: str, value: bytes = b"v") -> SetExtension:
    return SetExtension(name, value)


def release(town: Town, number: int, order: Any = None) -> None:
    async def work(node: Node) -> None:
        node.log.member.gate.release(order)

    town.finish(town.begin(number, work))


def found_alone(town: Town) -> Node:
    """A cluster of one node, whose metadata service need not be a group."""
    town.start(1)
    town.until(lambda: town.ready(1))
    return town.node(1)


# -- lost replies


def test_a_lost_reply_and_a_retry_on_another_node_give_the_original_epoch_also_after_a_snapshot() -> None:
    with Town() as town:
        leader, one, two = three(town)
        base = town.newest.epoch
        town.node(leader).log.member.gate.drop_replies(100)
        lost = town.finish(town.submit(one, keyspace("k"), entry_id=FIRST_ID, base_epoch=base))
        # The attempts are answered with the epoch in the end, or nothing is known.
        assert lost.error is None or isinstance(lost.error, OutcomeUnknown)
        assert town.node(leader).log.member.gate.lost_replies >= 1
        release(town, leader)
        original = town.log.values[-1].recent_ids.epoch_of(FIRST_ID)
        assert original is not None
        again = town.finish(town.submit(two, keyspace("k"), entry_id=FIRST_ID, base_epoch=base))
        assert again.error is None and again.value == original
        after = town.newest.service.snapshot_epoch
        assert town.finish(town.submit(two, TakeSnapshot("test", after))).error is None
        town.until(lambda: all(town.node(n).log.state.latest_snapshot() is not None for n in (1, 2, 3)))
        for number in (1, 2, 3):
            town.process(number).crash("power")
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        for number in (1, 2, 3):
            folded = town.finish(town.submit(number, keyspace("k"), entry_id=FIRST_ID, base_epoch=base))
            assert folded.error is None and folded.value == original
        assert town.ids().count(FIRST_ID) == 1


@pytest.mark.parametrize("is_lost_before", [True, False])
def test_an_unknown_outcome_is_reported_so_and_is_in_the_log_at_most_once(is_lost_before: bool) -> None:
    with Town() as town:
        leader, one, _ = three(town)
        gate = town.node(leader).log.member.gate
        if is_lost_before:
            gate.drop_commits(1000)
        else:
            gate.drop_replies(1)
            gate.hold_commits(lambda submit: gate.lost_replies > 0)
        outcome = town.finish(town.submit(one, extension("a"), entry_id=FIRST_ID))
        assert isinstance(outcome.error, OutcomeUnknown)
        town.agreed(1, 2, 3)
        assert town.ids().count(FIRST_ID) == (0 if is_lost_before else 1)


def test_a_rejection_is_in_no_log_and_was_valid_at_the_epoch_that_it_names() -> None:
    with Town() as town:
        leader, one, two = three(town)
        gate = town.node(leader).log.member.gate
        gate.hold_commits()
        winner = town.submit(one, keyspace("k"))
        loser = town.submit(two, keyspace("k"), entry_id=FIRST_ID)
        town.until(lambda: len(gate.held) >= 2)
        first = {submit.entry_id for submit, _ in gate.held} - {FIRST_ID}
        release(town, leader, lambda held: sorted(held, key=lambda one: one[0].entry_id not in first))
        town.finish(winner)
        town.finish(loser)
        assert winner.error is None and isinstance(loser.error, Rejected)
        assert loser.error.epoch >= winner.value
        assert "k" in town.log.values[loser.error.epoch].schema.by_name
        assert FIRST_ID not in town.ids()


# -- the test processor


def test_held_commits_pass_in_the_order_that_the_test_gives_them() -> None:
    with Town() as town:
        leader, *_ = three(town)
        gate = town.node(leader).log.member.gate
        gate.hold_commits()
        begun = [town.submit(leader, extension(name)) for name in ("a", "b", "c")]
        town.until(lambda: len(gate.held) == 3)
        assert not any(outcome.done for outcome in begun)
        arrived = [submit.entry_id for submit, _ in gate.held]
        release(town, leader, lambda held: list(reversed(held)))
        assert all(town.finish(outcome).error is None for outcome in begun)
        assert [entry_id for entry_id in town.ids() if entry_id in arrived] == arrived[::-1]


def test_an_epoch_that_is_held_at_one_node_is_seen_there_only_after_its_release() -> None:
    with Town() as town:
        _, one, two = three(town)
        at = town.node(one).log.state.epoch
        town.node(one).log.member.gate.hold_visibility_at(at)
        begun = town.submit(one, extension("a"))
        made = town.finish(town.submit(two, extension("b")))
        assert made.error is None and not begun.done
        town.wait(1.0)
        assert town.node(one).log.state.epoch == at < made.value
        release(town, one)
        assert town.finish(begun).error is None
        town.agreed(1, 2, 3)


def test_the_controls_are_checked_and_answer_with_their_state() -> None:
    with Town() as town:
        leader, *_ = three(town)
        gate = town.node(leader).log.member.gate
        for wrong in ({"no_such": 1}, {"hold_commits": 1}, {"drop_replies": True}, {"drop_replies": -1}):
            with pytest.raises(ConfigurationError):
                gate.control(wrong)
        assert gate.control({"hold_commits": True})["held"] == 0
        outcome = town.submit(leader, extension("a"))
        town.until(lambda: gate.control({})["held"] == 1)

        async def work(node: Node) -> dict[str, Any]:
            return node.log.member.gate.control({"release": True})

        assert town.finish(town.begin(leader, work)).value["held"] == 0
        assert town.finish(outcome).error is None


# -- kinds


def test_a_local_processor_serves_a_cluster_without_a_consensus_group_over_restarts() -> None:
    with Town(founders=1) as town:
        gated(town, 1, lines='[cms]\nprocessor="local"\n')
        gated(town, 2, lines='[cms]\nprocessor="remote"\n')
        node = found_alone(town)
        assert node.log.driver is None and node.log.is_leader and node.log.leader_id == 1
        assert isinstance(node.log.processor, GatedProcessor) and isinstance(
            node.log.processor.inner, LocalProcessor
        )
        town.start(2)
        town.until(lambda: town.ready(2))
        begun = [town.submit(1 + at % 2, extension(f"k{at}", b"v" * 100)) for at in range(20)]
        epochs = [town.finish(outcome).value for outcome in begun]
        assert sorted(epochs) == list(range(min(epochs), min(epochs) + 20))
        assert town.finish(town.submit(2, keyspace("k"), entry_id=FIRST_ID)).error is None
        assert isinstance(town.finish(town.submit(2, keyspace("k"))).error, Rejected)
        town.process(1).crash("power")
        town.start(1)
        town.until(lambda: town.ready(1))
        again = town.finish(town.submit(2, keyspace("k"), entry_id=FIRST_ID))
        assert again.error is None and again.value == town.newest.recent_ids.epoch_of(FIRST_ID)


def test_a_refusal_of_a_local_processor_waits_for_what_it_was_judged_at() -> None:
    with Town(founders=1) as town:
        gated(town, 1, lines='[cms]\nprocessor="local"\n')
        found_alone(town)
        settings = town.process(1).disk.settings
        settings.sync_low_s = settings.sync_high_s = 0.3
        first = town.submit(1, keyspace("k"))
        town.wait(0.01)
        second = town.submit(1, keyspace("k"))
        town.wait(0.1)
        assert not first.done and not second.done
        assert town.finish(first).error is None and isinstance(town.finish(second).error, Rejected)


def test_an_id_that_a_local_processor_refused_stays_refused() -> None:
    with Town(founders=1) as town:
        gated(town, 1, lines='[cms]\nprocessor="local"\n')
        found_alone(town)
        early = town.finish(town.submit(1, table("new"), entry_id=FIRST_ID))
        assert isinstance(early.error, Rejected)
        assert town.finish(town.submit(1, keyspace("new"))).error is None
        late = town.finish(town.submit(1, table("new"), entry_id=FIRST_ID))
        assert isinstance(late.error, Rejected)
        assert town.finish(town.submit(1, table("new"))).error is None


def test_a_remote_node_is_never_chosen_as_a_voter_and_forwards_what_is_submitted_there() -> None:
    with Town(founders=2) as town:
        gated(town, 3, lines='[cms]\nprocessor="remote"\n')
        town.found()
        town.start(3, 4)
        town.until(lambda: town.ready(3, 4))
        town.until(lambda: len(town.newest.voters) == 3)
        remote = town.node(3)
        assert remote.context.own_id() not in town.newest.voters and remote.log.driver is None
        assert isinstance(remote.log.processor, GatedProcessor)
        assert isinstance(remote.log.processor.inner, RemoteProcessor) and not remote.log.is_leader
        assert town.finish(town.submit(3, extension("a"))).error is None
        assert not town.newest.directory.by_id[NodeId(remote.context.own_id())].may_vote


class CountingProcessor(Processor):
    """One that another package could bring: it counts what it forwards to a local one."""

    def __init__(self, given: Surroundings) -> None:
        self.inner = LocalProcessor(given.runtime, given.state, given.registry)
        self.taken = 0

    def take(self, submit: Submit, settle: Settle) -> None:
        self.taken += 1
        self.inner.take(submit, settle)

    def leading_term(self) -> int:
        return self.inner.leading_term()


class Point:
    def __init__(self, name: str, loaded: Any) -> None:
        self.name = name
        self._loaded = loaded

    def load(self) -> Any:
        assert self._loaded is not None, "only the chosen kind is loaded"
        return self._loaded


def test_another_package_brings_a_kind_by_an_entry_point() -> None:
    points = (Point("other", None), Point("counting", CountingProcessor))
    factories = from_entry_points(points, "counting")
    with Town(founders=1) as town:
        gated(town, 1, lines='[cms]\nprocessor="counting"\n')
        town.processors = factories
        node = found_alone(town)
        assert town.finish(town.submit(1, extension("a"))).error is None
        assert isinstance(node.log.processor, GatedProcessor)
        assert isinstance(node.log.processor.inner, CountingProcessor) and node.log.processor.inner.taken >= 2


@pytest.mark.parametrize(
    ("kind", "founders", "problem"),
    [
        ("no-such", ("127.0.0.1",), "is installed"),
        ("local", FOUNDERS, "alone"),
        ("remote", FOUNDERS, "remote"),
    ],
)
def test_a_kind_that_does_not_fit_the_configuration_is_refused(
    kind: str, founders: tuple[str, ...], problem: str
) -> None:
    quoted = ", ".join(f'"{founder}"' for founder in founders)
    text = f'[network]\naddress="127.0.0.1"\n[cluster]\nfounders=[{quoted}]\n[cms]\nprocessor="{kind}"\n'
    with pytest.raises(ConfigurationError, match=problem):
        chosen(parse(text), {})


def test_an_entry_point_that_is_no_factory_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        from_entry_points((Point("broken", "text"),), "broken")
