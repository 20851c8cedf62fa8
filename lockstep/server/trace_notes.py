"""What a trace tells of the replicas of its request.

Invariant: a step of a replica stands for an answer of it that counted, at the time at which the coordinator
had enough of them: replicas keep no traces of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lockstep.replication.notes import Notes
from lockstep.replication.plans import Plan
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation, ReadCommand

#: (what was done, by which replica; None: here).
ReplicaStep = Callable[[str, NodeId | None], None]


class TraceNotes(Notes):
    """Notes that become steps of a trace too. `asked`: those that the client is told, if it wants any."""

    __slots__ = ("_asked", "_step")

    def __init__(self, step: ReplicaStep, asked: Notes | None) -> None:
        super().__init__()
        self._step = step
        self._asked = asked

    def wrote(
        self,
        kind: str,
        plan: Plan,
        mutation: Mutation,
        accepted: Mapping[NodeId, int],
        error: LockstepError | None,
    ) -> None:
        for node, epoch in sorted(accepted.items()):
            self._step(f"Applied a mutation at epoch {epoch}", node)
        if self._asked is not None:
            self._asked.wrote(kind, plan, mutation, accepted, error)

    def did(self, activity: str, nodes: Iterable[NodeId] = ()) -> None:
        for node in sorted(nodes) or (None,):
            self._step(activity, node)

    def read(
        self, plan: Plan, command: ReadCommand, answers: Iterable[tuple[NodeId, int]], *, repaired: bool
    ) -> None:
        answers = sorted(answers)
        what = "range" if command.key is None else "partition"
        for node, epoch in answers:
            self._step(f"Read a {what} at epoch {epoch}", node)
        if self._asked is not None:
            self._asked.read(plan, command, answers, repaired=repaired)
