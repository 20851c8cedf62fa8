"""An operation kind as a value: everything in which one kind differs from another.

Invariant: whoever drives, judges, plans or explains operations asks the kind of the operation at hand and
knows none by name. A kind is one module under `topology.kinds`, and says of its body what the log must know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.operations import Body, Operation, Stage
from lockstep.metadata.requests import Request
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.quorums import DcOf
from lockstep.topology.stages import Course, StageRow, StreamTask
from lockstep.topology.tablets import stages as courses
from lockstep.values.ids import NodeId

#: Says of the value between two steps whether something else should go first.
GivesWay = Callable[[ClusterMetadata], bool]


class Drill(msgspec.Struct, frozen=True):
    """How the crash matrix begins an operation of the kind, and who has which part in it."""

    name: str
    #: Its subject is dead when it begins.
    dead: bool = False
    #: The subject gives everything, or gets everything: nobody else is the source, or the target.
    gives: bool = False
    gets: bool = False
    #: No node is its subject.
    nobodys: bool = False
    #: Somebody gets ranges; somebody who stays gives some up.
    fills: bool = True
    sheds: bool = True
    #: How many nodes the cluster begins with, and copies of all data that are there before.
    founders: int = 4
    factor: int = 3
    #: What else its body says: fields of the kind's own, with values.
    says: tuple[tuple[str, Any], ...] = ()


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """Of a kind that is about a node's place in the ring.

    `needs`: the state its node must have; `becomes`: the one that it then has. `tokens(cluster, node, body)`:
    those the node will own, gives up or keeps; raises Rejected where nodes and tokens tell already that it
    may not begin. `surely(directory, body)`: a node and tokens the ranges at whose ends it surely changes.
    """

    needs: NodeState
    becomes: NodeState
    tokens: Callable[[ClusterMetadata, NodeInfo, Any], tuple[int, ...]]
    surely: Callable[[Directory, Any], tuple[NodeId, Sequence[int]]]
    #: It changes nobody's ranges: its node fills its own again.
    is_refill: bool = False
    #: A node comes into the ring, or goes.
    comes_or_goes: bool = False
    #: Its node, or the one whose place that takes, is dead.
    of_dead: bool = False
    #: A new node asks for it by itself.
    is_newcomers: bool = False
    #: It is nothing but work of a node that stays.
    works_itself: bool = False


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is the word for it, `body` what is asked for. `precedence`, `is_held_back` and `why`: see
    `topology.requests`. `ring` None: it is about a keyspace, and global.

    `refuse_unfit` raises Rejected for a request that no wait would mend. `refuse_early` does, at little cost,
    for what may not begin now; what it lets pass, `begun` may still refuse. `begun` gives the value with the
    operation that the request asks for, `ended` the one without it, or in its next step.
    """

    name: str
    body: type[Body]
    precedence: int
    is_held_back: bool
    why: str
    stages: tuple[StageRow, ...]
    drills: tuple[Drill, ...]
    ring: Ring | None
    refuse_unfit: Callable[[ClusterMetadata, Request], None]
    refuse_early: Callable[[ClusterMetadata, Body], object] = lambda cluster, body: None
    begun: Callable[[ClusterMetadata, Request, int], ClusterMetadata]
    ended: Callable[[ClusterMetadata, Operation, int, GivesWay], ClusterMetadata]
    #: (operation, a range of it, data centres, who is no source, who lacks writes) -> who fills whom.
    tasks: Callable[[Operation, Transition, DcOf, Sequence[NodeId], Sequence[NodeId]], Sequence[StreamTask]]
    #: (operation, a range of it, data centres, who is absent) -> old replicas with every acknowledged write.
    sources: Callable[[Operation, Transition, DcOf, Sequence[NodeId]], tuple[NodeId, ...]]
    #: Who may be filled beside those that gain a range.
    also_filled: Callable[[Operation, ClusterMetadata], Iterable[NodeId]] = lambda operation, cluster: ()
    #: (value, operation in the stage it left, in the one it entered, epoch): what else goes with the step.
    entered: Callable[[ClusterMetadata, Operation, Operation, int], ClusterMetadata] = (
        lambda cluster, left, entered, epoch: cluster
    )
    #: Counts change with its steps, also where the replicas stay.
    recounts: bool = False
    #: It can be taken back at any stage, over the steps that it has done.
    walks: bool = False
    is_taken_back: Callable[[Operation], bool] = lambda operation: operation.stage is Stage.ROLLBACK_TO_NORMAL
    can_go_back: Callable[[Operation], bool]
    #: The body of one that is cancelled now.
    cancelled: Callable[[Operation], Body] = lambda operation: operation.body
    #: What cancelling one does that waits for nodes that may stay away; "" where that does not help.
    way_out: Callable[[Operation], str] = lambda operation: ""
    #: What is wrong with one that runs, and with the value after one that has ended, beside what all have.
    running_problems: Callable[[ClusterMetadata, Operation], Iterable[str]] = lambda cluster, operation: ()
    end_problems: Callable[[ClusterMetadata, ClusterMetadata, Operation], Iterable[str]] = (
        lambda before, after, operation: ()
    )

    @property
    def is_global(self) -> bool:
        return self.ring is None


def body_fields(kind: Kind) -> tuple[str, ...]:
    """What one says who asks for it."""
    fields: tuple[str, ...] = kind.body.__struct_fields__  # type: ignore[attr-defined]
    return fields


def kind_of(one: Operation | Request | Body) -> Kind:
    """The kind of an operation, of a request, or of what either is about."""
    body = one.body if isinstance(one, Operation | Request) else one
    kind = body.kind
    assert isinstance(kind, Kind), "a body belongs to a kind"
    return kind


def ring_of(one: Operation | Request | Body) -> Ring:
    """What there is to know of an operation on the ring; no other one is asked."""
    ring = kind_of(one).ring
    assert ring is not None, "it is about a node's place in the ring"
    return ring


#: What goes through stages: an operation with its transitions, or a transition that moves by itself.
Mover = Operation | Lone


def moving(cluster: ClusterMetadata, mover: Mover) -> tuple[Transition, ...]:
    """The ranges that go through its stages."""
    return (mover.transition,) if isinstance(mover, Lone) else cluster.transitions.of(mover.id)


def course_of(lone: Lone) -> Course:
    """The kind of a transition that moves by itself."""
    return courses.COURSES[lone.kind]


def stage_row(mover: Mover, stage: Stage | None = None) -> StageRow:
    """The row of the stage that it is in, or of another one; KeyError when the kind has no such stage."""
    wanted = mover.stage if stage is None else stage
    rows = course_of(mover).stages if isinstance(mover, Lone) else kind_of(mover).stages
    for row in rows:
        if row.stage is wanted:
            return row
    raise KeyError(wanted)


def row_can_go_back(operation: Operation) -> bool:
    """Whether the present stage has a way back."""
    return stage_row(operation).on_failure is not None


def moves_nothing(operation: Operation) -> bool:
    """A node without tokens comes or goes: it ends with its first stage, as no later one has a range."""
    ring = kind_of(operation).ring
    return ring is not None and ring.comes_or_goes and not operation.tokens


def commits_generation(operation: Operation) -> bool:
    """Whether it makes a generation of change data capture."""
    return any(row.stage is Stage.COMMIT_CDC_GENERATION for row in kind_of(operation).stages)
