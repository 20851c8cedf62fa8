"""A slow model of a metadata group: one log of metadata entries and configurations, of which a lost leader
takes the uncommitted end with it, and nodes that die and come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import CancelMembership
from lockstep.metadata.groups.membership_step import (
    Configure,
    GroupView,
    Idle,
    Members,
    Observed,
    Submit,
    Transfer,
    Waits,
    next_step,
)
from lockstep.metadata.log.tip import Appended, Tip
from lockstep.topology.requests import FailRequest, choose
from lockstep.topology.transformations import preparation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History

ROUNDS_MAX = 3000


class Item(msgspec.Struct):
    """What one position of the log made of the value and of the configuration."""

    value: ClusterMetadata
    members: Members


class Group:
    """Each round the leader asks for its next step and does it, or something happens to it."""

    def __init__(self, history: History, draw: random.Random, loss: float) -> None:
        self.history = history
        self.draw = draw
        self.loss = loss
        self.log = [Item(history.now, Members(history.now.voters))]
        self.commit = 0
        self.leader = history.now.voters[0]
        self.behind: dict[int, int] = {}
        self.reached: dict[NodeId, int] = {}
        self.down: set[NodeId] = set()
        #: How likely it gives up one that is alive, in each of the first rounds.
        self.impatience = 0.0
        self.round = 0
        self.lose_leader_at = 0
        self.configurations_seen: list[tuple[int, tuple[int, ...]]] = []
        self.waits: list[Waits] = []
        self._planned: list[tuple[int, Any]] = []
        self._deaths: list[tuple[int, NodeId, bool]] = []
        self._ids = 1 << 32
        self._idle = 0

    @property
    def tip(self) -> ClusterMetadata:
        return self.log[-1].value

    @property
    def learners(self) -> tuple[int, ...]:
        return self.log[-1].members.learners

    @property
    def settled(self) -> bool:
        return self._idle > 3 and self.commit == len(self.log) - 1 and not self._planned and not self._deaths

    @property
    def quiet(self) -> bool:
        return self.settled or (self.round > 400 and not self._planned and not self._deaths)

    def at(self, round_number: int, transformation: Any) -> None:
        self._planned.append((round_number, transformation))

    def dies(self, round_number: int, node: NodeId, rounds: int) -> None:
        self._deaths += [(round_number, node, True), (round_number + rounds, node, False)]

    def settle(self) -> None:
        self.run(lambda: self.settled)

    def run(self, done: Callable[[], bool]) -> None:
        start, self._idle = self.round, 0
        while not done():
            self.round += 1
            assert self.round < start + ROUNDS_MAX, f"no end: {self.tip.service}, {self.waits[-2:]}"
            self._happen()
            self._commit()
            if self._electable():
                self._lead()
            self._check()

    # -- what happens

    def _happen(self) -> None:
        for planned in [p for p in self._planned if p[0] <= self.round]:
            self._planned.remove(planned)
            self.submit(planned[1])
        for death in [d for d in self._deaths if d[0] <= self.round]:
            self._deaths.remove(death)
            _, node, dead = death
            (self.down.add if dead else self.down.discard)(node)
        if self.round == self.lose_leader_at or self.draw.random() < self.loss or self.leader in self.down:
            self._change_leader()
        for node in list(self.behind):
            self.behind[node] -= 1 if NodeId(node) not in self.down else 0
            if self.behind[node] <= 0:
                del self.behind[node]
        for info in self.tip.directory.nodes:
            if info.id not in self.down and self.draw.random() < 0.5:
                self.reached[info.id] = self.log[self.commit].value.epoch

    def _electable(self) -> bool:
        alive = [v for v in self.log[-1].members.voters if NodeId(v) not in self.down]
        return self.leader not in self.down and 2 * len(alive) > len(self.log[-1].members.voters)

    def _change_leader(self) -> None:
        """Whoever wins has what is committed, and perhaps more."""
        kept = self.draw.randrange(self.commit, len(self.log))
        del self.log[kept + 1 :]
        alive = [v for v in self.log[-1].members.voters if NodeId(v) not in self.down]
        if alive:
            self.leader = NodeId(self.draw.choice(alive))

    def _commit(self) -> None:
        voters = self.log[-1].members.voters
        alive = [v for v in voters if NodeId(v) not in self.down]
        if 2 * len(alive) > len(voters):
            self.commit = self.draw.randrange(self.commit, len(self.log))
            if self.draw.random() < 0.3:
                self.commit = len(self.log) - 1

    # -- the leader

    def submit(self, transformation: Any) -> None:
        """Judged against the tip; a cancel without an id means the running change."""
        change = self.tip.service.change
        if isinstance(transformation, CancelMembership) and not transformation.change and change is not None:
            transformation = CancelMembership(change.id, transformation.reason)
        kind, body = self.history.registry.encode(transformation)
        self._ids += 1
        judged = Tip(self.tip, self.history.registry)
        outcome = judged.judge(self._ids.to_bytes(16, "big"), kind, body, "model", 0, 1)
        if isinstance(outcome, Appended):
            self.log.append(Item(judged.value, self.log[-1].members))

    def _lead(self) -> None:
        newest = self.log[-1]
        behind = [node for node in self.behind if node in newest.members.learners]
        view = GroupView(
            self.leader,
            newest.members,
            settled=self._configured() <= self.commit,
            caught_up=tuple(
                NodeId(n)
                for n in (*newest.members.voters, *newest.members.learners)
                if n not in behind and NodeId(n) not in self.down
            ),
        )
        follows = "behind" if self.draw.random() < 0.2 else ""
        observed = Observed(
            self.reached,
            down=tuple(sorted(self.down)),
            follows=follows,
            late=self._late(),
        )
        action = next_step(self.tip, view, observed)
        self._check_order(action, follows)
        self._idle = self._idle + 1 if isinstance(action, Idle) else 0
        if isinstance(action, Waits):
            self.waits.append(action)
            if action.reason.startswith("too few"):
                self._idle = 4
        self._do(action)
        self._serve_queue(follows)

    def _serve_queue(self, follows: str) -> None:
        choice = choose(self.tip, follows)
        if choice.run is not None:
            assert not follows, "nobody goes while the other group may need it"
            self.submit(preparation(choice.run, choice.run.id))
        elif choice.fails is not None:
            self.submit(FailRequest(choice.fails[0].id))

    def _late(self) -> tuple[NodeId, ...]:
        """Whom the leader lost its patience with: dead ones, and others where the model is impatient."""
        change = self.tip.service.change
        coming = change.additions if change is not None else ()
        return tuple(
            node
            for node in coming
            if self.draw.random()
            < (0.1 if node in self.down else self.impatience if self.round < 200 else 0.0)
        )

    def _check_order(self, action: Any, follows: str) -> None:
        """Nobody goes while the other group may need it."""
        if follows:
            assert not isinstance(action, Transfer)
            if isinstance(action, Configure):
                assert set(action.members.voters) >= set(self.log[-1].members.voters)

    def _configured(self) -> int:
        """Position of the entry that brought the configuration in force."""
        at = len(self.log) - 1
        while at and self.log[at - 1].members == self.log[at].members:
            at -= 1
        return at

    def _do(self, action: Any) -> None:
        if isinstance(action, Configure):
            before = self.log[-1].members
            added = set(action.members.learners) - set(before.learners)
            for node in added:
                self.behind[node] = self.draw.randrange(1, 6)
            promoted = set(action.members.voters) - set(before.voters)
            assert len(set(action.members.voters) ^ set(before.voters)) <= 1, "one at a time"
            assert promoted <= set(before.learners), "a voter was a learner before"
            assert not promoted & set(self.behind), "its log is not here"
            assert self.leader in action.members.voters, "a leader removes itself"
            self.log.append(Item(self.tip, action.members))
            self.configurations_seen.append((len(self.configurations_seen), action.members.voters))
        elif isinstance(action, Transfer):
            assert action.to in self.log[-1].members.voters
            self._change_leader()
            self.leader = action.to
        elif isinstance(action, Submit):
            self.submit(action.transformation)

    def _check(self) -> None:
        """At every position of the log the record is the configuration, or one sub-step behind it."""
        service, members = self.tip.service, self.log[-1].members
        differing = set(service.voters) ^ set(members.voters)
        assert members.voters, "nobody votes"
        if service.change is None:
            assert not differing, f"{members} without a change, recorded {service.voters}"
        else:
            assert len(differing) <= 1 and differing <= {service.change.member}
