"""Random histories of operations, and a coordinator's world in which nodes lag, work and die."""

from __future__ import annotations

import random

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transformations import Initialize, Register
from lockstep.schema.model import Replication
from lockstep.topology.force_remove import ForceRemove, MarkRepaired
from lockstep.topology.generations import PublishGenerations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.step import Idle, Propose, Reports, RunWorkOrders, WorkKey, WorkReport, step, work_key
from lockstep.topology.transformations import (
    AdvanceOperation,
    CancelOperation,
    PrepareOperation,
    can_go_back,
)
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple

NODES_MAX = 8


def register(number: int, dc: str, rack: str) -> Register:
    return Register(f"host-{number}", f"10.0.1.{number}", 7000, 9042, 7080, dc, rack, "1")


def replacing(number: int, dead: NodeInfo, same_address: bool = False) -> Register:
    address = dead.address if same_address else f"10.0.1.{number}"
    return Register(f"host-{number}", address, 7000, 9042, 7080, dead.dc, dead.rack, "1", replaces=dead.id)


def random_replication(rng: random.Random, dcs: int) -> Replication:
    if rng.random() < 0.4:
        return simple(rng.randint(1, 3))
    return network(**{f"dc{dc}": rng.randint(1, 3) for dc in range(1, dcs + 1)})


def random_start(seed: int, kinds: Registry | None = None) -> tuple[History, random.Random]:
    """1 to 5 founders in 1 or 2 data centres (each has one), with two keyspaces."""
    rng = random.Random(seed)
    dcs = rng.randint(1, 2)
    history = History(kinds)
    founders = []
    for number in range(1, rng.randint(dcs, 5) + 1):
        dc = f"dc{(number - 1) % dcs + 1}"
        founders.append(founder(number, fresh_tokens(history, rng, founders), dc, f"r{rng.randint(1, 3)}"))
    history.submit(Initialize("c", "n", tuple(founders), voters=(NodeId(1),)))
    history.submit(SetKeyspaces((("a", random_replication(rng, dcs)), ("b", random_replication(rng, dcs)))))
    return history, rng


def fresh_tokens(
    history: History, rng: random.Random, founders: list[object] | None = None
) -> tuple[int, ...]:
    taken = set(history.now.directory.circle.tokens)
    for other in founders or []:
        taken.update(other.tokens)  # type: ignore[attr-defined]
    free = [token for token in range(-120, 121) if token not in taken]
    return tuple(sorted(rng.sample(free, rng.randint(1, 4))))


def random_change(history: History, rng: random.Random) -> Transformation:
    """Something a cluster may be asked to do now; it may well be refused."""
    now = history.now
    dcs = len(now.directory.data_centers)
    newcomers = now.directory.in_state(NodeState.NONE)
    normal = now.directory.in_state(NodeState.NORMAL)
    draw = rng.random()
    if draw < 0.12 and len(now.directory.present_ids) < NODES_MAX:
        number = now.directory.next_node_id
        if normal and rng.random() < 0.35:
            return replacing(number, rng.choice(normal), rng.random() < 0.5)
        return register(number, f"dc{rng.randint(1, dcs)}", f"r{rng.randint(1, 3)}")
    if draw < 0.26 and newcomers:
        return random_join(history, rng, rng.choice(newcomers))
    if draw < 0.42 and normal:
        return random_work_on(history, rng, rng.choice(normal))
    if draw < 0.46:
        if draw < 0.44:
            wanted = random_replication(rng, dcs)
            name = rng.choice("ab")
            return PrepareOperation(ReplicationChange(name, wanted))
        names = rng.sample(["a", "b", "c"], rng.randint(1, 3))
        return SetKeyspaces(tuple((name, random_replication(rng, dcs)) for name in names))
    if draw < 0.475 and normal:
        return ForceRemove(rng.choice(normal).id, "drill")
    if draw < 0.49 and now.degraded:
        one = rng.choice(now.degraded)
        return MarkRepaired(one.group, one.range)
    if draw < 0.53 and now.operations:
        return CancelOperation(rng.choice(now.operations).id, "drill")
    if now.operations:
        chosen = rng.choice(now.operations)
        return AdvanceOperation(chosen.id, chosen.stage, chosen.step)
    return PrepareOperation(Decommission(NodeId(rng.randint(1, NODES_MAX))))


def random_join(history: History, rng: random.Random, newcomer: NodeInfo) -> PrepareOperation:
    if newcomer.replaces:
        return PrepareOperation(Replace(newcomer.id, newcomer.replaces))
    if rng.random() < 0.2:
        other = rng.choice(history.now.directory.nodes)
        return PrepareOperation(Replace(newcomer.id, other.id))
    return PrepareOperation(Bootstrap(newcomer.id, fresh_tokens(history, rng)))


