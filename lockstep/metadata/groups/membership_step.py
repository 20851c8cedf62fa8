"""The next safe step from the members a consensus group has to those it should have, and what the metadata
leader does next about the voters of its own.

    running change         Raft configuration                          answer
    adds N                 N is no member, N has not applied the change WAIT for N
    adds N                 N is no member                               CONFIGURE with learner N
    adds N                 N is learner, its log is behind              WAIT for N
    adds N                 N is no voter, and no progress for long      SUBMIT cancel, others are chosen
    adds N                 N is learner and caught up                   CONFIGURE with voter N
    adds N                 N is voter                                   SUBMIT advance
    removes N              N is voter, the other group is behind        WAIT
    removes N              N is voter and this leader                   TRANSFER to a voter that stays
    removes N              N is voter, the rest has no majority up      WAIT for one that stays
    removes N              the same, and that one is down               SUBMIT cancel, others are to go
    removes N              N is voter                                   CONFIGURE without N
    removes N              N is no voter                                SUBMIT advance
    cancelled, adds N      N is learner                                 CONFIGURE without N
    cancelled              otherwise                                    SUBMIT advance, which ends it
    none                   learners                                     CONFIGURE without them
    none                   voters are not the wanted ones, not paused   SUBMIT prepare
    none                   their number is even, no others to be had    SUBMIT prepare without one
    any                    configuration entry not committed            WAIT

Owns the order: a newcomer learns first, votes once it has caught up, and only then is a former voter let go,
one at a time; a leader that is to go hands leadership over before. The group that follows the voters has
followed when all of them that live are its members: a new voter that died is waited for by nobody.

Invariant: a pure function of the newest metadata in the leader's log, of the Raft configuration in force and
of what the leader knows of the nodes. Asked again after any death or change of leader it goes on from where
the log is; an answer that was carried out already is not given again. A pure function of the configuration in
force and what the leader knows, so any leader carries on, and any step may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import (
    AdvanceMembership,
    CancelMembership,
    PrepareMembership,
    voters_after,
)
from lockstep.metadata.groups.service import MembershipChange, Service
from lockstep.metadata.groups.voter_choice import choose_voters, eligible, target_size
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX

#: More voters are never in one configuration; when a group is full, one goes before one comes.
GROUP_VOTERS_MAX = 7


class Members(msgspec.Struct, frozen=True):
    """Sorted ids."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()


class GroupConfigure(msgspec.Struct, frozen=True):
    """Propose this configuration."""

    members: Members


class HandOver(msgspec.Struct, frozen=True):
    """Transfer leadership to this voter."""

    target: int


class WaitFor(msgspec.Struct, frozen=True):
    """Nothing can be done before this member has caught up."""

    member: int


class Settled(msgspec.Struct, frozen=True):
    """The group has the members it should have."""


Step = GroupConfigure | HandOver | WaitFor | Settled


def group_next_step(
    wanted: Collection[int],
    members: Members,
    caught_up: Collection[int],
    leader: int,
    down: Collection[int] = (),
) -> Step:
    """`caught_up`: members whose log is close to the leader's; `leader` asks. Where all that are to come are
    `down`, who is to go does not wait for them."""
    assert wanted, "a group keeps one voter at least"
    assert set(members.voters).isdisjoint(members.learners), "a member votes or learns"
    goal = sorted(wanted)
    missing = [member for member in goal if member not in members.voters]
    former = [member for member in members.voters if member not in goal]
    full = len(members.voters) >= GROUP_VOTERS_MAX
    strangers = [member for member in members.learners if member not in goal]
    if strangers:
        return GroupConfigure(_without(members, strangers[0]))
    if missing and not (full and former):
        addition = _addition(missing, members, caught_up)
        stay = len(former) < len(members.voters)
        if not (isinstance(addition, WaitFor) and former and stay and set(missing) <= set(down)):
            return addition
    if former:
        return _removal(goal, former, members, caught_up, leader)
    return Settled()


