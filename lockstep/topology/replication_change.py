"""The change of a keyspace's replication: what it may be, its steps, and the placement group that it has
meanwhile.

Invariant: a keyspace in change has a placement group of its own; every range of that is held, each step is
proved for all of them before the first one begins, and another keyspace's group is never touched.

The walk from one replication to another in single steps.

Invariant: a step changes the factor of one data centre by one, or the strategy with the total kept, or
factors that stay above the number of nodes; counts of neighbouring settings then always meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lockstep.metadata import tablet_groups as listed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, holders
from lockstep.metadata.degraded import DEGRADED, Degraded, carried
from lockstep.metadata.requests import keyspace_busy
from lockstep.metadata.schema_change import shared_group
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Transition
from lockstep.placement.deltas import paired, plan_of, same_placement
from lockstep.placement.placements import Placements
from lockstep.placement.quorums import dc_factors
from lockstep.placement.strategies import NETWORK_TOPOLOGY, SIMPLE
from lockstep.schema.changes import SYSTEM_KEYSPACES
from lockstep.schema.model import Keyspace, Replication
from lockstep.schema.replication_options import check_lists
from lockstep.schema.witnesses import refuse_change
from lockstep.topology.planning import differently_shaped, refuse_unsafe
from lockstep.topology.stages import RANGE_MOVEMENT
from lockstep.topology.tablets import recount
from lockstep.values.errors import Rejected
from lockstep.values.limits import PARALLEL_OPERATIONS_MAX, REPLICATION_STEPS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Says whether a change of strategy from the first to the second is safe for every range.
Proved = Callable[[Replication, Replication], bool]


def replication_steps(
    before: Replication, after: Replication, eligible: Mapping[str, int], proved: Proved
) -> tuple[Replication, ...]:
    """The settings from `before` to `after`, both included; empty when no change of strategy is safe.

    `eligible`: how many nodes own tokens in each data centre. More replicas first, fewer last.
    """
    if before.has_witnesses or after.has_witnesses:
        assert before.factors == after.factors, "with witnesses nothing else changes"
        return (before, after) if before != after else (before,)
    if before.strategy == after.strategy:
        return tuple(_walk(before, after, eligible))
    if before.strategy == NETWORK_TOPOLOGY:
        turned = replication_steps(after, before, eligible, lambda one, other: proved(other, one))
        return turned[::-1]
    total = min(before.total, after.total)
    assert before.strategy == SIMPLE and total > 0, "one factor becomes one for each data centre"
    for factors in _parts(after, total):
        at, network = Replication(SIMPLE, (("", total),)), Replication(NETWORK_TOPOLOGY, factors)
        if proved(at, network):
            return (*_walk(before, at, eligible), *_walk(network, after, eligible))
    return ()


def _parts(whole: Replication, total: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Ways to give `total` replicas to the data centres of `whole`, none more than it is to have: one after
    the other, the largest or the smallest first, or in turns."""
    assert 0 < total <= whole.total, "no more is shared out than there is to be"
    by_size = sorted(whole.factors, key=lambda named: (-named[1], named[0]))
    for named in (by_size, by_size[::-1]):
        left, given = total, {}
        for dc, factor in named:
            given[dc] = min(left, factor)
            left -= given[dc]
        yield _factors(given)
    wanted, given = dict(whole.factors), dict.fromkeys(dict(whole.factors), 0)
    for _ in range(total):
        least = min((dc for dc in sorted(given) if given[dc] < wanted[dc]), key=lambda dc: given[dc])
        given[least] += 1
    yield _factors(given)