def random_work_on(history: History, rng: random.Random, node: NodeInfo) -> PrepareOperation:
    kind = rng.choice((Decommission, Move, Remove, Rebuild))
    if kind is Move:
        kept = node.tokens[: rng.randint(0, 1)]
        return PrepareOperation(kind(node.id, (*kept, *fresh_tokens(history, rng))))
    if kind is Rebuild and rng.random() < 0.5:
        return PrepareOperation(kind(node.id, source_dc=rng.choice(history.now.directory.data_centers)))
    return PrepareOperation(kind(node.id))


class Coordinator:
    """Drives a history by `step`, with nodes that see epochs late and a barrier that may be ignored."""

    def __init__(self, history: History, rng: random.Random, dead: tuple[NodeId, ...] = ()) -> None:
        self.history = history
        self.rng = rng
        self.dead = dead
        #: What each node has really applied, and what of it the coordinator knows.
        self.seen: dict[NodeId, int] = {}
        self.known: dict[NodeId, int] = {}
        self.work: dict[WorkKey, WorkReport] = {}
        self.log: list[str] = []

    def reports(self) -> Reports:
        return Reports(acknowledged=self.known, work=self.work, dead=self.dead)

    def round(self) -> bool:
        """One decision, or one node catching up a bit; False when idle."""
        now = self.history.now
        decision = step(now, self.reports())
        if isinstance(decision, Idle):
            return False
        if isinstance(decision, Propose):
            self.history.submit(decision.transformation)
            self.log.append(f"{self.history.now.epoch}: {type(decision.transformation).__name__}")
        elif isinstance(decision, RunWorkOrders):
            order = self.rng.choice(decision.orders)
            assert now.session_open(order.session_id)
            self.work[work_key(order)] = WorkReport.DONE
            self.log.append(f"   {order.kind} on node {order.node}")
        else:
            blockers = [NodeId(node) for node, _ in decision.blockers if node not in self.dead]
            if not blockers:
                return False
            self.catch_up(self.rng.choice(blockers), decision.epoch)
        return True

    def catch_up(self, node: NodeId, epoch: int) -> None:
        seen = self.seen.get(node, 0)
        self.seen[node] = self.rng.randint(seen, max(seen, epoch))
        self.known[node] = self.seen[node]

    def finish(self, rounds: int = 2000) -> None:
        for _ in range(rounds):
            if not self.round():
                return
        raise AssertionError("the operation does not end")


def run_to(history: History, operation_id: int, stage: Stage) -> Operation:
    """Advance one operation, ignoring barriers, until it is in `stage`."""
    while history.now.operations_by_id[operation_id].stage is not stage:
        operation = history.now.operations_by_id[operation_id]
        history.submit(AdvanceOperation(operation_id, operation.stage, operation.step))
    return history.now.operations_by_id[operation_id]


def run_out(history: History, operation_id: int) -> None:
    """Advance one operation, ignoring barriers, to its end."""
    while operation_id in history.now.operations_by_id:
        operation = history.now.operations_by_id[operation_id]
        history.submit(AdvanceOperation(operation_id, operation.stage, operation.step))


def run_join_to(history: History, operation_id: int, stage: Stage) -> Operation:
    """As `run_to`; what it makes of streams is published as soon as it may be."""
    if stage not in (Stage.JOIN_GROUP0, Stage.COMMIT_CDC_GENERATION):
        run_to(history, operation_id, Stage.COMMIT_CDC_GENERATION)
        history.submit(PublishGenerations(history.now.epoch, 0))
    return run_to(history, operation_id, stage)


def may_cancel(operation: Operation) -> bool:
    return can_go_back(operation)


def refused(history: History, body: Transformation) -> str:
    refusal: Rejected | None = history.tried(body)
    assert refusal is not None, f"{body} was accepted"
    return refusal.message


def options(replication: Replication) -> tuple[tuple[str, str], ...]:
    """As a statement names them."""
    named = ((dc or "replication_factor", str(factor)) for dc, factor in replication.factors)
    return (("class", replication.strategy), *named)


def advance(history: History) -> None:
    """The first operation takes its next step."""
    operation = history.now.operations[0]
    history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))


def finish(history: History) -> None:
    """Until no operation is left."""
    for _ in range(1000):
        if not history.now.operations:
            return
        advance(history)
    raise AssertionError("it does not end")