def _addition(missing: list[int], members: Members, caught_up: Collection[int]) -> Step:
    for member in missing:
        if member in members.learners and member in caught_up:
            assert len(members.voters) <= GROUP_VOTERS_MAX, "one more at most, while another is to go"
            learners = tuple(other for other in members.learners if other != member)
            return GroupConfigure(Members(tuple(sorted((*members.voters, member))), learners))
    for member in missing:
        if member not in members.learners:
            return GroupConfigure(Members(members.voters, tuple(sorted((*members.learners, member)))))
    return WaitFor(missing[0])


def _removal(
    goal: list[int], former: list[int], members: Members, caught_up: Collection[int], leader: int
) -> Step:
    others = [member for member in former if member != leader]
    if others:
        gone = next((member for member in others if member not in caught_up), others[0])
        left = _without(members, gone)
        late = [member for member in left.voters if member != leader and member not in caught_up]
        # Also where it is `gone` that may be dead: one of few is late as well right after an election.
        if 2 * (len(left.voters) - len(late)) <= len(left.voters):
            return WaitFor(late[0])  # Without it those that remain could not commit anything any more.
        return GroupConfigure(left)
    staying = [member for member in goal if member in members.voters]
    assert staying, "a voter stays"
    ready = [member for member in staying if member in caught_up]
    return HandOver(ready[0]) if ready else WaitFor(staying[0])


def _without(members: Members, gone: int) -> Members:
    assert gone in members.voters or gone in members.learners, "who goes was a member"
    return Members(
        tuple(member for member in members.voters if member != gone),
        tuple(member for member in members.learners if member != gone),
    )


