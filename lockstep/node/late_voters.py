"""Which nodes that were to vote come no nearer to it, as far as this leader saw.

Owns the patience with them. Invariant: an opinion, made of nothing but the leader's steady clock and what it
waits for; it is forgotten with the term, and only proposes: the entry that gives a node up is judged by the
log.
"""

from __future__ import annotations

from lockstep.values.ids import NodeId

#: A coming voter without any progress for this long is given up: a restart is over sooner, and whoever takes
#: its place has its vote in a second.
GIVE_UP_AFTER_S = 10.0
#: It is not chosen again for this long: one that answers and does not follow would end every next change too.
AVOID_S = 60.0


class LateVoters:
    def __init__(self) -> None:
        self._awaited: tuple[NodeId, object] | None = None
        self._since = 0.0
        self._late: dict[NodeId, float] = {}

    def forget(self) -> None:
        """Another term: what was seen before is no evidence."""
        self._awaited = None
        self._late.clear()

    def waits(self, node: NodeId, progress: object, now_s: float) -> None:
        """A change waits for `node` (0: for nobody) now; `progress` is how far it got, by equality."""
        awaited = (node, progress) if node else None
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now_s
        elif awaited is not None and now_s - self._since >= GIVE_UP_AFTER_S:
            self._late[node] = now_s

    def late(self, now_s: float) -> tuple[NodeId, ...]:
        """Nodes given up lately, ascending."""
        self._late = {node: since for node, since in self._late.items() if now_s - since < AVOID_S}
        return tuple(sorted(self._late))
