"""The queue of requests: who goes first, who waits and why, what is refused, and what ends a request."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from lockstep.metadata.conflicts import TABLE, Held, Scope, Wanted, wanted_of
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import (
    AdvanceMembership,
    CancelMembership,
    PrepareMembership,
    ServiceWish,
    SetService,
)
from lockstep.metadata.groups.voter_choice import eligible
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import REQUESTS, Policy, Request, RequestState
from lockstep.topology import requests
from lockstep.topology.force_remove import ForceRemove, MarkRepaired
from lockstep.topology.invariants import violations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.registry import asked
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import (
    CancelRequest,
    EnqueueRequest,
    FailRequest,
    Rule,
    choose,
    judged_anew,
    why,
)
from lockstep.topology.step import Idle, Propose, Reports, Wait, WorkReport, step
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    PARALLEL_OPERATIONS_MAX,
    REQUESTS_ENDED_KEPT_MAX,
    REQUESTS_PLANNED_MAX,
    SERVICE_TEXT_CHARACTERS_MAX,
    TOKENS_PER_NODE_MAX,
)
from tests.metadata.histories import History, SetKeyspaces, simple, started
from tests.metadata.stored import REGISTERED, from_stored, stored
from tests.topology.drills import Coordinator, refused, register, run_out, run_to

JOIN, LEAVE = Bootstrap, Decommission
MOVE, REBUILD, REMOVE = Move, Rebuild, Remove
#: Of the queue, first what goes first.
ORDER = ("replace", "bootstrap", "remove", "decommission", "move", "rebuild", "replication_change")


def ring(nodes: int, factor: int, newcomers: int = 0) -> History:
    """Node n owns token 100 n; node 1 votes; newcomers follow."""
    history = started([(100 * (at + 1),) for at in range(nodes)], ("ks", simple(factor)))
    for number in range(nodes + 1, nodes + newcomers + 1):
        history.submit(register(number, "dc1", "r1"))
    return history


def ask(kind: type, node: int, *tokens: int, policy: Policy = Policy.WAIT) -> EnqueueRequest:
    return EnqueueRequest(kind(NodeId(node), *([tokens] if tokens else [])), policy=policy, actor="test")


def proceed(history: History) -> str:
    """Submit what the queue wants now; what that was."""
    decision = step(history.now, Reports())
    if not isinstance(decision, Propose) or decision.operation_id:
        return "nothing"
    history.submit(decision.transformation)
    return type(decision.transformation).__name__


def state(history: History, request_id: int) -> RequestState:
    return history.now.requests.by_id[request_id].state


def held_up(history: History, request_id: int) -> tuple[Rule, str]:
    found = why(history.now, history.now.requests.by_id[request_id])
    assert found is not None and found.request_id == request_id
    return found.rule, found.reason


# ---- one request


def test_a_request_is_queued_begins_and_ends_with_its_operation() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 3))
    (request,) = history.now.requests.live
    assert (request.state, request.actor, request.requested_epoch) == ("queued", "test", history.now.epoch)
    assert history.now.service.leaving == (3,), "it gets no vote while it waits"
    assert proceed(history) == "PrepareOperation"
    (request,) = history.now.requests.live
    assert (request.state, request.operation_id) == ("running", history.now.operations[0].id)
    assert history.now.service.leaving == ()
    run_out(history, request.operation_id)
    (ended,) = history.now.requests.ended
    assert (ended.id, ended.state, ended.ended_epoch) == (request.id, "done", history.now.epoch)
    assert not history.now.requests.live and isinstance(step(history.now, Reports()), Idle)


def test_an_operation_that_was_not_queued_has_a_request_too() -> None:
    history = ring(4, 2)
    history.submit(PrepareOperation(LEAVE(NodeId(3))))
    (request,) = history.now.requests.live
    assert (request.policy, request.state, request.began_epoch) == ("refuse", "running", history.now.epoch)
    history.submit(CancelOperation(1, "wrong node"))
    run_out(history, 1)
    (ended,) = history.now.requests.ended
    assert (ended.state, ended.outcome) == ("cancelled", "wrong node")


def test_what_no_wait_would_mend_is_refused_at_once() -> None:
    history = ring(3, 2, newcomers=1)
    assert "no node 9" in refused(history, ask(LEAVE, 9))
    assert "needs a node in state none" in refused(history, ask(JOIN, 2, 5))
    assert "belongs to node 1" in refused(history, ask(JOIN, 4, 100))
    assert "replication factor" in refused(ring(2, 2), ask(LEAVE, 2)), "nothing is under way that could help"
    history.submit(ask(LEAVE, 3))
    message = refused(history, ask(MOVE, 3, 7))
    assert "node 3 has request 1 (decommission of node 3) already, which is queued" in message


def test_two_newcomers_cannot_ask_for_one_token() -> None:
    history = ring(3, 2, newcomers=2)
    history.submit(ask(JOIN, 4, 150))
    assert "token 150 is wanted by request 1" in refused(history, ask(JOIN, 5, 150))


def test_policy_refuse_begins_in_the_same_entry_or_not_at_all() -> None:
    history = ring(4, 3)
    history.submit(ask(LEAVE, 3, policy=Policy.REFUSE))
    (request,) = history.now.requests.live
    assert (request.state, request.actor, request.policy) == ("running", "test", "refuse")
    assert "operation 1 (decommission of node 3)" in refused(history, ask(MOVE, 4, 7, policy=Policy.REFUSE))
    history.submit(ask(MOVE, 4, 7))
    assert state(history, 2) is RequestState.QUEUED


# ---- order


def test_joins_go_before_leaves_and_first_come_first_served_within() -> None:
    history = ring(6, 1, newcomers=2)
    history.submit(PrepareOperation(LEAVE(NodeId(2))))
    for wanted in (
        ask(REBUILD, 6),
        ask(MOVE, 5, 555),
        ask(LEAVE, 4),
        ask(LEAVE, 3),
        ask(JOIN, 7, 50),
        ask(JOIN, 8, 60),
    ):
        history.submit(wanted)
    kinds = [(r.kind, r.node) for r in history.now.requests.queue]
    assert kinds == [
        ("bootstrap", 7), ("bootstrap", 8), ("decommission", 4), ("decommission", 3), ("move", 5),
        ("rebuild", 6),
    ]  # fmt: skip


def test_overlapping_requests_wait_naming_the_holder_and_disjoint_ones_run_beside_it() -> None:
    history = ring(6, 1)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 3))
    history.submit(ask(LEAVE, 5))
    assert [proceed(history) for _ in range(3)] == ["PrepareOperation", "PrepareOperation", "nothing"]
    assert [state(history, n) for n in (1, 2, 3)] == ["running", "queued", "running"]
    rule, reason = held_up(history, 2)
    assert rule is Rule.OPERATION and "operation 1 (decommission of node 2)" in reason
    found = why(history.now, history.now.requests.by_id[2])
    assert found is not None and (found.operation_id, found.node) == (1, 2)
    run_out(history, 1)
    assert proceed(history) == "PrepareOperation"
    assert state(history, 2) is RequestState.RUNNING


def test_at_most_so_many_run_at_once() -> None:
    most = PARALLEL_OPERATIONS_MAX
    history = ring(2 * most + 4, 1)
    for node in range(2, 2 * most + 3, 2):
        history.submit(ask(LEAVE, node))
    assert [proceed(history) for _ in range(most + 1)] == ["PrepareOperation"] * most + ["nothing"]
    rule, reason = held_up(history, most + 1)
    assert rule is Rule.PARALLEL and f"at most {most} operations" in reason


def test_the_second_of_two_that_could_run_waits_for_its_turn() -> None:
    history = ring(6, 1)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 5))
    assert why(history.now, history.now.requests.by_id[1]) is None
    assert held_up(history, 2) == (Rule.TURN, "request 1 (decommission of node 2) goes first")


# ---- what waits, fails, is cancelled


def test_the_leave_of_a_voter_waits_until_another_node_has_its_vote() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 1))
    assert history.now.service.leaving == (1,)
    assert proceed(history) == "nothing"
    assert held_up(history, 1)[0] is Rule.VOTE
    history.submit(PrepareMembership((NodeId(2),), (NodeId(1),)))
    change = history.now.service.change
    assert change is not None
    history.submit(AdvanceMembership(change.id, 0, (NodeId(1), NodeId(2))))
    assert proceed(history) == "nothing"
    history.submit(AdvanceMembership(change.id, 1, (NodeId(2),)))
    assert isinstance(step(history.now, Reports(follows="the other group is behind")), Idle)
    found = why(history.now, history.now.requests.by_id[1], "the other group is behind")
    assert found is not None and found.reason == "the other group is behind"
    assert proceed(history) == "PrepareOperation"


def test_who_stays_after_all_has_its_request_cancelled() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 1))
    history.submit(SetService(ServiceWish.STAY, node=NodeId(1), text="needed here"))
    assert (state(history, 1), history.now.requests.ended[0].outcome) == ("cancelled", "needed here")
    history.submit(ask(LEAVE, 1))
    history.submit(ask(LEAVE, 4))
    history.submit(PrepareMembership((NodeId(2),), (NodeId(1),)))
    assert history.now.service.change is not None
    history.submit(CancelMembership(history.now.service.change.id, "not now"))
    assert [state(history, n) for n in (2, 3)] == ["cancelled", "queued"], "only the voter needed the change"
    assert history.now.service.leaving == (4,)


def test_a_queued_request_that_is_cancelled_leaves_no_trace_but_its_record() -> None:
    history = ring(4, 2)
    before = history.now
    history.submit(ask(LEAVE, 3))
    history.submit(CancelRequest(1, "changed my mind"))
    assert history.now.service == before.service and history.now.directory is before.directory
    assert history.now.requests.ended[0].outcome == "changed my mind"
    assert "has ended" in refused(history, CancelRequest(1))
    assert "no request 7" in refused(history, CancelRequest(7))


def test_a_running_request_that_is_cancelled_rolls_its_operation_back() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    history.submit(CancelRequest(1, "stop"))
    assert history.now.operations[0].stage is Stage.ROLLBACK_TO_NORMAL
    assert state(history, 1) is RequestState.RUNNING
    run_out(history, 1)
    assert state(history, 1) is RequestState.CANCELLED
    assert history.now.directory.by_id[NodeId(3)].state is NodeState.NORMAL


def test_a_request_past_its_point_of_return_cannot_be_cancelled() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    run_to(history, 1, Stage.WRITE_BOTH_READ_NEW)
    assert "goes forward only" in refused(history, CancelRequest(1))


def test_a_request_that_can_never_run_fails_with_the_reason() -> None:
    history = ring(4, 3)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 3))
    proceed(history)
    assert "may still run" in refused(history, FailRequest(2)), "the first may be taken back"
    assert proceed(history) == "nothing"
    run_out(history, 1)
    assert proceed(history) == "FailRequest"
    (_, ended) = history.now.requests.ended
    assert ended.state is RequestState.FAILED and "replication factor 3" in ended.outcome
    assert history.now.service.leaving == ()


def test_the_queue_stands_while_the_metadata_is_frozen() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 3))
    history.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    assert proceed(history) == "nothing"
    assert held_up(history, 1) == (Rule.FREEZE, "the metadata is frozen: upgrade")
    assert "frozen: upgrade" in refused(history, ask(LEAVE, 4))


def test_a_running_operation_waits_for_the_thaw_and_says_so() -> None:
    history = ring(4, 2)
    history.submit(ask(MOVE, 3, 350))
    proceed(history)
    history.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    everyone = dict.fromkeys(history.now.directory.by_id, history.now.epoch)
    operation = history.now.operations[0]
    done = {(operation.id, operation.session_id, node): WorkReport.DONE for node in everyone}
    decision = step(history.now, Reports(everyone, done))
    assert isinstance(decision, Wait) and decision.blockers == ((3, "the metadata is frozen: upgrade"),)
    history.submit(SetService(ServiceWish.THAW))
    assert isinstance(step(history.now, Reports(everyone, done)), Propose)


def test_an_ended_request_is_forgotten_after_so_many_others() -> None:
    history = ring(4, 2)
    for _ in range(REQUESTS_ENDED_KEPT_MAX + 1):
        history.submit(ask(LEAVE, 3))
        history.submit(CancelRequest(history.now.requests.live[0].id))
    ended = history.now.requests.ended
    assert (len(ended), ended[0].id, ended[-1].id) == (
        REQUESTS_ENDED_KEPT_MAX,
        2,
        REQUESTS_ENDED_KEPT_MAX + 1,
    )


# ---- the exclude list


def test_an_excluded_node_counts_as_having_seen_nothing() -> None:
    history = ring(4, 3)
    history.submit(PrepareOperation(LEAVE(NodeId(2))))
    history.submit(ExcludeNodes((NodeId(3), NodeId(4)), "their disks are suspect"))
    seen = {NodeId(node): history.now.epoch for node in range(1, 5)}
    decision = step(history.now, Reports(acknowledged=seen))
    assert isinstance(decision, Wait)
    reasons = dict(decision.blockers)
    assert "is excluded since epoch" in reasons[NodeId(3)] and "disks are suspect" in reasons[NodeId(3)]


def test_a_request_of_an_excluded_node_waits_until_it_is_back() -> None:
    history = ring(4, 2)
    history.submit(PrepareOperation(LEAVE(NodeId(2))))
    history.submit(ExcludeNodes((NodeId(3),), "broken"))
    excluded_at = history.now.epoch
    history.submit(ask(MOVE, 3, 7))
    run_out(history, 1)
    assert proceed(history) == "nothing"
    assert held_up(history, 2)[0] is Rule.EXCLUSION
    assert "has applied epoch 2" in refused(history, IncludeNodes((NodeId(3),), (2,)))
    history.submit(IncludeNodes((NodeId(3),), (excluded_at,)))
    assert proceed(history) == "PrepareOperation"
    assert "not excluded" in refused(history, IncludeNodes((NodeId(3),), (99,)))


def test_who_votes_is_not_excluded_and_who_is_excluded_gets_no_vote() -> None:
    history = ring(4, 2)
    assert "is a voter" in refused(history, ExcludeNodes((NodeId(1),)))
    history.submit(ExcludeNodes((NodeId(2),)))
    assert "excluded already" in refused(history, ExcludeNodes((NodeId(2),)))
    change = PrepareMembership((NodeId(2), NodeId(3)), ())
    assert "node 2 is excluded" in refused(history, change)


# ---- the value


def test_requests_and_exclusions_survive_images_snapshots_and_replay() -> None:
    history = ring(5, 2, newcomers=1)
    history.submit(ask(LEAVE, 3))
    history.submit(CancelRequest(1, "no"))
    history.submit(ask(LEAVE, 4))
    proceed(history)
    history.submit(ask(JOIN, 6, 5, 7))
    history.submit(ExcludeNodes((NodeId(5),), "broken"))
    now = history.now
    decoder = SnapshotDecoder(registered=REGISTERED)
    for piece in pieces(now):
        decoder.feed(piece)
    for other in (decoder.finish(), from_stored(stored(now)), history.replayed()):
        assert other.requests == now.requests and other.excluded == now.excluded
        assert state_digest(other) == state_digest(now)
    changed = now.changed(REQUESTS.set(now.requests.with_ended(3, RequestState.FAILED, "x", now.epoch)))
    assert state_digest(changed) != state_digest(now)


# ---- the table of what excludes what


def test_the_table_is_complete_and_every_row_says_why() -> None:
    assert set(TABLE) == {(wanted, held) for wanted in Wanted for held in Held}
    assert all(row.why or row.scope is Scope.NEVER for row in TABLE.values())


@pytest.mark.parametrize("kind", list(EntryKind))
def test_a_freeze_stops_what_is_not_about_the_service_or_where_nodes_are(kind: EntryKind) -> None:
    thawed = (
        *("UPDATE_NODE", "SNAPSHOT", "TRUNCATE_LOG", "SET_SERVICE", "EXCLUDE_NODES", "INCLUDE_NODES"),
        # What has begun may end: until then nothing is purged.
        "END_REPAIR",
        "RECORD_UNDELIVERED",
        "END_LOAD",
        "PUBLISH_GENERATIONS",
        # What ends an upgrade, which holds back the same as a freeze, and a ring without a change.
        *("BUILD_LOG", "ABORT_UPGRADE", "END_RING"),
        # It never comes through the group.
        "RESET_CLUSTER",
        "PLACE_MANAGEMENT",
        "RESET_MANAGEMENT",
    )
    free = kind.name in thawed or (
        kind.name.endswith("_MEMBERSHIP") and kind is not EntryKind.ROLE_MEMBERSHIP
    )
    assert (TABLE[wanted_of(kind), Held.FREEZE].scope is Scope.NEVER) is free


# ---- histories


def test_scenario_01_three_joins_that_are_requested_at_once_all_end_normal() -> None:
    history = ring(3, 3, newcomers=3)
    for node in (4, 5, 6):
        history.submit(ask(JOIN, node, 100 * node - 350))
    coordinator = Coordinator(history, random.Random(5))
    coordinator.finish()
    assert all(node.state is NodeState.NORMAL for node in history.now.directory.nodes)
    assert [r.state for r in history.now.requests.ended] == ["done"] * 3
    versions = [value.epoch for value in history.values]
    assert versions == sorted(set(versions))
    joining = [
        sum(node.state is NodeState.BOOTSTRAPPING for node in value.directory.nodes)
        for value in history.values
    ]
    assert max(joining) == 1, "with three replicas on a ring of three they share ranges"


def test_what_waited_for_degraded_ranges_begins_once_they_are_repaired() -> None:
    """Only node 3 is sure to have what node 4 left; another request waits meanwhile, for an operator."""
    history = ring(6, 3, newcomers=1)
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    history.submit(ExcludeNodes((NodeId(7),), "silent"))
    history.submit(ask(JOIN, 7, 150))
    history.submit(ask(REMOVE, 3))
    assert choose(history.now).run is None and "only node 3 is sure" in held_up(history, 2)[1]
    for line in history.now.degraded:
        history.submit(MarkRepaired(line.group, line.range))
    assert choose(history.now) == judged_anew(history.now)
    assert proceed(history) == "PrepareOperation"


def slow_choice(history: History) -> tuple[str, int]:
    """What the queue should do now, by trying everything in the obvious order and keeping nothing."""
    now = history.now
    queued = [r for r in now.requests.live if r.state is RequestState.QUEUED]
    queued.sort(key=lambda r: (ORDER.index(r.kind), r.id))
    open_ended = bool(now.operations) or bool(now.service.frozen)
    for request in queued:
        leaving = isinstance(request.body, LEAVE | REMOVE)
        votes = leaving and request.node in now.service.members
        if votes or now.service.frozen:
            open_ended = True
            continue
        entry = PrepareOperation(request.body, request_id=request.id)
        try:
            entry.apply(now, now.epoch + 1)
        except Rejected:
            if not open_ended:
                return "fail", request.id
            continue
        return "run", request.id
    return "nothing", 0


@pytest.mark.parametrize("seed", range(12))
def test_random_queues_run_what_the_obvious_search_runs(seed: int) -> None:
    rng = random.Random(seed)
    history = ring(7, rng.randint(1, 2), newcomers=4)
    ends: dict[int, int] = {}
    for _ in range(120):
        now = history.now
        choice = choose(now)
        assert len(now.requests.queue) <= REQUESTS_PLANNED_MAX, "the search looks at all of them"
        found = (
            ("run", choice.run.id) if choice.run is not None
            else ("fail", choice.fails[0].id) if choice.fails is not None
            else ("nothing", 0)
        )  # fmt: skip
        assert found == slow_choice(history)
        for request in now.requests.queue:
            waits = why(now, request)
            assert (waits is None) == (found[1] == request.id), "each queued request is explained"
        ended_before = {request.id for request in now.requests.ended}
        random_step(history, rng)
        for request in history.now.requests.ended:
            if request.id not in ended_before:
                assert request.id not in ends, "a request ends once"
                ends[request.id] = history.now.epoch
        assert violations(now, history.now) == ()
        assert not overlapping(history)
    assert len(ends) > 5


def overlapping(history: History) -> bool:
    return any(
        one.group == other.group and one.range.intersects(other.range)
        for one, other in itertools.pairwise(history.now.transitions.listed())
    )


def random_step(history: History, rng: random.Random) -> None:
    """Somebody asks, cancels, advances, or the coordinator (any: it keeps nothing) does what is due."""
    now, draw = history.now, rng.random()
    if draw < 0.35 and len(now.requests.queue) < REQUESTS_PLANNED_MAX:
        node = rng.randint(1, len(now.directory.nodes))
        kind = rng.choice((JOIN, LEAVE, LEAVE, MOVE, REBUILD))
        tokens = (rng.randint(-900, 900),) if kind in (JOIN, MOVE) else ()
        history.tried(ask(kind, node, *tokens))
    elif draw < 0.42 and now.requests.live:
        history.tried(CancelRequest(rng.choice(now.requests.live).id, "drill"))
    elif draw < 0.7:
        proceed(history)
    elif now.operations:
        chosen = rng.choice(now.operations)
        history.submit(AdvanceOperation(chosen.id, chosen.stage))


def test_a_request_whose_work_fails_ends_as_failed() -> None:
    history = ring(4, 2)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    history.submit(CancelOperation(1, "stream failed on node 4: disk full", failed=True))
    run_out(history, 1)
    (ended,) = history.now.requests.ended
    assert (ended.state, ended.outcome) == ("failed", "stream failed on node 4: disk full")


@pytest.mark.parametrize("planted", ["forgotten", "back", "changed", "twice"])
def test_requests_that_go_astray_are_found(planted: str) -> None:
    history = ring(6, 1)
    for node in (2, 4):
        history.submit(ask(LEAVE, node))
    proceed(history)
    before = history.now
    requests = before.requests
    running, queued = requests.live
    if planted == "forgotten":
        live: tuple[Request, ...] = (running,)
    elif planted == "back":
        live = (msgspec.structs.replace(running, state=RequestState.QUEUED, operation_id=0), queued)
    elif planted == "changed":
        live = (running, msgspec.structs.replace(queued, body=LEAVE(NodeId(5))))
    else:
        live = (running, msgspec.structs.replace(queued, body=running.body))
    after = before.changed(REQUESTS.set(msgspec.structs.replace(requests, live=live)))
    assert [line for line in violations(before, after) if line.startswith("REQ")]
    assert violations(before, before) == ()


def test_the_queued_request_of_a_node_that_is_given_up_fails_in_the_same_entry() -> None:
    history = ring(6, 1)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 3))
    history.submit(ForceRemove(NodeId(3), "burnt"))
    (ended,) = history.now.requests.ended
    assert (ended.node, ended.state, ended.outcome) == (3, "failed", "node 3 was given up by force")
    assert history.now.service.leaving == (2,)


def test_the_words_of_a_failure_do_not_depend_on_what_a_node_judged_before() -> None:
    history = ring(4, 3)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 3))
    proceed(history)
    run_out(history, 1)
    assert choose(history.now).fails is not None, "this node remembers it with the names of now"
    history.submit(SetKeyspaces((("ks", simple(3)), ("late", simple(3)))))
    assert proceed(history) == "FailRequest"
    assert "ks, late" in history.now.requests.ended[-1].outcome
    assert state_digest(history.replayed()) == state_digest(history.now)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("ends", ["done", "cancelled"])
def test_a_node_that_is_being_replaced_gets_no_vote_unless_it_stays(policy: Policy, ends: str) -> None:
    history = ring(4, 2, newcomers=1)
    history.submit(ExcludeNodes((NodeId(5),), "late"))
    replace = EnqueueRequest(Replace(NodeId(5), NodeId(4)), policy=policy)
    if policy is Policy.REFUSE:
        assert "node 5 is excluded" in refused(history, replace)
        history.submit(IncludeNodes((NodeId(5),), (history.now.epoch,)))
        history.submit(replace)
    else:
        history.submit(replace)
        history.submit(IncludeNodes((NodeId(5),), (history.now.epoch,)))
        proceed(history)
    assert history.now.operations and history.now.directory.by_id[NodeId(4)].state is NodeState.NORMAL
    assert NodeId(4) not in [node.id for node in eligible(history.now)]
    vote = PrepareMembership((NodeId(2), NodeId(4)), ())
    assert "node 4 is to leave" in refused(history, vote)
    if ends == "cancelled":
        history.submit(CancelRequest(history.now.requests.live[0].id))
    run_out(history, history.now.operations[0].id)
    assert history.now.service.leaving == ()
    assert (NodeId(4) in [node.id for node in eligible(history.now)]) is (ends == "cancelled")


def test_requests_that_no_wait_would_mend_are_refused_behind_others_too() -> None:
    history = ring(3, 2, newcomers=2)
    history.submit(ExcludeNodes((NodeId(4),), "late"))
    history.submit(EnqueueRequest(JOIN(NodeId(4), (50,))))
    assert history.now.requests.queue
    itself = EnqueueRequest(Replace(NodeId(5), NodeId(5)))
    assert "cannot replace itself" in refused(history, itself)
    crowd = EnqueueRequest(JOIN(NodeId(5), tuple(range(1000, 1001 + TOKENS_PER_NODE_MAX))))
    assert "tokens, not" in refused(history, crowd)
    endless = EnqueueRequest(JOIN(NodeId(5), (60,)), actor="x" * (SERVICE_TEXT_CHARACTERS_MAX + 1))
    assert "an actor has at most" in refused(history, endless)


@pytest.mark.parametrize(
    ("kind", "told", "why_"),
    [
        ("replication_change", {"node": NodeId(1)}, "is about a keyspace, not about a node"),
        (
            "replication_change",
            {"tokens": (5,)},
            "a replication_change is about a keyspace, not about a node",
        ),
        ("replication_change", {"source_dc": "x"}, "is about a keyspace, not about a node"),
        ("decommission", {"keyspace": "ks"}, "a decommission is told no keyspace"),
        ("decommission", {"target": simple(1)}, "a decommission is told no keyspace"),
        ("remove", {"tokens": (5,)}, "a remove is told no tokens"),
        ("remove", {"replaced": NodeId(1)}, "a remove replaces no node"),
        ("move", {"tokens": (7,), "source_dc": "dc1"}, "a move is told no data centre"),
    ],
)
def test_a_kind_is_not_told_what_it_is_not_about(kind: str, told: dict[str, Any], why_: str) -> None:
    subject = {"keyspace": "ks"} if kind == "replication_change" else {"node": NodeId(3)}
    with pytest.raises(Rejected, match=why_):
        asked(kind, **{**subject, **told})
    assert asked(kind, **subject, presumed_dead=True).about.kind == kind


def test_a_replacement_of_nobody_is_refused() -> None:
    nobody = EnqueueRequest(Replace(NodeId(5), NodeId(9)))
    assert "there is no node 9" in refused(ring(4, 2, newcomers=1), nobody)


def test_who_has_left_asks_for_nothing_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    history = ring(6, 1)
    history.submit(ForceRemove(NodeId(6), "burnt"))
    assert refused(history, ask(LEAVE, 6)) == "node 6 has left the cluster"
    monkeypatch.setattr(requests, "REQUESTS_LIVE_MAX", 2)
    history.submit(ask(LEAVE, 2))
    history.submit(ask(LEAVE, 4))
    assert refused(history, ask(MOVE, 5, 550)) == "2 requests wait or run already"
    too_long = "x" * (SERVICE_TEXT_CHARACTERS_MAX + 1)
    assert "a reason has at most" in refused(history, CancelRequest(2, too_long))
    history.submit(CancelRequest(2, too_long[1:]))
    history.submit(ask(MOVE, 5, 550))
    history.submit(CancelRequest(1))
    assert history.now.requests.ended[-1].outcome == "by an operator"