class GroupView(msgspec.Struct, frozen=True):
    """The leader's Raft group. `settled`: the configuration in force is committed and not joint, an entry of
    the leader's term is committed, and no transfer is under way. `caught_up`: members close to its log."""

    own: NodeId
    members: Members
    settled: bool
    caught_up: tuple[NodeId, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """What the leader knows of nodes; all of it can be found out again.

    reached: newest epoch each node is known to have applied. down: nodes its failure detector convicts.
    lost: voters that were down for longer than the policy tolerates. follows: why the group that follows the
    voters still needs nodes that vote no more; empty when it needs none. late: nodes that were to vote and
    came no nearer to it for long, however alive they seem: none is waited for, none is chosen.
    """

    reached: Mapping[NodeId, int] = {}
    down: tuple[NodeId, ...] = ()
    lost: tuple[NodeId, ...] = ()
    follows: str = ""
    late: tuple[NodeId, ...] = ()

    @property
    def unfit(self) -> tuple[NodeId, ...]:
        """Nodes that get no vote now."""
        return tuple(sorted({*self.down, *self.late}))


class Configure(msgspec.Struct, frozen=True):
    """Propose this Raft configuration."""

    members: Members


class Transfer(msgspec.Struct, frozen=True):
    """Hand leadership to this voter."""

    to: NodeId


class Submit(msgspec.Struct, frozen=True):
    """Append this entry as the leader that decided it, in the same step."""

    transformation: AdvanceMembership | CancelMembership | PrepareMembership


class Waits(msgspec.Struct, frozen=True):
    """Nothing can be done before `node` does something; 0 when it is the group itself. `epoch` is what the
    node must have applied, 0 when that is not what is missing."""

    reason: str
    node: NodeId = NodeId(0)
    epoch: int = 0


class Idle(msgspec.Struct, frozen=True):
    """The voters are the wanted ones."""


Action = Configure | Transfer | Submit | Waits | Idle


def next_step(cluster: ClusterMetadata, view: GroupView, observed: Observed) -> Action:
    """`cluster` is the value after every entry in the leader's log, committed or not."""
    service = cluster.service
    if not view.settled:
        if service.change is None and view.members == Members(service.voters):
            return Idle()
        return Waits("the new configuration of the group is not committed yet")
    if service.change is not None:
        return _change_step(cluster, service.change, view, observed)
    if view.members.voters != service.voters:
        return Waits(f"voters are {list(view.members.voters)}, recorded are {list(service.voters)}")
    if view.members.learners:
        return Configure(Members(service.voters))
    return _resize(cluster, observed)


def _change_step(
    cluster: ClusterMetadata, change: MembershipChange, view: GroupView, observed: Observed
) -> Action:
    voters = tuple(NodeId(voter) for voter in view.members.voters)
    advance = Submit(AdvanceMembership(change.id, change.index, voters))
    member = change.member
    if change.cancelled:
        return Configure(Members(view.members.voters)) if view.members.learners else advance
    joins = change.adds and member not in view.members.voters
    if joins and member in observed.late:
        # Its vote is in no configuration, so nothing was ever decided with it.
        reason = f"node {member} does not take part: another node is to"
        return Submit(CancelMembership(change.id, reason, member))
    if joins and member not in view.members.learners and observed.reached.get(member, 0) < change.id:
        # So it runs its part of consensus, and a node that is down never gets into the configuration.
        return Waits("has not applied the change that adds it", member, change.id)
    if not change.adds and member in view.members.voters and observed.follows:
        # So the other group always has most of the voters, and finds them.
        return Waits(observed.follows)
    step = group_next_step(voters_after(cluster.service), view.members, view.caught_up, view.own)
    match step:
        case GroupConfigure(members=members):
            return Configure(members)
        case HandOver(target=target):
            ready = [NodeId(n) for n in view.members.voters if n in view.caught_up and n != view.own]
            staying = [node for node in ready if node not in change.removals]
            return Transfer(staying[0] if staying else NodeId(target))
        case WaitFor(member=slow):
            if not change.adds and slow in observed.down:
                # The group without `member` could decide nothing: others are to go.
                reason = f"node {slow}, which was to stay, is down: another node is to go"
                return Submit(CancelMembership(change.id, reason, NodeId(slow)))
            return Waits("does not have the log yet", NodeId(slow))
    return advance


def _resize(cluster: ClusterMetadata, observed: Observed) -> Action:
    """Begin the change that leads to the wanted voters, if they are others."""
    service = cluster.service
    if service.paused:
        return _even_out(service, observed)
    wanted = choose_voters(cluster, down=observed.unfit, lost=observed.lost)
    if wanted == service.voters:
        if len(wanted) % 2 == 0:
            return _even_out(service, observed)
        may_stay = {node.id for node in eligible(cluster)}
        stuck = [node for node in service.voters if node not in may_stay]
        if stuck:
            return Waits("no other node that is up can take its vote", stuck[0])
        if len(service.voters) < target_size(cluster):
            missing = next(iter(observed.unfit), NodeId(0))
            return Waits("too few nodes are up for more voters", missing)
        return Idle()
    return Submit(plan(cluster, wanted, observed, _reason(cluster, observed)))


def _even_out(service: Service, observed: Observed) -> Action:
    """After an end between two sub-steps: a voter beyond an odd number costs and carries nothing."""
    if len(service.voters) % 2 == 1:
        return Idle()
    extra = max(service.voters, key=lambda node: (node in observed.down, node))
    reason = "an odd number of voters, after a cancel"
    return Submit(PrepareMembership((), (extra,), reason, down=observed.unfit))


def plan(
    cluster: ClusterMetadata,
    wanted: tuple[NodeId, ...],
    observed: Observed,
    reason: str,
    size: int = 0,
) -> PrepareMembership:
    """The change from the present voters to `wanted`, as much of it as one change may hold."""
    voters = cluster.service.voters
    additions = [node for node in wanted if node not in voters]
    removals = sorted(
        (node for node in voters if node not in wanted),
        # Whoever may be dead goes first: each other one that goes leaves the rest a smaller margin.
        key=lambda node: (node not in observed.down, node not in cluster.service.leaving, node),
    )
    room = METADATA_VOTERS_MAX + 1 - len(voters)
    if len(additions) > room and not size:
        # The rest follows by the next change; this one keeps the number of voters odd.
        removals = removals[: max(0, len(removals) - (len(additions) - room))]
        additions = additions[:room]
    return PrepareMembership(tuple(additions), tuple(removals), reason, size, observed.unfit)


def _reason(cluster: ClusterMetadata, observed: Observed) -> str:
    service = cluster.service
    leaving = [node for node in service.voters if node in service.leaving]
    if leaving:
        return f"node {leaving[0]} is to leave"
    lost = [node for node in observed.lost if node in service.voters]
    if lost:
        return f"node {lost[0]} is unreachable for too long"
    size = target_size(cluster)
    if size != len(service.voters):
        return f"{size} voters suit the cluster" if not service.size else f"{size} voters were asked for"
    return "the votes are spread over nodes that are there"
