"""Random topology operations on the real transformations, every step compared with the obvious model.

Invariant: what is compared comes from the metadata value alone; the model is told what was asked for and
which stage was entered, and never reads the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from lockstep.metadata import schema_change, transformations
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.metadata.operations import Body
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.schema.changes import CreateKeyspace
from lockstep.schema.model import Replication
from lockstep.sim.drills.placement_model import Model, Place
from lockstep.sim.runtime.streams import stream
from lockstep.topology import transformations as topology_transformations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.transformations import (
    AdvanceOperation,
    CancelOperation,
    PrepareOperation,
    can_go_back,
)
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: One operation in so many is cancelled where it can be: 5%.
_CANCEL_ONE_IN = 20
_RACKS = 3
_NOBODY = NodeId(0)
#: One wish in so many is about the factors, which are from 1 to this one.
_FACTORS_ONE_IN = 12
#: Up to so many nodes they change as often as later, when it has grown.
_FEW_NODES = 10
_FACTOR_MAX = 5
_KEYSPACE = "k"
#: Percentage of operations that are joins, before the nodes were once as many as wanted, and then.
_JOINS_GROWING, _JOINS_GROWN = 85, 30
#: Operations after which a run that did not grow is given up: 85 joins in 100 take less than 2 a node.
_BEGUN_PER_NODE_MAX = 8
#: Tries to begin an operation before a step is made instead.
_TRIES = 3


class Setting(msgspec.Struct, frozen=True):
    """One configuration; `factor` is that of each data centre, `dcs` 0 is SimpleStrategy."""

    dcs: int
    factor: int
    tokens: int
    concurrency: int
    nodes_max: int
    operations: int

    @property
    def name(self) -> str:
        where = f"{self.dcs} dcs" if self.dcs else "simple"
        return (
            f"{where}, factor {self.factor}, {self.tokens} tokens, {self.concurrency} at once, "
            f"up to {self.nodes_max} nodes"
        )

    @property
    def replication(self) -> Replication:
        if not self.dcs:
            return Replication("SimpleStrategy", (("", self.factor),))
        factors = tuple((f"dc{dc}", self.factor) for dc in range(1, self.dcs + 1))
        return Replication("NetworkTopologyStrategy", factors)


class Wish(msgspec.Struct, frozen=True):
    """What is asked for; `tokens` that its node is to own, where the body does not say them."""

    body: Body
    tokens: tuple[int, ...] | None = None

    def told(self) -> tuple[int, ...]:
        """The tokens that the model is told."""
        return self.body.about.tokens if self.tokens is None else self.tokens


class Drill:
    """`found` has what is wrong, the first at the step where it happened; `did` counts what was done."""

    def __init__(self, setting: Setting, seed: int, model: type[Model] = Model) -> None:
        self.setting = setting
        self.replication = setting.replication
        self.draw = stream(seed, f"placements {setting.name}")
        self._registry = Registry(
            transformations.KINDS, schema_change.KINDS, topology_transformations.KINDS, unions=UNIONS
        )
        self._tip = Tip(empty_cluster(), self._registry)
        self._number = 0
        self._cancelled: dict[int, bool] = {}
        self._begun = 0
        #: The factors are to change as soon as nothing runs: they change beside no other operation.
        self._wants_factors = False
        self.model = model(dict(self.replication.factors))
        #: The most token owners and running operations at any step.
        self.nodes_reached = self.at_once = 0
        self.found: list[str] = []
        self.did: Counter[str] = Counter()

    @property
    def now(self) -> ClusterMetadata:
        return self._tip.value

    def run(self) -> None:
        """Until it grew, all operations are over, or something is wrong."""
        self._initialize()
        while not self.found and (self._begins() or self.model.running):
            begun = False
            if self._begins() and len(self.model.running) < self.setting.concurrency:
                begun = any(self._begin() for _ in range(_TRIES))
                self._begun += not begun and not self.model.running
            if not self.found and (not begun or self.draw.randrange(2)):
                self._advance()

    def _begins(self) -> bool:
        """Whether operations are still begun: so many, and more until it grew."""
        grown = self.nodes_reached >= self.setting.nodes_max
        return self._begun < self.setting.operations or (
            not grown and self._begun < _BEGUN_PER_NODE_MAX * self.setting.nodes_max
        )

    def _submit(self, body: Transformation) -> str:
        """Empty when it was accepted, else the refusal; an accepted one is compared with the model."""
        self._number += 1
        kind, encoded = self._registry.encode(body)
        judged = self._tip.judge(self._number.to_bytes(16, "big"), kind, encoded, "sim", 0, 1)
        if isinstance(judged, Refused):
            self.did[f"{_name(body)} refused"] += 1
            return judged.rejection.message
        assert isinstance(judged, Appended), f"{judged} of a fresh id"
        self._tip.applied_now(self._tip.value)
        self.did[f"{_name(body)} done"] += 1
        return ""

    def _initialize(self) -> None:
        founders = []
        count = max(2, self.setting.factor) * max(1, self.setting.dcs)
        for number in range(1, count + 1):
            place = self._place(number)
            tokens = self._tokens()
            founders.append(
                Founder(f"host-{number}", f"10.0.0.{number}", 7000, 0, 0, place.dc, place.rack, tokens)
            )
            self.model.add(number, place, tokens)
        assert not self._submit(Initialize("cluster", "placements", tuple(founders)))
        named = [(dc or "replication_factor", str(factor)) for dc, factor in self.replication.factors]
        options = (("class", self.replication.strategy), *named)
        assert not self._submit(schema_change.ChangeSchema(CreateKeyspace(_KEYSPACE, options)))
        self._compare(self.now)

    def _place(self, number: int) -> Place:
        return Place(f"dc{(number - 1) % max(1, self.setting.dcs) + 1}", f"r{self.draw.randrange(_RACKS)}")

    def _tokens(self) -> tuple[int, ...]:
        span = TOKEN_MAX - TOKEN_MIN
        return tuple(
            sorted(TOKEN_MIN + 1 + self.draw.randrange(span - 1) for _ in range(self.setting.tokens))
        )

    # -- operations ---------------------------------------------------------------------------------

    def _begin(self) -> bool:
        before = self.now
        self._wants_factors = self._wants_factors or self.draw.randrange(self._factors_one_in()) == 0
        if self._wants_factors:
            return not self.model.running and self._begin_change()
        wish = self._wanted()
        if wish is None:
            return False
        body = PrepareOperation(wish.body)
        refusal = self._submit(body)
        alone = not self.model.running
        if refusal:
            if alone and self._should_begin(body):
                self.found.append(f"epoch {before.epoch}: {body} was refused for nothing: {refusal}")
            return False
        if not self._should_begin(body):
            self.found.append(f"epoch {before.epoch}: {body} was accepted")
        self._begun += 1
        operation_id = before.next_operation_id
        self._cancelled[operation_id] = self.draw.randrange(_CANCEL_ONE_IN) == 0
        about = wish.body.about
        self.model.begin(operation_id, about.kind, about.node, wish.told(), about.replaced)
        self._compare(before)
        return True

    def _factors_one_in(self) -> int:
        """Fewer while it grows: such a change takes many steps beside which no node joins."""
        is_growing = _FEW_NODES < self.nodes_reached < self.setting.nodes_max
        return 8 * _FACTORS_ONE_IN if is_growing else _FACTORS_ONE_IN

    def _other_factors(self) -> dict[str, int]:
        """No more than nodes own tokens."""
        found = {}
        for dc in self.model.factors:
            owning = sum(dc in ("", owner.dc) for owner in self.now.directory.owners)
            found[dc] = self.draw.randint(1, max(1, min(_FACTOR_MAX, owning)))
        return found

    def _begin_change(self) -> bool:
        before, factors = self.now, self._other_factors()
        self._wants_factors = False
        if factors == self.model.factors:
            return False
        target = Replication(self.replication.strategy, tuple(sorted(factors.items())))
        refusal = self._submit(PrepareOperation(ReplicationChange(_KEYSPACE, target)))
        if refusal:
            self.found.append(f"epoch {before.epoch}: {target.text()} was refused for nothing: {refusal}")
            return False
        self._begun += 1
        operation_id = before.next_operation_id
        self._cancelled[operation_id] = self.draw.randrange(_CANCEL_ONE_IN) == 0
        self.model.begin_change(operation_id, factors)
        self._compare(before)
        return True

    def _should_begin(self, body: PrepareOperation) -> bool:
        """By nodes and factors alone; what holds a range may still refuse it."""
        about = body.body.about
        if about.presumed_dead:
            dead = about.presumed_dead
            alone = self.model.factors.get("", self.model.factors.get(self.model.places[dead].dc))
            if alone == 1:
                return False
        if about.departing == about.node:
            return self.model.leaves_enough(about.node)
        return True

    def _wanted(self) -> Wish | None:
        idle = [n.id for n in self.now.directory.in_state(NodeState.NORMAL) if not self._busy(n.id)]
        movable = [node for node in idle if node not in self.now.service.members]
        size = len(self.now.directory.owners)
        draw = self.draw.randrange(100)
        growing = _JOINS_GROWING if self.nodes_reached < self.setting.nodes_max else _JOINS_GROWN
        if not idle or (size < self.setting.nodes_max and draw < growing):
            node = self._newcomer()
            return Wish(Bootstrap(node, self._tokens())) if node else None
        if not movable:
            return None
        chosen = movable[self.draw.randrange(len(movable))]
        draw = self.draw.randrange(100)
        if draw < 20:
            return Wish(Decommission(chosen))
        if draw < 45:
            return Wish(Remove(chosen))
        if draw < 70:
            node = self._newcomer(chosen)
            return Wish(Replace(node, chosen)) if node else None
        if draw < 93:
            return Wish(Move(chosen, self._tokens()))
        return Wish(Rebuild(chosen))

    def _busy(self, node: NodeId) -> bool:
        return any(node in (running.node, running.replaced) for running in self.model.running.values())

    def _newcomer(self, replaced: NodeId = _NOBODY) -> NodeId:
        """A node that waits to join (or to replace this one), else a new one; 0 when there can be none."""
        for node in self.now.directory.in_state(NodeState.NONE):
            if node.replaces == replaced and not self._busy(node.id):
                return node.id
        number = self.now.directory.next_node_id
        place, address = self._place(number), f"10.1.{number // 200}.{number % 200}"
        if replaced:
            dead = self.now.directory.by_id[replaced]
            place = Place(dead.dc, dead.rack)
            if self.draw.randrange(2):
                address = dead.address
        body = Register(
            f"join-{number}", address, 7000, 0, 0, place.dc, place.rack, may_vote=False, replaces=replaced
        )
        if self._submit(body):
            return NodeId(0)
        self.model.add(number, place)
        return NodeId(number)

    def _advance(self) -> None:
        if not self.model.running:
            return
        before = self.now
        operation_id = self.draw.choice(sorted(self.model.running))
        operation = before.operations_by_id[operation_id]
        if self._cancelled[operation_id] and can_go_back(operation) and self.draw.randrange(2):
            refusal = self._submit(CancelOperation(operation_id, "sim"))
            self.model.cancel(operation_id)
        else:
            refusal = self._submit(AdvanceOperation(operation_id, operation.stage, operation.step))
        if refusal:
            self.found.append(f"epoch {before.epoch}: {operation.title()} cannot go on: {refusal}")
            return
        after = self.now.operations_by_id.get(operation_id)
        if after is None:
            self.model.end(operation_id)
            self.did[f"{operation.kind} ended"] += 1
        elif (after.stage, after.step) != (operation.stage, operation.step):
            self.model.enter(operation_id, after.stage.value)
        self._compare(before)

    # -- comparison ---------------------------------------------------------------------------------

    def _compare(self, before: ClusterMetadata) -> None:
        self.did["steps compared"] += 1
        self.nodes_reached = max(self.nodes_reached, len(self.now.directory.owners))
        self.at_once = max(self.at_once, len(self.model.running))
        self.found.extend(f"epoch {self.now.epoch}: {problem}" for problem in self._problems(before))

    def _problems(self, before: ClusterMetadata) -> Iterator[str]:
        yield from self._node_problems()
        running_now, moving = sorted(self.now.operations_by_id), sorted(self.now.transitions.owned)
        if running_now != sorted(self.model.running) or not set(moving) <= set(running_now):
            yield f"{running_now} run, {moving} hold ranges, running are {sorted(self.model.running)}"
        keyspace = self.now.schema.by_name[_KEYSPACE]
        held = keyspace.replication
        if dict(held.factors) != {dc: f for dc, f in self.model.factors_read().items() if f or not dc}:
            yield f"the replication is {held.text()}, the model says {self.model.factors_read()}"
        ring = self.now.placements.ring(keyspace.group)
        for number in moving:
            for one in self.now.transitions.of(number):
                is_own = self.now.transitions.at(ring.id, one.range.right) is one
                if not is_own or ring.range_at(one.range.right).range != one.range:
                    yield f"{one.range} of operation {number} is no placed range that it holds alone"
        left = TOKEN_MIN
        for placed in ring.ranges:
            if placed.range.left != left:
                yield f"tokens ({left}, {placed.range.left}] are covered twice, or by nobody"
            left = placed.range.right
        if left != TOKEN_MAX:
            yield f"tokens above {left} are covered by nobody"
        points = {placed.range.right for placed in ring.ranges} | set(self.model.tokens)
        for running in self.model.running.values():
            points.update(running.tokens)
        then = before.schema.by_name.get(_KEYSPACE)
        former = before.placements.ring(then.group) if then is not None else None
        for point in sorted(points):
            group = ring.group_for(point)
            yield from self._point_problems(point, group.reads, group.writes)
            if former is not None:
                fresh = set(group.reads) - set(former.group_for(point).writes)
                if fresh:
                    yield f"token {point}: {sorted(fresh)} are read and got no writes before"

    def _point_problems(
        self, point: int, reads: tuple[NodeId, ...], writes: tuple[NodeId, ...]
    ) -> Iterator[str]:
        touching, reordered = self.model.touching(point), self.model.reordered(point)
        if len(touching) > 1:
            yield f"token {point}: operations {touching} change it at once"
        ring = self.now.placements.ring(self.now.schema.by_name[_KEYSPACE].group)
        moving = self.now.transitions.holder_at(ring, point)
        holders = [moving.operation_id] if moving is not None else []
        if not set(touching) <= set(holders) or not set(holders) <= {*touching, *reordered}:
            yield f"token {point}: held by {holders}, changed by {touching}"
        wanted, writers = self.model.readers_writers(point)
        if reads != wanted or set(writes) != writers:
            yield f"token {point}: read {reads}, written {writes}; the model says {wanted}, {sorted(writers)}"
        for dc, factor in self.model.factors_read().items():
            local = [node for node in reads if dc in ("", self.model.places[node].dc)]
            if len(local) != min(factor, self.model.owning(dc, point)):
                yield f"token {point}: {len(local)} readers {dc}, factor {factor}"

    def _node_problems(self) -> Iterator[str]:
        owned: dict[int, list[int]] = {}
        for token, owner in self.model.tokens.items():
            owned.setdefault(owner, []).append(token)
        for node in self.now.directory.nodes:
            if node.state.value != self.model.states[node.id]:
                yield f"node {node.id} is {node.state}, the model says {self.model.states[node.id]}"
            if list(node.tokens) != sorted(owned.get(node.id, [])):
                yield f"node {node.id} owns {node.tokens}, the model says {sorted(owned.get(node.id, []))}"


def _name(body: Transformation) -> str:
    return body.body.about.kind if isinstance(body, PrepareOperation) else type(body).__name__
