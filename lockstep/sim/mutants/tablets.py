"""Planted bugs of tablets that move by themselves: what fills, empties and fences them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.tablets import ResizePhase, Resizing
from lockstep.metadata.transitions import Lone
from lockstep.node.work import worker as work_module
from lockstep.node.work.unowned_tablets import UnownedTablets
from lockstep.placement.tablets.map import TabletMap
from lockstep.replica.session_guards import SessionGuards
from lockstep.sim.mutants.data import _pending_not_counted
from lockstep.sim.plant import Planted, replaced
from lockstep.topology import lone_steps
from lockstep.topology import step as step_module
from lockstep.topology.barriers import BarrierNeed
from lockstep.topology.stages import DELETING, STREAMING
from lockstep.topology.tablets import recount, resizes, resizing
from lockstep.topology.tablets.resizing import Heard, Resizer, Said
from lockstep.values.tokens import TOKEN_MAX, Range

_Context = contextlib.AbstractContextManager[None]
_work_orders = step_module._work_orders
_look = Resizer.look
_behind = resizing._behind
_entered = lone_steps.entered
_stream_plan = work_module.stream_plan
_barrier_need = step_module.barrier_need
_require = SessionGuards.require
_stragglers = SessionGuards.stragglers


def _without(kinds: Any) -> _Context:
    def orders(mover: Any, cluster: Any, dead: Any, given_up: Any = ()) -> Any:
        found = _work_orders(mover, cluster, dead, given_up)
        if not isinstance(mover, Lone):
            return found
        return tuple(order for order in found if order.kind not in kinds)

    return replaced((step_module, "_work_orders", orders))


def _not_filled() -> _Context:
    """Reads move to a newcomer that got nothing of what was there."""
    return _without(STREAMING)


def _not_emptied() -> _Context:
    """A node keeps what it gave up."""
    return _without(DELETING)


def _left_behind() -> _Context:
    """Who is down as it gives a tablet up keeps it, as on the ring."""

    def has_no_part(mover: Any, one: Any, node: Any, cluster: Any, dead: Any, given_up: Any) -> bool:
        return node in dead

    return replaced((step_module, "_has_no_part", has_no_part))


def _changed_while_it_moves() -> _Context:
    """A change of the factor begins while tablets of the keyspace move by themselves."""
    return replaced((recount, "refuse_moving", lambda cluster, keyspace: None))


def _all_ready(cluster: ClusterMetadata) -> Said:
    """What a node says that is ready for everything."""
    ready = {
        group.id: (
            group.head.resizing.resize.sequence,
            frozenset(placed.range.right for placed in cluster.placements.ring(group.id).ranges),
        )
        for group in cluster.tablets.groups
    }
    return Said(cluster.epoch, ready)


def _one_unready() -> _Context:
    """One replica is not asked whether it is ready."""

    def look(self: Resizer, cluster: ClusterMetadata, asked: Any, heard: Heard) -> Any:
        last = max(cluster.directory.present_ids)
        return _look(self, cluster, asked, Heard({**heard.said, last: _all_ready(cluster)}, heard.dead))

    return replaced((Resizer, "look", look))


def _older_readiness() -> _Context:
    """Who was ready for a decision is for the next one."""

    def look(self: Resizer, cluster: ClusterMetadata, asked: Any, heard: Heard) -> Any:
        said = dict.fromkeys(heard.said, _all_ready(cluster))
        return _look(self, cluster, asked, Heard(said, heard.dead))

    return replaced((Resizer, "look", look))


def _unlike_merged() -> _Context:
    """A pair becomes one tablet with the replicas of the second, wherever the first one was."""
    return replaced((TabletMap, "merge_refusal", lambda self, right: None))


def _map_changes_during_moves() -> _Context:
    """Tablets are cut and joined while some are on their way, and nothing keeps moves from beginning."""

    def still(cluster: ClusterMetadata, group: int) -> int:
        return 0

    holds = property(lambda self: False)
    return replaced((resizes, "moving", still), (resizing, "moving", still), (Resizing, "holds_still", holds))


def _no_second_barrier() -> _Context:
    """A new map counts as everywhere at once."""

    def behind(cluster: ClusterMetadata, group: Any, map_: Any, heard: Any, epoch: int) -> Any:
        if group.head.resizing.phase is ResizePhase.SETTLING:
            return None
        return _behind(cluster, group, map_, heard, epoch)

    return replaced((resizing, "_behind", behind))


def _never_ended() -> _Context:
    """What is decided waits for ever."""

    def waits(cluster: ClusterMetadata, group: Any, *_: Any) -> Any:
        return resizing.Waiting(group.id, "it waits")

    return replaced((resizing, "_next", waits))


def _unowned_kept() -> _Context:
    """Who is taken back keeps what it gave up while nobody waited for it."""
    return replaced((UnownedTablets, "_drop", lambda self, cluster: None))


def _session_kept() -> _Context:
    """A tablet goes on under the session of the stage that it left."""

    def entered(one: Any, stage: Any, epoch: int, former: Any = None) -> Any:
        moved = _entered(one, stage, epoch, former)
        if former is None or not one.position.session_id:
            return moved
        position = msgspec.structs.replace(moved.position, session_id=one.position.session_id)
        return msgspec.structs.replace(moved, position=position)

    return replaced((lone_steps, "entered", entered))


def _further(name: str) -> _Context:
    """Who empties its part of what moves by itself drops all that is behind it in the ring, too."""
    own: Callable[..., Any] = getattr(work_module, name)

    def ranges(moving: Any, node: int, dc_of: Any) -> Any:
        moving = tuple(moving)
        found = own(moving, node, dc_of)
        if all(one.position is None for one in moving):
            return found
        return [(group, [Range(one.left, TOKEN_MAX) for one in ranges]) for group, ranges in found]

    return replaced((work_module, name, ranges))


def _emptied_too_far() -> _Context:
    """Who gives a tablet up drops others that it keeps."""
    return _further("lost_ranges")


def _wiped_too_far() -> _Context:
    """Who gets a tablet drops others that it has before."""
    return _further("gained_ranges")


def _filled_by_half() -> _Context:
    """A newcomer gets the first half of a tablet."""

    def half(mover: Any, cluster: Any, dead: Any) -> Any:
        tasks = _stream_plan(mover, cluster, dead)
        if not isinstance(mover, Lone):
            return tasks
        ends = [(task, task.range.left, (task.range.left + task.range.right) // 2) for task in tasks]
        return tuple(msgspec.structs.replace(task, range=Range(left, end)) for task, left, end in ends)

    return replaced((work_module, "stream_plan", half))


def _need_otherwise(change: Callable[[BarrierNeed, Lone], BarrierNeed]) -> _Context:
    """What barriers of tablets that move by themselves ask for is something else."""

    def need(mover: Any, *rest: Any) -> BarrierNeed:
        found = _barrier_need(mover, *rest)
        return change(found, mover) if isinstance(mover, Lone) else found

    return replaced((step_module, "barrier_need", need))


def _fence_early() -> _Context:
    """Older plans count as refused everywhere as soon as a stage is entered."""
    return _need_otherwise(lambda need, mover: msgspec.structs.replace(need, groups=()))


def _follows(cluster: ClusterMetadata, session_id: str) -> bool:
    """Whether a tablet has another session by now than this one of its own."""
    parts = session_id.split("-")
    if not session_id or len(parts) != 4 or not all(map(str.isdecimal, parts[1:])):
        return False
    found = cluster.transitions.at(int(parts[1]), int(parts[2]))
    return found is not None and found.position is not None and bool(found.position.session_id)


def _old_guard() -> _Context:
    """What was begun under a session of a tablet goes on under the next one of it."""

    def require(self: SessionGuards, session_id: str) -> None:
        if not _follows(self._metadata(), session_id):
            _require(self, session_id)

    def stragglers(self: SessionGuards) -> tuple[tuple[str, int], ...]:
        return tuple(one for one in _stragglers(self) if not _follows(self._metadata(), one[0]))

    return replaced((SessionGuards, "require", require), (SessionGuards, "stragglers", stragglers))


TABLETS = (
    Planted("tablet_not_filled", "a tablet is read where it was not copied to", "tablets", _not_filled),
    Planted("tablet_not_emptied", "nodes keep tablets that they gave up", "tablets", _not_emptied),
    Planted("tablet_left_behind", "nodes that were down keep tablets", "tablets", _left_behind),
    Planted(
        "tablet_changed_on_its_way", "a factor changes as tablets move", "tablets", _changed_while_it_moves
    ),
    Planted("tablet_unowned_kept", "nodes keep tablets that they gave up", "tablets", _unowned_kept),
    Planted("resize_one_unready", "a map changes under a replica", "tablets", _one_unready),
    Planted("resize_older_readiness", "a map changes under replicas", "tablets", _older_readiness),
    Planted("resize_unlike", "half of a merged tablet is read where it is not", "tablets", _unlike_merged),
    Planted("resize_during_moves", "what moves is no tablet any more", "tablets", _map_changes_during_moves),
    Planted("resize_never_ended", "a decision is never carried out", "tablets", _never_ended),
    Planted("resize_unsettled", "nodes have more than two maps", "tablets", _no_second_barrier),
    Planted("tablet_session_kept", "what a stage asked for is not done", "tablets", _session_kept),
    Planted("tablet_emptied_too_far", "nodes lack tablets that are theirs", "tablets", _emptied_too_far),
    Planted("tablet_wiped_too_far", "nodes lack tablets that are theirs", "tablets", _wiped_too_far),
    Planted("tablet_filled_by_half", "half of a tablet is read where it is not", "tablets", _filled_by_half),
    Planted("tablet_fence_early", "stale plans reach quorums of old replicas", "tablets", _fence_early),
    Planted("tablet_pending_uncounted", "writes miss who gets a tablet", "tablets", _pending_not_counted),
)
#: Copies that hang in the one step which a guard surrounds, past the end of their stage, are too rare to be
#: looked for.
DIRECTED = (Planted("tablet_old_guard", "copies of a stage that ended come in later", "", _old_guard),)
