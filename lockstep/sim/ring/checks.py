"""What must hold of rings at each step, and of one that came to rest.

Invariant: the checks see what every node has written, also of nodes that are down or cut off; so a commit
that is hidden from all others is compared with theirs at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.ring.changes import remaining
from lockstep.ring.member import Ended, Kept, Outcome
from lockstep.ring.messages import Accept, Message, Promise
from lockstep.ring.ring import Mode, Ring
from lockstep.sim.checkers.violation import Violation


class RingChecks:
    """RING-1: the rings that nodes write are one chain. COMMIT-1: no ring has two successors. WRITTEN: what
    is said is written. OUTCOME-1: what ended so, ended so. ABORT-1: the same of what
    operators aborted. FLOOR: enough owners stay. ALARM: no node raises
    one."""

    def __init__(self, first: Ring, factors: Mapping[str, int]) -> None:
        self._factors = factors
        self._chain: dict[int, tuple[bytes, str]] = {first.sequence: (first.fingerprint, "founding")}
        self._successors: dict[bytes, tuple[bytes, str]] = {}
        self._changed: dict[str, str] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._aborted: list[str] = []
        self._floor = {dc: min(count, factors.get(dc, 0)) for dc, count in remaining(first).items()}
        self.newest = first

    @property
    def commits(self) -> int:
        return len(self._chain) - 1

    def wrote(self, node: str, before: Ring, kept: Kept) -> None:
        ring = kept.ring
        if ring is before or ring.fingerprint == before.fingerprint:
            return
        known = self._chain.setdefault(ring.sequence, (ring.fingerprint, node))
        if ring.sequence == before.sequence + 1:
            fact = (ring.fingerprint, node)
            after = self._successors.setdefault(before.fingerprint, fact)
            if after[0] != ring.fingerprint:
                raise Violation(
                    "COMMIT-1", f"{before.title()} became one ring at {after[1]} and another at {node}"
                )
        if known[0] != ring.fingerprint:
            raise Violation("RING-1", f"{known[1]} and {node} have two rings of sequence {ring.sequence}")
        ring.validate()
        self._see(node, ring)

    def _see(self, node: str, ring: Ring) -> None:
        if ring.sequence <= self.newest.sequence:
            return
        self.newest = ring
        for entry in ring.members:
            if entry.op and entry.op not in self._changed:
                self._changed[entry.op] = node
                if self._outcomes.get(entry.op) is Outcome.ABORTED:
                    raise Violation("OUTCOME-1", f"{entry.op} was aborted, and is in {ring.title()}")
        has = remaining(ring)
        for dc, floor in self._floor.items():
            if has.get(dc, 0) < floor:
                raise Violation("FLOOR", f"{dc} has {has.get(dc, 0)} owners in {ring.title()}, not {floor}")

    def says(self, node: str, kept: Kept, message: Message) -> None:
        """Before a message leaves; `kept` is what a restart would find."""
        held = False
        if isinstance(message, Accept) and kept.ring.mode is Mode.UNANIMOUS:
            promise = kept.promised.promise
            held = promise is not None and promise.op == message.op
        elif isinstance(message, Accept):
            accepted = kept.voted.accepted
            held = accepted is not None and accepted.ballot >= message.ballot
        elif isinstance(message, Promise):
            held = kept.voted.promised >= message.ballot
        else:
            return
        if not held and kept.ring.fingerprint == message.base:
            raise Violation("WRITTEN", f"{node} says {type(message).__name__}, and has not written it")

    def ended(self, node: str, ended: Ended) -> None:
        self._outcomes[ended.op] = ended.outcome
        if ended.outcome is Outcome.ABORTED and ended.op in self._changed:
            raise Violation("OUTCOME-1", f"{node} says that {ended.op} was aborted, and it is in a ring")

    def aborted(self, op: str) -> None:
        """An operator was told that it is aborted."""
        self._aborted.append(op)

    def over(self) -> None:
        """What is not as operators were told, if nothing worse was found."""
        for op in self._aborted:
            if op in self._changed:
                raise Violation("ABORT-1", f"{op} was aborted by an operator, and is in a ring")

    def rested(self, rings: Mapping[str, Ring], promised: Mapping[str, str]) -> None:
        """`rings` of all that are present and up, `promised` what they still hold."""
        for node, ring in sorted(rings.items()):
            if ring.fingerprint != self.newest.fingerprint:
                raise Violation("LIVENESS", f"{node} has {ring.title()}, others {self.newest.title()}")
        if promised:
            node, op = min(promised.items())
            raise Violation("LIVENESS", f"{node} still holds its promise of {op}")
