"""What may be asked of a ring, and what becomes of its entries: a table of kinds and steps.

Invariant: every change that moves data is agreed on twice. BEGIN makes the new owner take writes beside the
old one, FINISH makes it the owner, CANCEL leaves the ring's owners as they were; so one that has begun can
always be ended, by anybody. Several changes are one delta on one ring when each concerns members of its own.
The outcome follows from ring and changes alone, so all who judge a proposal work out the same one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lockstep.ring.limits import (
    RING_CHANGES_MAX,
    RING_ENTRIES_MAX,
    RING_NAME_CHARACTERS_MAX,
    RING_TOKENS_MAX,
)
from lockstep.ring.ring import VOTING, Delta, Member, Ring, Status, delta_on
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN


class Kind(enum.StrEnum):
    JOIN = "join"
    LEAVE = "leave"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"


class Step(enum.StrEnum):
    BEGIN = "begin"
    FINISH = "finish"
    CANCEL = "cancel"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """`tokens`: what is to be owned, where a join or a move begins. `replaced`: who is, where a replacement
    begins; it takes that member's tokens. `dc` and `rack` are of the new member."""

    kind: Kind
    step: Step
    node: str
    tokens: tuple[int, ...] = ()
    replaced: str = ""
    dc: str = ""
    rack: str = ""

    def title(self) -> str:
        return f"{self.kind} {self.node} ({self.step})"


#: What the member is before (None: the name is new) and after.
STEPS: Final[Mapping[tuple[Kind, Step], tuple[Status | None, Status]]] = {
    (Kind.JOIN, Step.BEGIN): (None, Status.JOINING),
    (Kind.JOIN, Step.FINISH): (Status.JOINING, Status.NORMAL),
    (Kind.JOIN, Step.CANCEL): (Status.JOINING, Status.LEFT),
    (Kind.LEAVE, Step.BEGIN): (Status.NORMAL, Status.LEAVING),
    (Kind.LEAVE, Step.FINISH): (Status.LEAVING, Status.LEFT),
    (Kind.LEAVE, Step.CANCEL): (Status.LEAVING, Status.NORMAL),
    (Kind.REMOVE, Step.BEGIN): (Status.NORMAL, Status.REMOVING),
    (Kind.REMOVE, Step.FINISH): (Status.REMOVING, Status.LEFT),
    (Kind.REMOVE, Step.CANCEL): (Status.REMOVING, Status.NORMAL),
    (Kind.REPLACE, Step.BEGIN): (None, Status.REPLACING),
    (Kind.REPLACE, Step.FINISH): (Status.REPLACING, Status.NORMAL),
    (Kind.REPLACE, Step.CANCEL): (Status.REPLACING, Status.LEFT),
    (Kind.MOVE, Step.BEGIN): (Status.NORMAL, Status.MOVING),
    (Kind.MOVE, Step.FINISH): (Status.MOVING, Status.NORMAL),
    (Kind.MOVE, Step.CANCEL): (Status.MOVING, Status.NORMAL),
}


def problem(ring: Ring, changes: Sequence[Change], factors: Mapping[str, int]) -> str:
    """Why the changes cannot be made of this ring; "" when they can.

    `factors`: of each data centre, how many owners its keyspaces need at least.
    """
    if not 0 < len(changes) <= RING_CHANGES_MAX:
        return f"{len(changes)} changes at once; 1 to {RING_CHANGES_MAX} are allowed"
    concerned = [change.node for change in changes] + [_other(ring, change) for change in changes]
    concerned = [node for node in concerned if node]
    if len(concerned) != len(set(concerned)):
        return "two changes concern one member"
    for change in changes:
        found = _problem_of_one(ring, change)
        if found:
            return f"{change.title()}: {found}"
    after = _after(ring, changes)
    return _token_problem(after) or _owner_problem(ring, after, factors)


def decide(ring: Ring, op: str, changes: Sequence[Change]) -> Delta:
    """The delta of changes of which `problem` finds nothing wrong with the ring's members."""
    assert len(changes) <= RING_CHANGES_MAX, "a change is of a size"
    return delta_on(ring, op, _entries(ring, changes))


def end_without_change(ring: Ring, op: str) -> Delta:
    """The delta that leaves all entries as they are: the ring's number goes on, and proposals on it are
    void."""
    return delta_on(ring, op, ())


def remaining(ring: Ring) -> dict[str, int]:
    """Of each data centre, how many own tokens and are not about to leave."""
    replaced = {member.replaces for member in ring.members if member.replaces}
    found: dict[str, int] = {}
    for member in ring.members:
        if member.status in (Status.NORMAL, Status.MOVING) or member.node in replaced:
            found[member.dc] = found.get(member.dc, 0) + 1
    return found


