"""A few members of a ring on one table: every message waits until the script lets it through.

Lines of a script:

    ring MODE COUNT          founders n1, n2, ...; all are up
    node NAME                one that is no member, with n1's ring
    propose NAME CHANGE[; CHANGE ...]     join nK | leave nK | remove nK | replace nK nOLD | move nK, with
                             finish or cancel before it for the second step
    pass SOURCE TARGET [KIND]             lets the oldest such message through
    go                       lets all through, and what comes of it, until nobody says anything
    lose [SOURCE TARGET [KIND]]           loses such messages; without words all that wait
    cut NAME ... | heal      what these nodes say to others, and others to them, is lost
    crash NAME | start NAME  what was not written is gone
    abort NAME OP            an operator does
    wait MS                  time passes, and everybody up is told
    gossip A B               A compares its ring with B's
    show                     what each node has and holds
"""

from __future__ import annotations

from lockstep.ring.changes import Change, Kind, Step
from lockstep.ring.member import Effects, Kept, RingMember, first_kept
from lockstep.ring.messages import Message, Proposal, Propose, Reject, Summary
from lockstep.ring.ring import Mode, Ring

from .rings import founders


class Table:
    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.members: dict[str, RingMember] = {}
        self.waiting: list[tuple[str, str, Message]] = []
        self.apart: set[str] = set()
        self.now_ms = 0
        self.told: list[str] = []
        self.names: dict[bytes, str] = {}
        self.proposals: dict[str, Proposal] = {}

    # -- what a script says ----------------------------------------------------------------------------

    def play(self, line: str) -> str:
        word, *words = line.split()
        self.told = []
        getattr(self, f"do_{word}")(*words)
        for member in self.members.values():
            member.validate()
        return "\n".join(self.told) or "nothing"

    def do_ring(self, mode: str, count: str) -> None:
        ring = founders(int(count), Mode(mode))
        for name in ring.present:
            self.kept[name] = first_kept(ring)
            self.do_start(name)

    def do_node(self, name: str) -> None:
        self.kept[name] = first_kept(self.kept["n1"].ring)
        self.do_start(name)

    def do_start(self, name: str) -> None:
        self.members[name] = RingMember(name, self.kept[name], (), {"dc1": 1}, self.now_ms)
        self._done(name, self.members[name].start())

    def do_crash(self, name: str) -> None:
        del self.members[name]

    def do_propose(self, name: str, *words: str) -> None:
        changes = [_change(part.split()) for part in " ".join(words).split(";")]
        refused = self.members[name].refusal(changes)
        if refused:
            self.told.append(f"refused: {refused}")
            return
        _, effects = self.members[name].request(changes, self.now_ms)
        self._done(name, effects)

    def do_abort(self, name: str, op: str) -> None:
        base = self.proposals[op].base
        refused, effects = self.members[name].abort(op, base, self.now_ms)
        if refused:
            self.told.append(f"refused: {refused.split(': ')[0]}")
        self._done(name, effects)

    def do_pass(self, source: str, target: str, kind: str = "") -> None:
        at = next(i for i, one in enumerate(self.waiting) if self._is(one, source, target, kind))
        self._arrive(*self.waiting.pop(at))

    def do_lose(self, source: str = "", target: str = "", kind: str = "") -> None:
        self.waiting = [one for one in self.waiting if source and not self._is(one, source, target, kind)]

    def do_go(self) -> None:
        for _ in range(1000):
            if not self.waiting:
                return
            self._arrive(*self.waiting.pop(0))
        raise AssertionError("they never stop talking")

    def do_cut(self, *names: str) -> None:
        self.apart = set(names)

    def do_heal(self) -> None:
        self.apart = set()

    def do_wait(self, ms: str) -> None:
        self.now_ms += int(ms)
        for name in sorted(self.members):
            before = len(self.waiting)
            self._done(name, self.members[name].tick(self.now_ms, (0.0, 0.0)), quiet=True)
            said = [one for one in self.waiting[before:] if not isinstance(one[2], Summary)]
            self.waiting[before:] = said
            self.told += [f"{source} > {target} {_text(message)}" for source, target, message in said]

    def do_gossip(self, one: str, other: str) -> None:
        ring = self.members[one].ring
        self._arrive(one, other, Summary(ring.sequence, ring.fingerprint))

    def do_show(self) -> None:
        for name in sorted(self.members):
            standing = self.members[name].standing
            said = f"{name} has {self._ring(standing.ring)}"
            if standing.pending is not None:
                said += f", holds {standing.pending.op}"
            if standing.proposing is not None:
                missing = " ".join(standing.missing)
                said += f", proposes {standing.proposing.op}" + (f" (waits for {missing})" if missing else "")
            self.told.append(said)

    # -- what comes of it ------------------------------------------------------------------------------

    def _is(self, one: tuple[str, str, Message], source: str, target: str, kind: str) -> bool:
        named = not kind or type(one[2]).__name__.lower() == kind
        return source in (one[0], "*") and target in (one[1], "*") and named

    def _arrive(self, source: str, target: str, message: Message) -> None:
        cut = (source in self.apart) != (target in self.apart)
        if not cut and target in self.members:
            self._done(target, self.members[target].received(source, message, self.now_ms))

    def _done(self, name: str, effects: Effects, *, quiet: bool = False) -> None:
        before = self.kept[name].ring
        if effects.kept is not None:
            self.kept[name] = effects.kept
        if self.kept[name].ring is not before:
            self.told.append(f"{name} has {self._ring(self.kept[name].ring)}")
        self.told += [f"{name} ALARM: {self._named(alarm)}" for alarm in effects.alarms]
        self.told += [f"{name}: {one.op} {one.outcome} {one.text}".rstrip() for one in effects.ended]
        for target, message in effects.messages:
            if isinstance(message, Propose):
                self.proposals[message.proposal.op] = message.proposal
            self.waiting.append((name, target, message))
            if not quiet:
                self.told.append(f"{name} > {target} {_text(message)}")

    def _ring(self, ring: Ring) -> str:
        """Rings of one sequence are told apart by a letter."""
        known = [one for one in self.names.values() if one.startswith(f"ring {ring.sequence}")]
        letter = "" if not known else "abcdefgh"[len(known) - 1]
        return self.names.setdefault(ring.fingerprint, f"ring {ring.sequence}{letter}")

    def _named(self, text: str) -> str:
        for fingerprint, name in self.names.items():
            sequence = name.split()[1].rstrip("abcdefgh")
            text = text.replace(f"ring {sequence} ({fingerprint.hex()[:12]})", name)
        return text


def _change(words: list[str]) -> Change:
    step = Step(words.pop(0)) if words[0] in ("finish", "cancel") else Step.BEGIN
    kind, name, *others = words
    if step is not Step.BEGIN:
        return Change(Kind(kind), step, name)
    number = int(name[1:])
    if kind == "join":
        return Change(Kind.JOIN, step, name, (number * 100,), dc="dc1", rack="r1")
    if kind == "replace":
        return Change(Kind.REPLACE, step, name, replaced=others[0], dc="dc1", rack="r1")
    return Change(Kind(kind), step, name, (number * 100 + 7,) if kind == "move" else ())


def _text(message: Message) -> str:
    said = type(message).__name__.lower()
    if isinstance(message, Propose):
        said += f" {message.proposal.op}" + (" (found)" if message.found else "")
    elif isinstance(message, Reject):
        said += f" {message.op}: {message.why}".replace(" :", ":")
    elif hasattr(message, "op"):
        said += f" {message.op}"
    return said