def _factors(given: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((dc, factor) for dc, factor in sorted(given.items()) if factor > 0)


def _walk(before: Replication, after: Replication, eligible: Mapping[str, int]) -> Iterator[Replication]:
    """Settings of one strategy, the first and the last included."""
    assert before.strategy == after.strategy, "factors of two strategies do not compare"
    yield before
    at, wanted = dict(before.factors), dict(after.factors)
    dcs = sorted({**at, **wanted})
    for growing in (True, False):
        for dc in dcs:
            nodes = eligible.get(dc, 0) if dc else sum(eligible.values())
            while (at.get(dc, 0) < wanted.get(dc, 0)) if growing else (at.get(dc, 0) > wanted.get(dc, 0)):
                at[dc] = _next_factor(at.get(dc, 0), wanted.get(dc, 0), nodes)
                factors = (("", at[""]),) if not dc else _factors(at)
                assert at[dc] >= 0, "no factor is below nothing"
                yield Replication(before.strategy, factors)


def _next_factor(now: int, wanted: int, nodes: int) -> int:
    """One more or less, or in one leap where all nodes are replicas before and after."""
    assert now != wanted, "a step changes a factor"
    if wanted > now:
        return wanted if now >= nodes else now + 1
    return max(wanted, nodes) if now > nodes and max(wanted, nodes) < now else now - 1


_CONFIGURATION = 0x2300


def refused(message: str, keyspace: str = "", hint: str = "") -> Rejected:
    return Rejected(message, cql_code=_CONFIGURATION, keyspace=keyspace, hint=hint)


def wanted_keyspace(cluster: ClusterMetadata, name: str, target: Replication | None) -> Keyspace:
    """The keyspace whose replication may become `target` as far as names and factors tell."""
    refuse_before_initialize(cluster)
    if name in SYSTEM_KEYSPACES:
        raise Rejected(f"{name} keyspace is not user-modifiable.", keyspace=name)
    keyspace = cluster.schema.by_name.get(name)
    if keyspace is None:
        raise refused(f"Keyspace '{name}' doesn't exist", name)
    if target is None:
        raise refused(f"the replication that keyspace {name} is to have is missing", name)
    if target.strategy not in (SIMPLE, NETWORK_TOPOLOGY):
        raise refused(f"there is no replication strategy {target.strategy!r}", name)
    known = cluster.directory.data_centers
    unknown = next((dc for dc, _ in dc_factors(target) if dc not in known), None)
    if unknown is not None:
        raise refused(f"there is no data centre {unknown!r}", name)
    if not target.witnesses.keys() <= dict(target.factors).keys():
        raise refused("Replication factor must be non-negative", name)
    refuse_change(keyspace, target)
    if target.total < 1:
        raise refused(f"keyspace {name} would have no replicas", name, "drop the keyspace instead")
    if keyspace.tablets is not None and target.strategy == SIMPLE:
        raise refused(
            f"tablets need {NETWORK_TOPOLOGY}, keyspace {name} would be replicated by {SIMPLE}", name
        )
    if target.racks and keyspace.tablets is None:
        check_lists(target, None, name)
    if keyspace.tablets is not None:
        listed.refuse_lists(cluster, name, target)
        recount.refuse_too_many(cluster, keyspace, target)
    if keyspace.replication == target and not is_recounted(cluster, keyspace):
        raise refused(f"keyspace {name} is replicated this way already", name)
    return keyspace


def is_recounted(cluster: ClusterMetadata, keyspace: Keyspace) -> bool:
    """Whether an operation changes its replication."""
    return any(operation.about.keyspace == keyspace.name for operation in cluster.operations)


def refuse_start(cluster: ClusterMetadata, keyspace: Keyspace, request_id: int) -> None:
    """Raises Rejected when the change may not begin now."""
    other = cluster.requests.by_keyspace.get(keyspace.name)
    if other is not None and other.id != request_id:
        raise keyspace_busy(other)
    hint = "wait for it to finish (`lockstep topology watch`) or cancel it"
    what = f"the replication of keyspace {keyspace.name} cannot change"
    moving = holders(cluster, Held.RING)
    assert keyspace.group or keyspace.tablets is not None, "a keyspace has a ring or tablets"
    if moving:
        raise Rejected(f"{what} while {', '.join(moving)} holds ranges", hint=hint)
    if len(cluster.operations) >= PARALLEL_OPERATIONS_MAX:
        running = ", ".join(operation.title() for operation in cluster.operations)
        raise Rejected(f"at most {PARALLEL_OPERATIONS_MAX} operations run at once: {running}")
    if keyspace.tablets is not None:
        recount.refuse_moving(cluster, keyspace)


def path_to(cluster: ClusterMetadata, keyspace: Keyspace, target: Replication) -> tuple[Replication, ...]:
    """The settings from the present one to `target`, every step proved; Rejected when one is not safe."""
    eligible: dict[str, int] = {}
    for owner in cluster.directory.owners:
        eligible[owner.dc] = eligible.get(owner.dc, 0) + 1
    if keyspace.tablets is not None:
        # No factor leaps: a tablet has as many replicas as it says, whatever nodes there are.
        eligible = dict.fromkeys(eligible, max(keyspace.replication.total, target.total) + 1)
    prove = _prove if keyspace.tablets is None else recount.prove_counts
    why: list[Rejected] = []

    def proved(before: Replication, after: Replication) -> bool:
        try:
            prove(cluster, before, after)
        except Rejected as problem:
            why.append(problem)
            return False
        return True

    if keyspace.tablets is not None and target.racks:
        path = _listed_path(cluster, keyspace, target, eligible)
    else:
        path = replication_steps(keyspace.replication, target, eligible, proved)
    if not path:
        raise refused(
            f"no single change of strategy is safe for keyspace {keyspace.name}: {why[0].message}",
            keyspace.name,
            "change the factors first",
        )
    assert path[0] == keyspace.replication, "a walk begins where the keyspace is"
    if len(path) == 1 and target != path[0]:
        raise refused(
            f"each tablet of keyspace {keyspace.name} lies so already: nothing moves for it",
            keyspace.name,
            "ALTER KEYSPACE changes it at once",
        )
    assert (path[-1].strategy, path[-1].total) == (target.strategy, target.total), "it ends where it is to"
    assert all(one != two for one, two in itertools.pairwise(path)), "each step changes something"
    if len(path) - 1 > REPLICATION_STEPS_MAX:
        raise refused(
            f"{len(path) - 1} steps would be needed, and one change has at most {REPLICATION_STEPS_MAX}",
            keyspace.name,
            "change the factors in several statements",
        )
    for before, after in itertools.pairwise(path):
        prove(cluster, before, after)
        prove(cluster, after, before)
    return path


def _listed_path(
    cluster: ClusterMetadata, keyspace: Keyspace, target: Replication, eligible: Mapping[str, int]
) -> tuple[Replication, ...]:
    """To lists of racks: more replicas until each rack has one of each tablet, then less."""
    present = keyspace.replication
    most = recount.detour(cluster, keyspace, target)
    assert most.total >= max(present.total, target.total), "first more, then less"
    walked = [*_walk(present, most, eligible), *list(_walk(most, target, eligible))[1:]]
    return (present, *[msgspec.structs.replace(one, racks=target.racks) for one in walked[1:]])


def _prove(cluster: ClusterMetadata, before: Replication, after: Replication) -> None:
    """Raises Rejected unless the step is safe for every range."""
    for transition in differently_shaped(cluster, transitions_between(cluster, 0, before, after)):
        refuse_unsafe(cluster, RANGE_MOVEMENT, transition)


def transitions_between(
    cluster: ClusterMetadata, group: int, before: Replication, after: Replication
) -> tuple[Transition, ...]:
    """One for each range of the placement group, also where the replicas stay: their counts change."""
    circle = cluster.directory.circle
    pairs = paired(plan_of(before, circle), plan_of(after, circle))
    assert pairs[0].range.left == TOKEN_MIN and pairs[-1].range.right == TOKEN_MAX, "all ranges change counts"
    return tuple(Transition(group, delta.range, delta.old, delta.new, before, after) for delta in pairs)


def step_transitions(
    cluster: ClusterMetadata, name: str, before: Replication, after: Replication
) -> tuple[Transition, ...]:
    """Those of a step of the keyspace; Rejected where a tablet has no place to go to."""
    keyspace = cluster.schema.by_name[name]
    if keyspace.tablets is not None:
        return recount.tablet_transitions(cluster, keyspace, before, after)
    return transitions_between(cluster, keyspace.group, before, after)


# The group of its own


def with_own_group(cluster: ClusterMetadata, name: str) -> ClusterMetadata:
    """The value with the keyspace in a new placement group of its own, which has the same replicas. Tables
    with tablets have groups of their own at any time."""
    keyspace, placements = cluster.schema.by_name[name], cluster.placements
    if keyspace.tablets is not None:
        return cluster
    ring = placements.ring(keyspace.group).with_id(placements.next_id)
    assert same_placement(ring, placements.ring(keyspace.group)), "nothing moves with a group of its own"
    return _moved(cluster, keyspace, placements.with_rings((ring,)), ring.id, keyspace.epoch)


def recounted(cluster: ClusterMetadata, name: str, to: Replication, epoch: int) -> ClusterMetadata:
    """The value with another replication of the keyspace and what it lies on, every range changed at
    `epoch`."""
    keyspace, placements = cluster.schema.by_name[name], cluster.placements
    if keyspace.tablets is not None:
        return recount.recounted_tablets(cluster, keyspace, to, epoch)
    ring = placements.ring(keyspace.group).recounted(to, epoch)
    changed = msgspec.structs.replace(keyspace, replication=to, epoch=epoch)
    return cluster.changed(
        SCHEMA.set(cluster.schema.with_keyspace(changed)), PLACEMENTS.set(placements.with_rings((ring,)))
    )


def with_shared_group(cluster: ClusterMetadata, name: str) -> ClusterMetadata:
    """The value with the keyspace, whose replication changes no more, in the group of those that are
    replicated alike; where there are none, it keeps its own."""
    keyspace = cluster.schema.by_name[name]
    if keyspace.tablets is not None:
        return cluster
    shared = shared_group(cluster, cluster.placements, keyspace.replication)
    if shared is None or shared.id == keyspace.group:
        return cluster
    ring = cluster.placements.ring(keyspace.group)
    assert same_placement(shared, ring), "a group is shared only with the same replicas"
    # What was planned before the own group's last change is planned anew, also when the shared one is older.
    newest = max((placed.group.epoch for placed in ring.ranges), default=0)
    return _moved(cluster, keyspace, cluster.placements, shared.id, max(keyspace.epoch, newest))


def _moved(
    cluster: ClusterMetadata, keyspace: Keyspace, placements: Placements, group: int, epoch: int
) -> ClusterMetadata:
    """The value with the keyspace in another group, which is in `placements`; the one that it leaves goes
    when nobody else is in it."""
    assert group != keyspace.group and group in placements.by_id, "a keyspace moves to a group that is there"
    kept = any(
        other.group == keyspace.group for other in cluster.schema.keyspaces if other.name != keyspace.name
    )
    moved = msgspec.structs.replace(keyspace, group=group, epoch=epoch)
    return cluster.changed(
        SCHEMA.set(cluster.schema.with_keyspace(moved)),
        PLACEMENTS.set(placements if kept else placements.without((keyspace.group,))),
        DEGRADED.set(_degraded(cluster.degraded, keyspace, group, kept)),
    )


def _degraded(degraded: Sequence[Degraded], keyspace: Keyspace, to: int, kept: bool) -> tuple[Degraded, ...]:
    """The lines with those of the keyspace's group also, or only, said of `to`; each line once."""
    lines: dict[Degraded, None] = {}
    for line in degraded:
        if line.group != keyspace.group or kept:
            lines[line] = None
        if line.group == keyspace.group:
            lines.update(dict.fromkeys(carried((line,), keyspace.name, to)))
    assert kept or all(line.group != keyspace.group for line in lines), "nothing is said of what goes"
    return tuple(lines)
