"""One seed: a majority is lost, repairs are made while nodes die at what they make durable, and what was lost
comes back.

Which node dies at which record in the first repair follows from the seed by counting, so that consecutive
seeds have them all; everything else is drawn.

Invariant: everything follows from the seed. After the last fault a cluster most of whose voters are up has
leaders and takes a change, and every node that is not destroyed serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lockstep.metadata.directory import Identity
from lockstep.metadata.groups.placing import PlaceManagement
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.processors.raft import logged_entries
from lockstep.node.recovery.judging import as_target
from lockstep.recovery.plan import Wish
from lockstep.recovery.steps import Phase
from lockstep.schema.changes import CreateKeyspace
from lockstep.sim.checkers.machines import self_checking
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.disasters.nodes import DisasterNodes, Doing
from lockstep.sim.disasters.watch import DisasterWatch
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import CrashRule
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.sim.seed_result import SeedResult, classified
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import RECOVERY_HASHES_TOLD

#: Everything that a repair makes durable, in order.
PLACES: Final = (
    "recovery.prepared",
    "recovery.activated",
    "recovery.extended",
    "recovery.managed",
    "recovery.grouped",
    "recovery.moved",
    "recovery.applied",
    "recovery.decided",
    "recovery.migrating",
    "recovery.journals_forgotten",
)
#: Who dies: the node that conducts, another one that takes part, and whoever leads the new groups first.
ROLES: Final = ("conductor", "participant", "leader")
#: What may have to be seen in a batch of seeds.
SOMETIMES: Final = (
    "reset decided",
    "reset by the log",
    "reset refused",
    "old ones came back",
    "migrated",
    "two repairs apart",
    "disks destroyed",
    "managers apart",
    "died as conductor",
    "died as participant",
    "died as leader",
    "a tail was kept",
    *PLACES,
)
NAME: Final = "disasters"
_FOUND_S: Final = 60.0
_SETTLE_S: Final = 90.0
#: Three of five vote, or five of six.
_NODES: Final = (5, 5, 6)


class DisasterRun:
    """`result()` runs it all. `story` tells what happened when a trace was asked for."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.world = World(seed, WorldSettings(keep_trace=trace))
        self._draw = self.world.stream("disasters")
        self.story: list[tuple[int, str, str]] | None = [] if trace else None
        self.facts: dict[str, int] = {}
        self.watch = DisasterWatch()
        vanish_percent = 50 if self._draw.random() < 0.2 else 0
        self.nodes = DisasterNodes(self.world, self._draw.choice(_NODES), vanish_percent, self._logged)
        self.watch.nodes = self.nodes
        self.world.monitors.append(self.watch)
        self._names = 0
        self._pending: list[tuple[Doing, Callable[[Doing], None]]] = []

    # -- what is told

    def fact(self, name: str) -> None:
        self.facts[name] = self.facts.get(name, 0) + 1

    def tell(self, who: str, text: str) -> None:
        if self.story is not None:
            self.story.append((self.world.now_ns, who, text))

    def _logged(self, name: str, event: str, facts: dict[str, Any]) -> None:
        text = " ".join(f"{key}={value}" for key, value in facts.items())
        self.world.note(name, "log", event, text)
        self.tell(name, f"{event} {text}")
        try:
            self.watch.logged(name, event, facts)
        except Violation as found:
            self.world.fail("monitor", name, str(found), found)

    # -- the run

    def result(self) -> SeedResult:
        with replaced(*self_checking()), self.world:
            invariant, violation = self._ended()
            digest = self.world.digest()
        return SeedResult(
            scenario=NAME,
            seed=self.seed,
            violation=violation,
            invariant=invariant,
            digest=digest,
            events=self.world.trace.count,
            virtual_s=self.world.now_s(),
            judged=self.watch.steps,
            epochs=max((epoch for _, epoch in self.watch.newest()), default=0),
            effects=dict(self.world.effects),
            facts=dict(self.facts),
            probes=dict(self.world.probes.counts),
        )

    def _ended(self) -> tuple[str, str]:
        """(invariant, violation), both empty when everything held."""
        try:
            self._phases()
        except Violation as found:
            return found.invariant, str(found)
        except AssertionError as found:
            return classified(self.world.errors, found)
        return "", ""

    def _phases(self) -> None:
        for number in self.nodes.numbers:
            self.nodes.start(number)
        self._until(_FOUND_S, "founding", self._founded)
        self._change(self._leader())
        self._wait(0.5)
        if self._draw.random() < 0.4:
            self._apart()
        self._strike_majority()
        self._strike_at(PLACES[self.seed % len(PLACES)], ROLES[self.seed // len(PLACES) % len(ROLES)])
        script = self._draw.choice(
            (
                (self._reset, self._come_back, self._migrate),
                (self._reset, self._reset, self._come_back, self._migrate),
                (self._cut, self._reset, self._reset, self._heal, self._come_back, self._migrate),
                (self._cut, self._reset, self._reset, self._reset, self._heal, self._migrate),
                (self._come_back, self._reset, self._migrate, self._reset, self._migrate),
            )
        )
        for work in script:
            work()
            self._wait(self._draw.uniform(0.5, 6.0))
            if self._draw.random() < 0.3:
                self._strike_at(self._draw.choice(PLACES), self._draw.choice(ROLES))
        self._settle()

    def _wait(self, seconds: float) -> None:
        self.world.run_for(seconds)
        self._check()

    def _check(self) -> None:
        self.world.check()
        waiting = self._pending
        self._pending = []
        for doing, ended in waiting:
            if doing.is_done:
                ended(doing)
            else:
                self._pending.append((doing, ended))

    def _until(self, seconds: float, what: str, done: Callable[[], bool]) -> None:
        self.world.run_for(seconds, done=done)
        self._check()
        if not done():
            raise Violation("LIVENESS", f"{what} took more than {seconds} virtual seconds")

    def _founded(self) -> bool:
        up = self.nodes.up()
        if len(up) < len(self.nodes.numbers):
            return False
        groups = [self.nodes.node(number).membership.management.group for number in up]
        voters = tuple(self.nodes.node(up[0]).log.cluster.voters)
        settled = [
            group.driver.raft.configuration.voters == voters == group.state.voters.voters
            for group in groups
            if group is not None and group.is_leader
        ]
        return len(voters) >= 3 and settled == [True]

    # -- what is done

    def _begin(self, number: int, work: Any, ended: Callable[[Doing], None]) -> Doing:
        doing = self.nodes.begin(number, work)
        self._pending.append((doing, ended))
        return doing

    def _leader(self) -> int:
        leading = [number for number in self.nodes.up() if self.nodes.node(number).log.is_leader]
        return leading[0] if leading else self._draw.choice(self.nodes.up())

    def _change(self, number: int) -> Doing:
        """A schema change, which must stay if it is acknowledged and a node that is left holds it."""
        self._names += 1
        replication = (("class", "SimpleStrategy"), ("replication_factor", "1"))
        wanted = ChangeSchema(CreateKeyspace(f"k{self._names}", replication))
        node, cluster_id = self.nodes.node(number), self.nodes.bound(number)

        def ended(doing: Doing) -> None:
            if doing.error is None:
                self.watch.acknowledged.setdefault(cluster_id, []).append(int(doing.value))
                self.tell(f"n{number}", f"acknowledged epoch {doing.value}")

        return self._begin(number, lambda _node: node.log.submit(wanted), ended)

    def _apart(self) -> None:
        """Have the management group live on nodes of its own."""
        members = tuple(sorted(self._draw.sample(self.nodes.numbers[-3:], self._draw.choice((1, 3)))))
        wanted = PlaceManagement(tuple(NodeId(member) for member in members))
        leader = self._leader()

        def arrived() -> bool:
            for number in self.nodes.up():
                group = self.nodes.node(number).membership.management.group
                if group is not None and group.is_leader:
                    raft = group.driver.raft
                    return raft.configuration.voters == members and not raft.configuration.learners
            return False

        self._begin(leader, lambda node: node.log.submit(wanted), lambda _doing: None)
        self._until(_SETTLE_S, "placing the management group", arrived)
        self.fact("managers apart")

    def _strike_majority(self) -> None:
        """A majority of one group is lost, of some the disks, too; the leader may take a tail with it."""
        any_node = self.nodes.node(1)
        voters = [int(voter) for voter in any_node.log.cluster.voters]
        managers = [int(one) for one in any_node.log.voters.named_managers()] or voters
        group = managers if managers != voters and self._draw.random() < 0.5 else voters
        leader = self._leader()
        lost = self._draw.sample(sorted(group), len(group) // 2 + 1)
        if self._draw.random() < 0.6:
            # What a leader appends at its very end is known to nobody to be committed.
            self._change(leader)
            self.world.run_for(2.0, done=lambda: any(self._is_ahead(n) for n in group if n != leader))
            lost = sorted({leader, *lost[:-1]}) if leader in group and leader not in lost else lost
        for number in lost:
            is_destroyed = self._draw.random() < 0.4
            self.nodes.stop(number, self._draw.choice(("kill", "power")), destroyed=is_destroyed)
            if is_destroyed:
                self.fact("disks destroyed")
            self.tell(f"n{number}", "is lost" + (" with its disk" if is_destroyed else ""))
        self._wait(self._draw.uniform(3, 8))

    def _is_ahead(self, number: int) -> bool:
        """Whether its journal has more than it has applied."""
        tail = self._tail(number)
        return bool(tail) and tail[-1].epoch > self.nodes.node(number).log.state.epoch

    def _strike_at(self, place: str, role: str) -> None:
        """Whoever has this role in a repair dies there."""
        up = self.nodes.up()
        if not up:
            return
        chosen = {"conductor": up[0], "participant": up[-1], "leader": up[len(up) // 2]}[role]
        self.world.probes.add(
            CrashRule(
                label=place,
                process=f"n{chosen}",
                kind=self._draw.choice(("kill", "power")),
                hit=1,
                restart_after_s=self._draw.uniform(0.1, 4.0),
                on_fired=lambda name: self._died(name, place, role),
            )
        )

    def _died(self, name: str, place: str, role: str) -> None:
        self.fact(f"died as {role}")
        self.tell(name, f"dies at {place} as {role}")

    def _reset(self) -> None:
        up = self.nodes.up()
        if not up:
            return
        # Whom the first strike calls the conductor conducts; later ones as it comes.
        number = up[0] if self._draw.random() < 0.7 else self._draw.choice(up)
        wish = self._wish(up)

        async def conduct(node: Node) -> Any:
            desk = node.membership.recovery
            plan = await desk.plan(wish)
            held = self._held(plan)
            return await desk.reset(plan), held

        def ended(doing: Doing) -> None:
            if doing.error is not None:
                self.fact("reset refused")
                self.tell(f"n{number}", f"reset: {doing.error}")
                return
            decided, held = doing.value
            self.fact("reset by the log" if decided.plan.by_log else "reset decided")
            self._check_kept(decided.plan, held)

        self.tell(f"n{number}", "is asked for a reset")
        self._begin(number, conduct, ended)

    def _wish(self, up: list[int]) -> Wish:
        drawn = self._draw.random()
        if drawn < 0.3:
            return Wish(tuple(NodeId(one) for one in sorted(self._draw.sample(up, 1))))
        if drawn < 0.4 and len(up) > 2:
            return Wish(excluded=(NodeId(up[-1]),))
        return Wish()

    def _held(self, plan: Any) -> int:
        """The epoch of the freshest entry that a participant has durably, by a look of its own into their
        journals."""
        newest = (0, 0)
        for number in plan.participants:
            if self.process_alive(number) and f"n{number}" in self.nodes.nodes:
                newest = max([newest, *((entry.term, entry.epoch) for entry in self._tail(number))])
        return newest[1]

    def _tail(self, number: int) -> list[LogEntry]:
        """What stands durably in a node's journal of the metadata group."""
        driver = self.nodes.node(number).log.driver
        if driver is None:
            return []
        raft = driver.raft
        return logged_entries(tuple(raft.entry(i) for i in range(raft.first_index, raft.durable_index + 1)))

    def process_alive(self, number: int) -> bool:
        return self.nodes.process(number).alive

    def _check_kept(self, plan: Any, held: int) -> None:
        """What a node that is left holds goes on, acknowledged or not."""
        acknowledged = [epoch for epoch in self.watch.acknowledged.get(plan.former_id, []) if epoch <= held]
        if not plan.by_log and plan.last.epoch <= max([held, *acknowledged]):
            raise Violation("REC-1", f"a node that is left had epoch {held}, and the repair begins before it")
        if len(plan.entries) > 1:
            self.fact("a tail was kept")

    def _come_back(self) -> None:
        """Some that are down start again, and somebody changes something if that can be."""
        down = [
            number
            for number in self.nodes.numbers
            if number not in self.nodes.destroyed and not self.process_alive(number)
        ]
        for number in self._draw.sample(down, self._draw.randint(0, len(down))):
            self.nodes.start(number)
            self.fact("old ones came back")
        self._wait(self._draw.uniform(1, 6))
        up = self.nodes.up()
        if up:
            self._change(self._draw.choice(up))

    def _cut(self) -> None:
        """Two parts, each of which may be repaired."""
        hosts = [self.nodes.process(number).host for number in self.nodes.numbers]
        left = self._draw.sample(hosts, len(hosts) // 2)
        self.world.network.partition(left, [host for host in hosts if host not in left])

    def _heal(self) -> None:
        self.world.network.heal()

    def _migrate(self) -> None:
        up = self.nodes.up()
        if len(up) < 2:
            return
        old, new = self._draw.sample(up, 2)
        self._bring(old, new)

    def _bring(self, old: int, new: int) -> None:
        target = as_target(self.nodes.node(new).log, RECOVERY_HASHES_TOLD)

        async def go(node: Node) -> Any:
            return await node.membership.recovery.migrate(target, dry_run=False)

        def ended(doing: Doing) -> None:
            if doing.error is not None:
                return
            for one in doing.value[0]:
                self.tell(f"n{one.node}", f"migrate: {one.refused or 'goes'}")
                if not one.refused:
                    self.fact("migrated")
                elif one.diverged_at:
                    self.fact("refused as diverged")
                elif "repaired apart" in one.refused:
                    self.fact("refused as a fork")

        self._begin(old, go, ended)

    # -- the end

    def _settle(self) -> None:
        """No more faults: all come back, each cluster id that has most of its voters works."""
        self.world.probes.clear()
        self.world.network.heal()
        self._wait(8)
        for number in self.nodes.numbers:
            self.nodes.start(number)
        wanted = [number for number in self.nodes.numbers if number not in self.nodes.destroyed]
        self._until(_SETTLE_S, "coming back", lambda: self.nodes.up() == wanted)
        self._wait(15)
        self._until(_SETTLE_S, "coming back again", lambda: self.nodes.up() == wanted)
        ids = sorted({self.nodes.bound(number) for number in wanted})
        if len(ids) > 2:
            self.fact("two repairs apart")
        for number in wanted:
            self.watch.check_bound(number)
            phase = self.nodes.node(number).membership.recovery.file.standing.phase
            if phase not in (Phase.IDLE, Phase.PREPARED):
                raise Violation("REC-1", f"n{number} serves, and a repair is {phase} there")
        for cluster_id in ids:
            self._check_works(cluster_id)

    def _check_works(self, cluster_id: str) -> None:
        """A cluster most of whose voters are up has a leader, and takes a change."""
        numbers = [n for n in self.nodes.up() if self.nodes.bound(n) == cluster_id]
        newest = max((self.nodes.node(n) for n in numbers), key=lambda node: node.log.state.epoch)
        cluster = newest.log.cluster
        identity: Identity = cluster.identity
        living = [voter for voter in cluster.voters if voter in numbers]
        if identity.cluster_id != cluster_id or 2 * len(living) <= len(cluster.voters):
            return

        def led() -> bool:
            return any(self.nodes.node(n).log.is_leader for n in numbers if self.nodes.ready(n))

        self._until(_SETTLE_S, f"electing a leader of {cluster_id}", led)
        leader = next(n for n in numbers if self.nodes.node(n).log.is_leader)
        if self.nodes.node(leader).membership.validator.missing:
            return
        outcome: list[LockstepError | None] = []
        self._names += 1
        replication = (("class", "SimpleStrategy"), ("replication_factor", "1"))
        wanted = ChangeSchema(CreateKeyspace(f"last{self._names}", replication))
        self._begin(leader, lambda node: node.log.submit(wanted), lambda doing: outcome.append(doing.error))

        def answered() -> bool:
            self._check()
            return bool(outcome)

        self._until(_SETTLE_S, f"a change in {cluster_id}", answered)
        if isinstance(outcome[0], Rejected):
            raise Violation("LIVENESS", f"cluster {cluster_id} refuses a change: {outcome[0]}")