def _other(ring: Ring, change: Change) -> str:
    """The member that a replacement concerns beside its own."""
    if change.kind is not Kind.REPLACE:
        return ""
    if change.step is Step.BEGIN:
        return change.replaced
    member = ring.by_name.get(change.node)
    return member.replaces if member is not None else ""


def _problem_of_one(ring: Ring, change: Change) -> str:
    before, _ = STEPS[change.kind, change.step]
    member = ring.by_name.get(change.node)
    if before is not None and (member is None or member.status is not before):
        return f"it is {member.status if member is not None else 'not in the ring'}, not {before}"
    replacing = [one.node for one in ring.members if one.replaces and one.replaces == change.node]
    if replacing:
        return f"{replacing[0]} is replacing it"
    if before is None:
        if member is not None:
            return "the name was used before" if member.status is Status.LEFT else "it is in the ring"
        names = (change.node, change.dc, change.rack)
        if not change.node or max(map(len, names)) > RING_NAME_CHARACTERS_MAX:
            return f"a name has 1 to {RING_NAME_CHARACTERS_MAX} characters"
    return _problem_of_tokens(ring, change)


def _problem_of_tokens(ring: Ring, change: Change) -> str:
    takes = change.step is Step.BEGIN and change.kind in (Kind.JOIN, Kind.MOVE)
    if bool(change.tokens) != takes:
        return "it names no tokens" if takes else "it takes no tokens of its own"
    if any(one >= other for one, other in pairwise(change.tokens)):
        return "its tokens are not sorted, each once"
    if not all(TOKEN_MIN < token <= TOKEN_MAX for token in change.tokens):
        return "a token is not on the ring"
    replaces = change.step is Step.BEGIN and change.kind is Kind.REPLACE
    if bool(change.replaced) != replaces:
        return "it names nobody to replace" if replaces else "it replaces nobody"
    if replaces:
        old = ring.by_name.get(change.replaced)
        if old is None or old.status is not Status.NORMAL:
            return f"{change.replaced} is {old.status if old is not None else 'not in the ring'}, not normal"
        if any(member.replaces == change.replaced for member in ring.members):
            return f"{change.replaced} is being replaced"
        if change.dc != old.dc:
            return f"{change.replaced} is in data centre {old.dc}"
    return ""


def _entries(ring: Ring, changes: Iterable[Change]) -> list[Member]:
    entries: list[Member] = []
    for change in changes:
        entries.append(_entry(ring, change))
        if change.kind is Kind.REPLACE and change.step is Step.FINISH:
            old = ring.by_name[ring.by_name[change.node].replaces]
            entries.append(msgspec.structs.replace(old, status=Status.LEFT, tokens=(), pending=()))
    return entries


def _entry(ring: Ring, change: Change) -> Member:
    before, status = STEPS[change.kind, change.step]
    if before is None:
        pending = ring.by_name[change.replaced].tokens if change.replaced else change.tokens
        return Member(
            change.node, 0, status, change.dc, change.rack, pending=pending, replaces=change.replaced
        )
    member = ring.by_name[change.node]
    assert member.status is before, "`problem` was asked"
    tokens, pending = member.tokens, change.tokens
    if change.step is Step.FINISH:
        tokens, pending = member.pending or member.tokens, ()
    if status not in VOTING:
        tokens = ()
    return msgspec.structs.replace(member, status=status, tokens=tokens, pending=pending, replaces="")


def _after(ring: Ring, changes: Sequence[Change]) -> Ring:
    entries = {entry.node: entry for entry in (*ring.members, *_entries(ring, changes))}
    return Ring(ring.mode, ring.sequence + 1, tuple(entries[node] for node in sorted(entries)))


def _token_problem(after: Ring) -> str:
    if len(after.members) > RING_ENTRIES_MAX:
        return f"a ring has at most {RING_ENTRIES_MAX} entries, members that left among them"
    owners: dict[int, str] = {}
    for member in after.members:
        for token in (*member.tokens, *(() if member.replaces else member.pending)):
            if token in owners:
                return f"token {token} is of {owners[token]} and of {member.node}"
            owners[token] = member.node
    return f"a ring has at most {RING_TOKENS_MAX} tokens" if len(owners) > RING_TOKENS_MAX else ""


def _owner_problem(ring: Ring, after: Ring, factors: Mapping[str, int]) -> str:
    """Data centres that had enough owners keep so many; one that had too few may still be helped."""
    had, has = remaining(ring), remaining(after)
    if not has:
        return "nobody would own anything"
    for dc, factor in sorted(factors.items()):
        if has.get(dc, 0) < min(factor, had.get(dc, 0)):
            return f"data centre {dc} would have {has.get(dc, 0)} owners and needs {factor}"
    return ""
