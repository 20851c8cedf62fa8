"""One run: members of a ring under loss, reordering, partitions, crashes and operators, and what they ask
for.

Each node is the product's own `RingMember`; what it wants written is its disk, which survives crashes, and
what it wants sent goes through a network that loses, repeats, delays and cuts. A crash may fall before a
step's write, or between the write and any of its messages.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lockstep.ring.changes import Change, Kind, Step
from lockstep.ring.member import Effects, Kept, Outcome, RingMember, first_kept
from lockstep.ring.messages import Message, Prepare, Promise, Proposal, Propose, Reject, Whole
from lockstep.ring.ring import Member, Mode, Ring, Status, found
from lockstep.ring.unanimous import Stage
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.ring.checks import RingChecks
from lockstep.sim.runtime.streams import stream

FACTORS: Final = {"dc1": 2}
#: A run has faults for so long; then all heals, and within the next time it must come to rest and change
#: again.
CHAOS_MS: Final = 60_000
REST_MS: Final = 60_000
_TICK_MS: Final = 100
#: How a change that has begun is ended, by the status of its member.
_BEGUN: Final = {
    Status.JOINING: Kind.JOIN,
    Status.REPLACING: Kind.REPLACE,
    Status.MOVING: Kind.MOVE,
    Status.LEAVING: Kind.LEAVE,
    Status.REMOVING: Kind.REMOVE,
}


class Setting(msgspec.Struct, frozen=True):
    """`aborting`: operators abort at any node. Otherwise only where the initiator itself can say that it has
    not committed."""

    mode: Mode
    seed: int
    aborting: bool = True
    founders: tuple[int, int] = (3, 6)
    chaos_ms: int = CHAOS_MS

    @property
    def safe(self) -> bool:
        """Whether the mode promises one chain of rings whatever operators do here."""
        return self.mode is Mode.QUORUM or not self.aborting


class RunResult(msgspec.Struct, frozen=True):
    setting: Setting
    invariant: str
    violation: str
    commits: int
    steps: int
    facts: dict[str, int]
    story: tuple[str, ...]


class _Node:
    __slots__ = ("down_until_ms", "gone", "kept", "member", "name")

    def __init__(self, name: str, kept: Kept) -> None:
        self.name = name
        self.kept = kept
        self.member: RingMember | None = None
        self.down_until_ms = 0
        #: Its disk is lost: it never comes back.
        self.gone = False


class RingRun:
    """One seed."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._random = stream(setting.seed, f"ring/{setting.mode}")
        count = self._random.randint(*setting.founders)
        names = [f"n{number}" for number in range(1, count + 1)]
        ring = found(
            setting.mode,
            [Member(name, 1, Status.NORMAL, "dc1", "r1", (self._token(),)) for name in names],
        )
        self.seeds = tuple(names[: self._random.choice((0, 1, 2))])
        self.checks = RingChecks(ring, FACTORS)
        self.facts: dict[str, int] = {}
        self.story: list[str] = []
        self.now_ms = 0
        self.steps = 0
        self.nodes = {name: _Node(name, first_kept(ring)) for name in names}
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._named = count
        self._side: dict[str, int] = {}
        self._loss = self._random.choice((0.0, 0.05, 0.3))
        self._repeated = self._random.choice((0.0, 0.1))
        self._delay_ms = self._random.choice((20, 200, 1500))
        self._healed = False
        #: Proposal to end a ring without a change -> what it is to abort.
        self._ending_ops: dict[str, str] = {}

    # -- the run -------------------------------------------------------------------------------------

    def result(self) -> RunResult:
        invariant = violation = ""
        try:
            for node in list(self.nodes.values()):
                self._start(node)
            self._at(self._random.randrange(500), self._work)
            self._at(self._random.randrange(2000), self._strike)
            self._until(self.setting.chaos_ms)
            self._heal()
            self._until(self.setting.chaos_ms + REST_MS)
            self._rest()
            self.checks.over()
        except Violation as seen:
            invariant, violation = seen.invariant, str(seen)
        except AssertionError as seen:
            invariant, violation = "ASSERTION", "".join(traceback.format_exception(seen))
        return RunResult(
            self.setting,
            invariant,
            violation,
            self.checks.commits,
            self.steps,
            dict(sorted(self.facts.items())),
            tuple(self.story),
        )

    def _until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, act, facts = heapq.heappop(self._queue)
            act(*facts)
        self.now_ms = end_ms

    def _at(self, after_ms: int, act: Callable[..., None], *facts: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._number, act, facts))

    def fact(self, name: str) -> None:
        self.facts[name] = self.facts.get(name, 0) + 1

    def tell(self, who: str, what: str) -> None:
        self.story.append(f"{self.now_ms / 1000:8.3f} {who:5} {what}")

    def _token(self) -> int:
        return self._random.randrange(1 << 40)

    # -- nodes ---------------------------------------------------------------------------------------

    def up(self) -> list[_Node]:
        return [node for node in self.nodes.values() if node.member is not None]

    def _start(self, node: _Node) -> None:
        assert node.member is None and not node.gone
        if node.kept.promised.promise is not None:
            self.fact("restarted with a promise")
        own = node.kept.own
        if own is not None and own.stage is not Stage.ABORTED:
            self.fact(f"restarted as initiator: {own.stage}")
        if node.kept.voted.accepted is not None:
            self.fact("restarted with a vote")
        node.member = member = RingMember(node.name, node.kept, self.seeds, FACTORS, self.now_ms)
        self.tell(node.name, f"starts with {node.kept.ring.title()}")
        self._at(self._random.randrange(_TICK_MS), self._tick, node, member)
        self._done(node, member.start())

    def _crash(self, node: _Node, down_ms: int) -> None:
        self.tell(node.name, f"crashes for {down_ms} ms")
        node.member = None
        self.fact("crashed")
        self._at(down_ms, self._restart, node)

    def _restart(self, node: _Node) -> None:
        if node.member is None and not node.gone:
            self._start(node)

    def _tick(self, node: _Node, member: RingMember) -> None:
        if node.member is member:
            draws = (self._random.random(), self._random.random())
            self._done(node, member.tick(self.now_ms, draws))
            self._at(_TICK_MS // 2 + self._random.randrange(_TICK_MS), self._tick, node, member)

    def _done(self, node: _Node, effects: Effects) -> None:
        """Write, then send; a crash may come before, between or not at all."""
        self.steps += 1
        assert node.member is not None
        node.member.validate()
        crash = not self._healed and self._random.random() < 0.002
        cut = self._random.randrange(len(effects.messages) + 2) - 1 if crash else None
        if cut == -1:
            self.fact("crashed before the write")
            self._crash(node, self._random.randrange(50, 8000))
            return
        before = node.kept.ring
        if effects.kept is not None:
            node.kept = effects.kept
            if effects.kept.ring is not before:
                self.tell(node.name, f"has {effects.kept.ring.title()}")
            self.checks.wrote(node.name, before, effects.kept)
        for alarm in effects.alarms:
            self.tell(node.name, f"ALARM {alarm}")
            self.fact("alarm")
            if self.setting.safe:
                raise Violation("ALARM", f"{node.name}: {alarm}")
        for ended in effects.ended:
            self.fact(f"proposal {ended.outcome}")
            self.tell(node.name, f"{ended.op} {ended.outcome} {ended.text}")
            self.checks.ended(node.name, ended)
            if ended.op in self._ending_ops and ended.outcome is Outcome.COMMITTED:
                self.fact("a ring ended without a change")
                self.checks.aborted(self._ending_ops[ended.op])
        for peer, message in effects.messages if cut is None else effects.messages[:cut]:
            self.checks.says(node.name, node.kept, message)
            self._send(node.name, peer, message)
        if cut is not None:
            self.fact("crashed between write and message")
            self._crash(node, self._random.randrange(50, 8000))

    # -- the network ---------------------------------------------------------------------------------

    def _send(self, source: str, target: str, message: Message) -> None:
        self._note(message)
        if self._side.get(source, 0) != self._side.get(target, 0):
            self.fact("cut")
            return
        if self._random.random() < self._loss:
            self.fact("lost")
            return
        times = 2 if self._random.random() < self._repeated else 1
        for _ in range(times):
            self._at(1 + self._random.randrange(self._delay_ms), self._arrive, source, target, message)

    def _note(self, message: Message) -> None:
        if isinstance(message, Reject):
            self.fact(f"rejected: {message.why}")
        elif isinstance(message, Whole):
            self.fact("brought up by the whole ring")
        elif isinstance(message, Propose) and message.found:
            self.fact("finished what was found")
        elif isinstance(message, Promise) and message.accepted is not None:
            self.fact("promised with a vote")
        elif isinstance(message, Prepare) and message.ballot.number > 1:
            self.fact("a later ballot")

    def _arrive(self, source: str, target: str, message: Message) -> None:
        node = self.nodes.get(target)
        if node is None or node.member is None:
            return
        cut = self._side.get(source, 0) != self._side.get(target, 0)
        if not cut:
            self._done(node, node.member.received(source, message, self.now_ms))

    # -- faults --------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if self._healed:
            return
        what = self._random.choice(
            ("crash", "crash", "cut", "cut", "isolate initiator", "join the sides", "lose")
        )
        if what == "crash" and self.up():
            self._crash(self._random.choice(self.up()), self._random.randrange(100, 10_000))
        elif what == "cut":
            self._side = {name: self._random.randrange(2) for name in self.nodes}
            self.fact("partition")
        elif what == "isolate initiator":
            proposing = [n.name for n in self.up() if n.member is not None and n.member.standing.proposing]
            if proposing:
                self._side = {self._random.choice(proposing): 1}
                self.fact("initiator cut off")
        elif what == "join the sides":
            self._side = {}
        elif what == "lose":
            self._lose()
        self._at(self._random.randrange(200, 4000), self._strike)

    def _lose(self) -> None:
        """A disk is lost for good; only where others can agree without it, and a majority of members
        stays."""
        ring = self.checks.newest
        living = [name for name in ring.voters if not self.nodes[name].gone]
        if self.setting.mode is Mode.UNANIMOUS or len(living) < 4:
            return
        node = self.nodes[self._random.choice(living)]
        if not all(self._majority_lives(one.kept.ring, node.name) for one in self.nodes.values()):
            return
        node.gone, node.member = True, None
        self.tell(node.name, "is lost for good")
        self.fact("lost for good")

    def _majority_lives(self, ring: Ring, without: str = "") -> bool:
        living = [name for name in ring.voters if name != without and not self.nodes[name].gone]
        return 2 * len(living) > len(ring.voters)

    def _heal(self) -> None:
        self.tell("world", "heals")
        self._healed, self._side, self._loss = True, {}, 0.0
        for node in self.nodes.values():
            self._restart(node)

    # -- what is asked for -----------------------------------------------------------------------------

    def _work(self) -> None:
        if self._healed:
            return
        if self.up():
            node = self._random.choice(self.up())
            if self._random.random() < 0.25:
                self._abort(node)
            else:
                self._request(node)
        self._at(self._random.choice((20, 300, 1500, 4000)), self._work)

    def _request(self, node: _Node) -> None:
        assert node.member is not None
        if node.name not in node.member.ring.by_name:
            # It was not let in: it asks again.
            self.fact("a newcomer asks again")
            self._propose(node, (self._joining(node.name),))
            return
        changes = self._changes(node.member.ring)
        if changes[0].step is Step.BEGIN and changes[0].kind in (Kind.JOIN, Kind.REPLACE):
            node = self._newcomer(changes[0].node, node)
        self._propose(node, changes)

    def _propose(self, node: _Node, changes: tuple[Change, ...]) -> str:
        if node.member is None:
            return ""
        refused = node.member.refusal(changes)
        if refused:
            self.fact("refused at once")
            return ""
        op, effects = node.member.request(changes, self.now_ms)
        self.tell(node.name, f"proposes {op}: {', '.join(change.title() for change in changes)}")
        if len(changes) > 1:
            self.fact("several changes at once")
        for change in changes:
            self.fact(f"asked: {change.kind} {change.step}")
        self._done(node, effects)
        return op

    def _joining(self, name: str) -> Change:
        return Change(Kind.JOIN, Step.BEGIN, name, (self._token(),), dc="dc1", rack="r1")

    def _newcomer(self, name: str, sponsor: _Node) -> _Node:
        """Joins for itself, with the ring that a member gave it."""
        node = self.nodes[name] = _Node(name, first_kept(sponsor.kept.ring))
        self._start(node)
        return node

    def _changes(self, ring: Ring) -> tuple[Change, ...]:
        begun = [member for member in ring.members if member.status in _BEGUN]
        lost = [name for name in ring.present if name not in self.nodes or self.nodes[name].gone]
        lost = [name for name in lost if ring.by_name[name].status is Status.NORMAL]
        if begun and self._random.random() < 0.6:
            some = self._random.sample(begun, min(len(begun), self._random.choice((1, 1, 2))))
            return tuple(self._ending(member) for member in some)
        if lost and self._random.random() < 0.7:
            if len(lost) > 1:
                self.fact("two that are lost removed at once")
            if len(lost) == 1 and self._random.random() < 0.3:
                self._named += 1
                return (Change(Kind.REPLACE, Step.BEGIN, f"n{self._named}", (), lost[0], "dc1", "r1"),)
            return tuple(Change(Kind.REMOVE, Step.BEGIN, name) for name in lost)
        normal = [member.node for member in ring.members if member.status is Status.NORMAL]
        if (
            len(ring.voters) + len(begun) < 4
            or (len(normal) < 7 and self._random.random() < 0.4)
            or not normal
        ):
            self._named += 1
            return (self._joining(f"n{self._named}"),)
        node = self._random.choice(normal)
        if self._random.random() < 0.4:
            return (Change(Kind.MOVE, Step.BEGIN, node, (self._token(),)),)
        return (Change(self._random.choice((Kind.LEAVE, Kind.REMOVE)), Step.BEGIN, node),)

    def _ending(self, member: Member) -> Change:
        lost = member.node not in self.nodes or self.nodes[member.node].gone
        stays = member.status in (Status.LEAVING, Status.REMOVING)
        step = Step.FINISH if lost and stays else self._random.choice((Step.FINISH, Step.FINISH, Step.CANCEL))
        if lost and not stays:
            step = Step.CANCEL
        return Change(_BEGUN[member.status], step, member.node)

    def _abort(self, node: _Node) -> None:
        """An operator has seen what is pending at a node, and aborts it: at some node, and where all must
        accept, at all that can be reached."""
        assert node.member is not None
        standing = node.member.standing
        pending = standing.pending or standing.proposing
        if pending is None:
            return
        if self.setting.mode is Mode.QUORUM:
            self._end_ring(self._random.choice(self.up()), pending)
        elif not self.setting.aborting:
            # A careful operator asks the initiator, which knows whether it has committed.
            initiator = self.nodes[pending.initiator]
            proposing = initiator.member.standing.proposing if initiator.member is not None else None
            if proposing is not None and proposing.op == pending.op:
                self._abort_at(initiator, pending)
        else:
            for one in self.up():
                self._abort_at(one, pending)
            self.checks.aborted(pending.op)

    def _end_ring(self, node: _Node, pending: Proposal) -> None:
        if self._abort_at(node, pending):
            ending = node.member.standing.proposing if node.member is not None else None
            if ending is not None:
                self._ending_ops[ending.op] = pending.op

    def _abort_at(self, node: _Node, pending: Proposal) -> bool:
        assert node.member is not None
        refused, effects = node.member.abort(pending.op, pending.base, self.now_ms)
        self.tell(node.name, f"operator aborts {pending.op} {refused}")
        self.fact("operator aborted" if not refused else "operator's abort refused")
        self._done(node, effects)
        return not refused

    # -- the end -------------------------------------------------------------------------------------

    def _rest(self) -> None:
        newest = self.checks.newest
        here = [node for node in self.up() if node.name in newest.present]
        if not all(self._majority_lives(node.kept.ring) for node in here):
            # Living members left after others were lost: nobody can agree on anything.
            self.fact("a majority was lost for good")
            return
        promised = {}
        for node in here:
            assert node.member is not None
            pending = node.member.standing.pending
            if pending is not None and self.setting.mode is Mode.UNANIMOUS:
                promised[node.name] = pending.op
        self.checks.rested({node.name: node.kept.ring for node in here}, promised)
        self._last_change()

    def _last_change(self) -> None:
        """A ring that has come to rest can be changed: a majority, or everybody, is there."""
        before = self.checks.newest
        voters = [self.nodes[name] for name in before.voters if not self.nodes[name].gone]
        for node in voters[:1]:
            self._named += 1
            op = self._propose(node, (self._joining(f"n{self._named}"),))
            self._until(self.now_ms + REST_MS)
            if not op or self.checks.newest.sequence == before.sequence:
                raise Violation("LIVENESS", f"{node.name} cannot change {before.title()} after all healed")
        if self.facts.get(f"proposal {Outcome.UNKNOWN}"):
            self.fact("an outcome was not known")
