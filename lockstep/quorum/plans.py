"""From one ClusterMetadata value to whom a request asks, and when it is satisfied.

Invariant: a plan is a pure function of the metadata value, table, token and level; a count is satisfied
only by replicas of the plan's own group, each at an address of its own. Plans are kept per metadata value, so
planning a write is a bisection and two look-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final, Protocol

import msgspec

from lockstep.metadata import cdc
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.repairs import Repaired, is_equal_since
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.placement.quorums import LOCAL_LEVELS, Requirement
from lockstep.quorum.needs import needs_of
from lockstep.quorum.round import Target, asking, first_choice
from lockstep.quorum.speculation import Policy, policy_of
from lockstep.schema.log_tables import captured_by, log_of
from lockstep.schema.model import Table
from lockstep.schema.table_options import option
from lockstep.schema.tracking import is_tracked
from lockstep.schema.view_changes import views_of
from lockstep.topology.planning import passing
from lockstep.topology.roles import readers
from lockstep.values.errors import InvalidRequest, Unavailable
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import PLANS_CACHED_MAX
from lockstep.values.node_limits import SCAN_RANGES_MAX
from lockstep.values.rows import Mutation
from lockstep.values.tokens import TOKEN_MAX, Range


class Opinions(Protocol):
    """Of other nodes. `alive` orders replicas and refuses hopeless requests; by `prefers` reads go to some of
    those alive before others; a node seems alive for certain until `alive_until_s`."""

    def alive(self, node: int) -> bool: ...

    def prefers(self, node: int) -> bool: ...

    def alive_until_s(self, node: int) -> float: ...


class Asker(msgspec.Struct, frozen=True, gc=False):
    """The node that plans."""

    node: NodeId
    dc: str


NOBODY: Final = Asker(NodeId(0), "")


class Plan:
    """`targets` in the group's order; `needs` must all be met; `required` is what errors report.

    `needs_epoch` is the newest change that matters to the plan: of its group, table or keyspace (whose
    replication may have been altered to one whose ring is older).
    """

    __slots__ = (
        "_counts",
        "alive_until_s",
        "also",
        "asker",
        "attainable",
        "by_node",
        "consistency",
        "epoch",
        "everyone",
        "first_near",
        "group",
        "has_views",
        "is_local",
        "local",
        "log_id",
        "near_first",
        "needs",
        "needs_epoch",
        "range",
        "readers",
        "reads_ids",
        "remote",
        "required",
        "shard",
        "targets",
        "tracked_as",
    )

    def __init__(
        self,
        epoch: int,
        needs_epoch: int,
        range_: Range,
        group: ReplicaGroup,
        targets: tuple[Target, ...],
        needs: tuple[Requirement, ...],
        consistency: Consistency,
        asker: Asker = NOBODY,
    ) -> None:
        self.epoch = epoch
        self.needs_epoch = needs_epoch
        self.range = range_
        self.group = group
        #: Where some targets show no data: those that do. None: all readers may be asked for it.
        showing = [target.node for target in targets if target.shows]
        self.readers = frozenset(showing) if len(showing) < len(targets) else None
        self.targets = targets
        self.needs = needs
        self.required = _least(needs)
        self.consistency = consistency
        self.by_node: Mapping[NodeId, Target] = {target.node: target for target in targets}
        self.everyone = asking(targets)
        self.asker = asker
        #: What the same answers have to satisfy as well.
        self.also: Plan | None = None
        #: Whether all targets are in the asker's data centre; whether writes of the table change views.
        self.is_local = all(target.dc == asker.dc for target in targets)
        self.has_views = False
        #: Placement group and last token of a range of a tracked table; None of others.
        self.shard: tuple[int, int] | None = None
        #: Whose ids those of the table are, and since when it is tracked: see `TablePlacement`.
        self.tracked_as = (0, 0)
        #: Whether ids tell of everything in it: not before what was there is the same everywhere.
        self.reads_ids = False
        #: Of the log that takes what writes of the table change; 0 without one.
        self.log_id = 0
        #: The asker, if it is a target, and the other targets.
        self.local = self.by_node.get(asker.node)
        self.remote = tuple(target for target in targets if target is not self.local)
        #: All targets seem alive until then, whatever is heard of them.
        self.alive_until_s = -inf
        #: The targets: the asker, then its data centre, then others; and those of them that suffice.
        near = sorted(targets, key=lambda t: 0 if t is self.local else 1 if t.dc == asker.dc else 2)
        self.near_first = self.data_first(near)
        self.first_near = tuple(first_choice(needs, self.near_first))
        #: For each need: how many answers, and whose count.
        self._counts = tuple(
            (need.count, frozenset(t.node for t in targets if not need.dc or t.dc == need.dc))
            for need in needs
        )
        #: Whether all targets together would do.
        self.attainable = self.satisfied_by(target.node for target in targets)
        assert needs_epoch <= epoch, "what matters to a plan has happened"
        assert needs and all(need.count >= 0 for need in needs), "a plan says what suffices"
        assert len(self.by_node) == len(targets), "a replica is asked once"
        assert not self.attainable or self.required <= len(targets), "one target gives one answer"
        assert self.satisfied_by(target.node for target in self.first_near) == self.attainable, (
            "the nearest suffice when anybody does"
        )

    def only(self, target: Target) -> Plan:
        """The same, of one of the targets alone."""
        assert self.by_node.get(target.node) is target, "of the plan's own targets"
        plan = Plan(
            self.epoch,
            self.needs_epoch,
            self.range,
            self.group,
            (target,),
            self.needs,
            self.consistency,
            self.asker,
        )
        plan.shard, plan.tracked_as, plan.reads_ids = self.shard, self.tracked_as, self.reads_ids
        return plan

    def over(self, placed: Sequence[PlacedRange]) -> Plan:
        """The same, of ranges that follow each other and have the same replicas; the first is the plan's."""
        assert placed[0].range == self.range, "the plan is of the first range"
        assert all(one.range.right == other.range.left for one, other in pairwise(placed)), (
            "ranges that are read as one follow each other"
        )
        newest = max(one.group.epoch for one in placed)
        plan = Plan(
            self.epoch,
            max(self.needs_epoch, newest),
            Range(placed[0].range.left, placed[-1].range.right),
            ReplicaGroup(self.group.reads, self.group.writes, newest),
            self.targets,
            self.needs,
            self.consistency,
            self.asker,
        )
        plan.has_views, plan.log_id = self.has_views, self.log_id
        return plan

    def beside(self, other: Plan) -> Plan:
        """The plan of a write that is of this plan's place and of the other's at once: each replica of either
        takes what is its own, and both are to be satisfied."""
        assert self.epoch == other.epoch and self.consistency is other.consistency, "both are of one moment"
        assert self.also is None and other.also is None, "a write is of two places at most"
        newest = max(self.group.epoch, other.group.epoch)
        plan = Plan(
            self.epoch,
            max(self.needs_epoch, other.needs_epoch),
            self.range,
            ReplicaGroup(self.group.reads, self.group.writes, newest),
            (*self.targets, *(target for target in other.targets if target.node not in self.by_node)),
            self.needs,
            self.consistency,
            self.asker,
        )
        plan.has_views, plan.log_id = self.has_views, self.log_id
        plan.shard, plan.tracked_as = self.shard, self.tracked_as
        plan._counts = self._counts
        assert plan.needs_epoch <= plan.epoch, "what matters to both has happened"
        if not self.asks_as(other):
            plan.also = other
            plan.attainable = self.attainable and other.attainable
        return plan

    def asks_as(self, other: Plan) -> bool:
        """Whether the same answers of the same nodes satisfy the other plan."""
        return self.needs == other.needs and self.by_node.keys() == other.by_node.keys()

    def shows(self, node: int) -> bool:
        """Whether a replica may be asked for data."""
        return node in (self.group.reads if self.readers is None else self.readers)

    def data_first(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """In their order, but for the first one that shows data, where some do not: it comes first."""
        first = next((t for t in targets if t.node in self.readers), None) if self.readers else None
        return tuple(targets) if first is None else (first, *(t for t in targets if t is not first))

    def satisfied_by(self, nodes: Iterable[NodeId]) -> bool:
        """Whether answers of these nodes (others are ignored) meet every need, and one of them shows data."""
        is_simple = len(self._counts) == 1 and self.also is None and self.readers is None
        held = nodes if is_simple else tuple(nodes)
        if self.readers is not None and self.readers.isdisjoint(held):
            return False
        # A loop, for it costs half of `all` and runs in every request.
        for count, voters in self._counts:
            if len(voters.intersection(held)) < count:
                return False
        return self.also is None or self.also.satisfied_by(held)

    def require_alive(self, opinions: Opinions) -> None:
        """Unavailable when the replicas that seem alive could not satisfy the plan."""
        alive = opinions.alive
        seeming = [target.node for target in self.targets if alive(target.node)]
        if self.attainable and (len(seeming) == len(self.targets) or self.satisfied_by(seeming)):
            return
        raise self.shortage(seeming)

    def note_alive(self, opinions: Opinions) -> None:
        """Ask no more who seems alive while all targets certainly do."""
        alive_until_s = opinions.alive_until_s
        self.alive_until_s = min((alive_until_s(target.node) for target in self.targets), default=-inf)

    def counted(self, nodes: Iterable[NodeId]) -> int:
        """How many of these nodes count towards `required`, for error messages."""
        held = tuple(nodes)
        left = tuple(
            Requirement(need.dc, max(0, count - len(voters.intersection(held))))
            for need, (count, voters) in zip(self.needs, self._counts, strict=True)
        )
        assert _least(left) <= self.required, "no more is lacking than was needed"
        # Who shows the data may be what is lacking, however many others there are.
        is_blind = self.readers is not None and self.readers.isdisjoint(held)
        return self.required - max(_least(left), is_blind)

    def shortage(self, alive: Iterable[NodeId]) -> Unavailable:
        """What too few live replicas are answered with; a level of each data centre names the one that lacks
        them, with its own counts."""
        held = tuple(alive)
        assert not self.attainable or not self.satisfied_by(held), "nothing is lacking"
        if self.consistency is Consistency.EACH_QUORUM:
            for need, (count, voters) in zip(self.needs, self._counts, strict=True):
                live = len(voters.intersection(held))
                if need.dc and live < count:
                    return Unavailable(self.consistency, count, live, need.dc)
        return Unavailable(self.consistency, self.required, self.counted(held))


def _least(needs: Iterable[Requirement]) -> int:
    """How many answers may do: one counts for its data centre and for the whole."""
    whole = local = 0
    for need in needs:
        if need.dc:
            local += need.count
        else:
            whole = need.count
    return max(whole, local)


class TablePlacement:
    """Where one table's tokens live in one metadata value, with the plans made so far."""

    __slots__ = (
        "additional_write",
        "besides",
        "changed_epoch",
        "epoch",
        "has_tablets",
        "has_views",
        "is_tracked",
        "log_id",
        "plans",
        "recounts",
        "repaired",
        "repairs",
        "ring",
        "scans",
        "speculation",
        "tracked_as",
        "tracked_since",
    )

    def __init__(
        self,
        epoch: int,
        changed_epoch: int,
        ring: RingPlacement,
        recounts: bool,
        table: Table,
        has_tablets: bool = False,
        log_id: int = 0,
    ) -> None:
        #: Of the metadata value.
        assert changed_epoch <= epoch, "a metadata value holds no change that comes after it"
        self.epoch = epoch
        #: When the table, one of its views or its keyspace last changed, or a bulk load came to it.
        self.changed_epoch = changed_epoch
        self.ring = ring
        #: Whether the replication of its placement group changes.
        self.recounts = recounts
        self.has_views = bool(table.views)
        #: Of the log that takes what changes in the table; 0 without one.
        self.log_id = log_id
        #: Whether the placement group is tablets of one table.
        self.has_tablets = has_tablets
        #: Whether replicas know by ids what they hold of the table.
        self.is_tracked = False
        #: Since which epoch, if there was a table before; and which of its ranges were made equal.
        self.tracked_since = 0
        self.repaired: Sequence[Repaired] = ()
        #: The table, of a log of changes that whose changes it takes, which have the same ids; and its
        #: `tracked_since`.
        self.tracked_as = (table.id, table.tracked_since)
        #: By (whether it writes, whether it is for data too, level, right bound of the range).
        self.plans: dict[tuple[bool, bool, Consistency, int], Plan] = {}
        #: Of reads of several ranges, by (level, right bound of the first one).
        self.scans: dict[tuple[Consistency, int], Plan] = {}
        #: Of writes that go to the log of changes too, by (level, right bound, that in the log's table).
        self.besides: dict[tuple[Consistency, int, int], Plan] = {}
        #: When a read, or the repair that it needs, turns to one more replica.
        self.speculation: Policy = policy_of(option(table.options, "speculative_retry"))
        self.additional_write: Policy = policy_of(option(table.options, "additional_write_policy"))
        #: Whether reads repair what replicas lack before they answer.
        self.repairs = option(table.options, "read_repair") == "BLOCKING"

    def alike(self, token: int) -> list[PlacedRange]:
        """The range of a token and those that follow it on the same nodes, while nothing moves: one question
        may be about all of them."""
        found = [self.ring.range_at(token)]
        nodes = frozenset(found[0].group.reads)
        if self.recounts or not _is_settled(found[0].group):
            return found
        while found[-1].range.right < TOKEN_MAX and len(found) < SCAN_RANGES_MAX:
            placed = self.ring.range_at(found[-1].range.right + 1)
            if not _is_settled(placed.group) or nodes != frozenset(placed.group.reads):
                break
            assert placed.range.left == found[-1].range.right, "the ring has no gaps"
            found.append(placed)
        return found


def _is_settled(group: ReplicaGroup) -> bool:
    return group.reads is group.writes or frozenset(group.reads) == frozenset(group.writes)


class PlanBook:
    """Plans against the newest metadata value this node knows.

    `own_id` decides what is local; `metadata` is asked at every call, and a new value drops all plans.
    """

    def __init__(self, metadata: Callable[[], ClusterMetadata], own_id: Callable[[], int]) -> None:
        self._metadata = metadata
        self._own_id = own_id
        self._cluster: ClusterMetadata | None = None
        #: This node's id, by the metadata value that plans are made against.
        self.own = NodeId(0)
        self._tables: dict[int, TablePlacement] = {}
        self._kept = 0

    @property
    def cluster(self) -> ClusterMetadata:
        return self._metadata()

    @property
    def epoch(self) -> int:
        return self._metadata().epoch

    def placement(self, table_id: int) -> TablePlacement | None:
        """Where the table lives now; None when this node's metadata has no such table."""
        cluster = self._metadata()
        if cluster is not self._cluster or self._kept > PLANS_CACHED_MAX:
            self._cluster = cluster
            self.own = NodeId(self._own_id())
            self._tables = {}
            self._kept = 0
        found = self._tables.get(table_id)
        return found if found is not None else self._find(cluster, table_id)

    def _find(self, cluster: ClusterMetadata, table_id: int) -> TablePlacement | None:
        table = cluster.table(table_id)
        if table is None:
            return None
        keyspace = cluster.schema.by_name[table.keyspace]
        ring = cluster.placements.ring(keyspace.group_of(table))
        # Who applies a write without knowing of a view derives nothing for it, and tells nobody what is gone.
        views = (view.epoch for view in views_of(cluster.schema, table))
        # Who answers under an older plan does not know of the rows that a bulk load brought at once.
        loaded = cluster.loads.committed_epochs.get(table_id, 0)
        # Nor does who plans by ids know of rows that a restore brings without.
        log, base = log_of(cluster.schema, table), captured_by(cluster.schema, table)
        # Nor does who adds to a log of changes know which streams of the ring newer ones close, or are to.
        is_logged = (log is not None or base is not None) and not table.group
        streams = cdc.changed_epoch(cluster.generations) if is_logged else 0
        changed_epoch = max(table.epoch, keyspace.epoch, loaded, table.tracked_since, streams, *views)
        assert changed_epoch <= cluster.epoch, f"table {table_id} changes later"
        recounts = ring.id in cluster.recounting
        has_tablets = ring.id in cluster.tablets.by_group
        log_id = log.id if log is not None else 0
        found = TablePlacement(cluster.epoch, changed_epoch, ring, recounts, table, has_tablets, log_id)
        found.is_tracked = is_tracked(keyspace, table)
        if table.tracked_since:
            found.tracked_since = table.tracked_since
            found.repaired = cluster.repairs.by_table.get(table.id, ())
        if base is not None:
            found.tracked_as = base.id, base.tracked_since
        self._tables[table_id] = found
        return found

    def write_plan(self, table_id: int, token: int, consistency: Consistency) -> Plan:
        """InvalidRequest when the table is gone."""
        return self._plan(table_id, token, consistency, True)

    def ballot_plan(self, table_id: int, token: int, consistency: Consistency) -> Plan:
        """As `write_plan`, but that one of those who suffice shows data. InvalidRequest likewise."""
        return self._plan(table_id, token, consistency, True, shows=True)

    def plan_of(self, mutation: Mutation, consistency: Consistency) -> Plan:
        """How to write a mutation with what it adds to a log of changes. InvalidRequest when its table is
        gone; a log that is gone takes nothing."""
        plan = self._plan(mutation.table_id, mutation.token, consistency, True)
        captured = mutation.captured
        if captured is None or self.placement(captured.table_id) is None:
            return plan
        assert captured.captured is None, "a log has no log"
        other = self._plan(captured.table_id, captured.token, consistency, True)
        if other.needs_epoch <= plan.needs_epoch and plan.asks_as(other):
            return plan
        placement = self._tables[mutation.table_id]
        key = (consistency, plan.range.right, other.range.right)
        both = placement.besides.get(key)
        if both is None:
            both = placement.besides[key] = plan.beside(other)
            self._kept += 1
        return both

    def read_plan(self, table_id: int, token: int, consistency: Consistency) -> Plan:
        """InvalidRequest when the table is gone."""
        return self._plan(table_id, token, consistency, False)

    def scan_plan(self, table_id: int, token: int, consistency: Consistency) -> Plan:
        """Of reads of ranges that begin with the token's: its range is as many of them as have the same
        replicas. InvalidRequest when the table is gone."""
        first = self._plan(table_id, token, consistency, False)
        placement = self._tables[table_id]
        key = (consistency, first.range.right)
        plan = placement.scans.get(key)
        if plan is None:
            # What is held of a tracked table is told by range.
            placed = [] if placement.is_tracked else placement.alike(token)
            plan = placement.scans[key] = first if len(placed) <= 1 else first.over(placed)
            self._kept += 1
        return plan

    def changed_since(self, table_id: int, tokens: Range, epoch: int) -> bool:
        """Whether anything that matters to a request for these tokens changed after `epoch`; the table was
        there then."""
        if self._metadata().epoch == epoch:
            return False
        placement = self.placement(table_id)
        if placement is None or placement.changed_epoch > epoch:
            return True
        if placement.epoch <= epoch:
            return False
        return any(placed.group.epoch > epoch for placed in placement.ring.overlapping(tokens))

    def _plan(
        self, table_id: int, token: int, consistency: Consistency, writing: bool, shows: bool = False
    ) -> Plan:
        placement = self.placement(table_id)
        if placement is None:
            raise InvalidRequest(f"table id {table_id} is gone: it was dropped")
        placed = placement.ring.range_at(token)
        shows = not writing or (shows and placement.ring.replication.has_witnesses)
        key = (writing, shows, consistency, placed.range.right)
        plan = placement.plans.get(key)
        if plan is None:
            assert placed.range.contains(token), "the plan is of the token's range"
            plan = placement.plans[key] = self._make(placement, placed, consistency, writing, shows)
            self._kept += 1
        return plan

    def _make(
        self,
        placement: TablePlacement,
        placed: PlacedRange,
        consistency: Consistency,
        writing: bool,
        shows: bool,
    ) -> Plan:
        cluster = self._cluster
        assert cluster is not None, "plans are made against a metadata value"
        group = placed.group
        dcs = cluster.directory.dc_by_id
        local_dc = self._local_dc(cluster)
        needs, nodes = needs_of(
            consistency,
            placement.ring.replication,
            local_dc,
            group,
            lambda node: dcs[node],
            writing,
            passing(cluster, placement.ring.id, placed.range),
            placement.recounts,
        )
        by_id, shadowed = cluster.directory.by_id, cluster.directory.shadowed
        blind: Collection[NodeId] = ()
        if shows and placement.ring.replication.has_witnesses:
            near = (local_dc,) if consistency in LOCAL_LEVELS else (*dcs.values(),)
            showing = readers(cluster, placement.ring, placed)
            blind = [node for node in nodes if node not in showing or dcs[node] not in near]
        # What is sent to a node whose address another one took would be answered, and counted, twice; who
        # has left counts as a replica of its tablets until they are built anew, and is never asked.
        targets = tuple(
            Target(node, (by_id[node].address, by_id[node].internode_port), by_id[node].dc, node not in blind)
            for node in nodes
            if node not in shadowed and by_id[node].state is not NodeState.LEFT
        )
        assert {*nodes} <= {*group.reads, *group.writes}, "only replicas of the group answer for it"
        addresses = {target.address for target in targets}
        assert len(addresses) == len(targets), (
            "one node answers for one replica: each has an address of its own"
        )
        needs_epoch = max(group.epoch, placement.changed_epoch)
        asker = Asker(self.own, local_dc)
        plan = Plan(cluster.epoch, needs_epoch, placed.range, group, targets, needs, consistency, asker)
        plan.has_views, plan.log_id = placement.has_views, placement.log_id
        if placement.is_tracked:
            plan.shard, plan.tracked_as = (placement.ring.id, placed.range.right), placement.tracked_as
            since = placement.tracked_since
            plan.reads_ids = not since or is_equal_since(placement.repaired, placed.range, since)
        return plan

    def validate(self) -> None:
        plans = 0
        for table_id, placement in self._tables.items():
            assert self._cluster is not None and placement.epoch == self._cluster.epoch, (
                "a plan outlived its value"
            )
            assert placement.changed_epoch <= placement.epoch, f"table {table_id} changes later"
            plans += len(placement.plans) + len(placement.scans) + len(placement.besides)
        assert plans == self._kept <= PLANS_CACHED_MAX + 2, "plans are miscounted"

    def _local_dc(self, cluster: ClusterMetadata) -> str:
        own = cluster.node(self.own)
        return own.dc if own is not None else ""

    def read_order(
        self, plan: Plan, prefers: Callable[[int], bool], alive: Callable[[int], bool]
    ) -> tuple[Target, ...]:
        """A read plan's targets as they should be asked: this node, near preferred ones, far ones, then those
        that are alive but slow or not ready, then those that seem dead."""
        near, own = plan.near_first, plan.asker.node
        ordered = [target for target in near if target.node == own or prefers(target.node)]
        if len(ordered) == len(near):
            return near
        others = [target for target in near if target not in ordered]
        assert len(ordered) + len(others) == len(near), "everybody can be asked sooner or later"
        return (*ordered, *sorted(others, key=lambda target: not alive(target.node)))
