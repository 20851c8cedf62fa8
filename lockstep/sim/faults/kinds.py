"""The kinds of faults: what each does to a cluster, and which counters prove that it had an effect.

Invariant: a fault draws from the stream it is given and undoes itself after its time; `Means` undoes
everything that is left. But for STORE_FAULTS, none destroys what a disk promised to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockstep.node.processors.kinds import Held
from lockstep.sim.faults.data_centres import cut_dc, lose_dc
from lockstep.sim.faults.halfway import (
    linger_counting,
    lone_holder,
    long_away,
    pause_reconciler,
    power_at_drop,
    strand_decision,
    strand_writes,
    wipe_counting,
)
from lockstep.sim.faults.lost_stores import lose_store
from lockstep.sim.faults.means import Means
from lockstep.sim.load.history import Event
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.values.ids import Consistency

#: Where a node may be crashed by name.
CRASH_PROBES = (
    "disk.sync.inflight",
    "management.configure",
    "management.founded",
    "management.propose",
    "management.proposed",
    "membership.admitted",
    "metadata.apply.before_sync",
    "metadata.apply.after_sync",
    "processor.appended",
    "raft.became_leader",
    "raft.persist.before",
    "raft.persist.after",
    "replica.write.accepted",
    "replica.write.applied",
    "replica.write.synced",
    "replica.drain",
    "storage.batch.written",
    "storage.sync.started",
    "storage.sync.finished",
    "stream.source.block",
    "stream.source.drained",
    "stream.source.file",
    "stream.target.chunk",
    "stream.target.file",
    "stream.target.ingested",
    "topology.propose",
    "work.done",
)
#: These are reached all the time, so a rule on them fires seldom.
_FREQUENT = ("disk.sync.inflight", "replica.write", "storage.", "raft.persist")
#: Where a node may be held behind in the metadata log.
LAG_PROBE = "metadata.apply.before_sync"
#: Where somebody is in the middle of a repair.
REPAIR_PROBES = (
    "repair.tree.built",
    "repair.compared",
    "repair.mend.applied",
    "repair.equal.noted",
)
#: Where a node is in the middle of building a view or an index.
BUILD_PROBES = ("views.build_page", "index.build_step")
LINGER_PROBES = ("replica.drain", "stream.target.broken")


class Fault(msgspec.Struct, frozen=True):
    """`strike(means, draw)` does it once. One of `effects` must grow somewhere in a batch."""

    name: str
    strike: Callable[[Means, Stream], None]
    effects: tuple[str, ...]
    weight: float = 1.0


def _down_s(draw: Stream) -> float:
    return draw.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + draw.random())


def _kind(draw: Stream) -> str:
    return POWER if draw.random() < 0.5 else KILL


# ---- processes


def kill(means: Means, draw: Stream) -> None:
    means.crash(means.some_live(draw), KILL, _down_s(draw))


def power(means: Means, draw: Stream) -> None:
    means.crash(means.some_live(draw), POWER, _down_s(draw))


def kill_then_power(means: Means, draw: Stream) -> None:
    """Killed in a sync, the process restarts on its predecessor's page cache; then the host loses it."""
    wait_s = 0.05 + draw.random() * draw.choice((0.3, 2.0))

    def cut(name: str) -> None:
        means.cluster.world.count("fault.kill_then_power")
        means.later(wait_s, lambda: means.crash(name, POWER, 0.2))

    rule = CrashRule(
        label="disk.sync.inflight", probability=0.05, times=2, restart_after_s=0.05, on_fired=cut
    )
    means.add_rule(rule, seconds=3.0)


def all_down(means: Means, draw: Stream) -> None:
    for name in list(means.cluster.live()):
        means.crash(name, _kind(draw), _down_s(draw))


def crash_at_callback(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        means.crash_after(name, 1 + draw.randrange(400), _kind(draw), _down_s(draw))


def crash_at_probe(means: Means, draw: Stream) -> None:
    label = draw.choice(CRASH_PROBES)
    chance = 0.02 if label.startswith(_FREQUENT) else 0.5
    means.add_rule(
        CrashRule(label=label, kind=_kind(draw), probability=chance, restart_after_s=_down_s(draw)),
        seconds=5.0,
    )


def crash_repairing(means: Means, draw: Stream) -> None:
    """Somebody who takes part in a repair is gone as it builds its tree, takes what it lacks, or is told that
    all are equal."""
    label = draw.choice(REPAIR_PROBES)

    def vanished(_: str) -> None:
        means.cluster.world.count("fault.crash_repairing")

    rule = CrashRule(
        label=label, kind=_kind(draw), probability=0.3, restart_after_s=_down_s(draw), on_fired=vanished
    )
    means.add_rule(rule, seconds=5.0)


def crash_building(means: Means, draw: Stream) -> None:
    """Who builds a view or an index is gone between two pages of it."""

    def gone(_: str) -> None:
        means.cluster.world.count("fault.crash_building")

    label = draw.choice(BUILD_PROBES)
    # Steps take time, so that what was noted of earlier ones may be durable; the node ends soon, or later in
    # whichever partition the build is by then.
    means.add_rule(DelayRule(label=label, low_s=0.005, high_s=0.03), seconds=3.0)
    rule = CrashRule(
        label=label,
        kind=_kind(draw),
        probability=draw.choice((0.3, 0.03)),
        times=2,
        restart_after_s=_down_s(draw),
        on_fired=gone,
    )
    means.add_rule(rule, seconds=3.0)


def linger(means: Means, draw: Stream) -> None:
    rule = DelayRule(label=draw.choice(LINGER_PROBES), high_s=draw.choice((0.05, 1.0)), probability=0.7)
    means.add_rule(rule, seconds=5.0)


def pause(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        means.tell(f"pauses {name}")
        means.cluster.processes[name].pause_for(draw.choice((0.2, 1.0, 5.0)) * (0.5 + draw.random()))


def slow_node(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        process = means.cluster.processes[name]
        process.slow_down(draw.choice((50, 200, 800)))
        means.tell(f"slows {name}")
        means.later(1.0 + draw.random() * 3, lambda: process.slow_down(0))


def clock_drift(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        means.cluster.processes[name].drift_clock(draw.choice((0.95, 0.99, 1.01, 1.05)))


def wall_jump(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        _jump(means, name, draw.choice((-3600.0, -5.0, 5.0, 3600.0)), "jumps")


def step_clock(means: Means, draw: Stream) -> None:
    """The clock of a node, be it up or down, steps and mostly is set right after a while; or it goes wrong
    slowly."""
    name = draw.choice(means.cluster.in_service())
    if draw.random() < 0.2:
        means.cluster.processes[name].drift_clock(draw.choice((0.99, 0.9995, 1.0005, 1.01)))
        return
    step_s = draw.choice((-3600.0, -30.0, -5.0, -0.7, -0.1, 0.1, 0.7, 5.0, 30.0, 3600.0))
    _jump(means, name, step_s, "steps")
    if draw.random() < 0.7:
        means.later(0.2 + draw.random() * 4, lambda: _jump(means, name, -step_s, "steps back"))


def _jump(means: Means, name: str, seconds: float, how: str) -> None:
    means.cluster.processes[name].jump_wall(seconds)
    means.tell(f"the clock of {name} {how} by {seconds:g} s")


def stop_clocks(means: Means, draw: Stream) -> None:
    """All clocks are set right and show the same time until the next tick of a coarse one: nodes give their
    timestamps and ballots in the same microseconds."""
    tick_us = draw.choice((20_000, 500_000, 5_000_000))
    means.tell(f"has clocks tick every {tick_us // 1000} ms")
    means.cluster.world.count("clock.stopped")
    for process in means.cluster.processes.values():
        process.set_wall_right()
        process.clock.wall_tick_us = tick_us

    def go_on() -> None:
        for process in means.cluster.processes.values():
            process.clock.wall_tick_us = 1

    means.later(1.0 + draw.random() * 4, go_on)


# ---- disks


#: How long a sync of a slow disk takes at most. One that has begun goes on when the disk is healed.
SLOW_SYNCS_S: Final = (0.15, 0.5, 2.0, 6.0)


def slow_disk(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        means.set_disk(name, 1.0 + draw.random() * 4, sync_high_s=draw.choice(SLOW_SYNCS_S))


def disk_error(means: Means, draw: Stream) -> None:
    name = means.some_live(draw)
    if name:
        means.set_disk(name, 0.2 + draw.random(), sync_error=draw.choice((0.1, 0.5)))


def damage_block(means: Means, draw: Stream) -> None:
    """Some rows of a node cannot be read for a while, as when a block of a table file is damaged."""
    name = means.some_live(draw)
    share, pairs, seconds = draw.random(), 1 + draw.randrange(12), 0.5 + draw.random() * 4
    if name and means.damage_block(name, share, pairs, seconds):
        means.cluster.world.count("disk.block_damaged")


def torn_disks(means: Means, draw: Stream) -> None:
    """Crash everything in the middle of a sync, so that files end in the middle of a record."""
    means.add_rule(
        CrashRule(label="disk.sync.inflight", kind=POWER, probability=0.05, times=3, restart_after_s=0.3),
        seconds=3.0,
    )


def power_all_in_sync(means: Means, draw: Stream) -> None:
    """While a write is being synced everywhere, and perhaps read already, all nodes lose their power."""
    wait_s = draw.choice((0.004, 0.02, 0.05)) * draw.random()

    def cut_all(_: str) -> None:
        means.later(wait_s, cut)

    def cut() -> None:
        for name in list(means.cluster.live()):
            means.crash(name, POWER, 0.3)

    rule = CrashRule(label="storage.sync.started", kind="", probability=0.05, on_fired=cut_all)
    means.add_rule(rule, seconds=5.0)


def power_after_read(means: Means, draw: Stream) -> None:
    """Disks are slow; when somebody reads what its writer was not told of yet, all nodes lose their power."""
    history = means.cluster.history
    for name in means.cluster.live():
        means.set_disk(name, 4.0, sync_low_s=0.02, sync_high_s=draw.choice((0.05, 0.5)))

    def cut() -> None:
        means.cluster.world.count("fault.power_after_read")
        for name in means.cluster.live():
            means.crash(name, POWER, 0.3)

    def ended(event: Event) -> None:
        if event.rows and event.request.consistency is not Consistency.ONE and history.seen_early(event):
            forget()
            means.later(0.0, cut)

    def forget() -> None:
        if ended in history.listeners:
            history.listeners.remove(ended)

    history.listeners.append(ended)
    means.later(4.0, forget)


# ---- the network


def latency(means: Means, draw: Stream) -> None:
    high = draw.choice((10.0, 50.0, 200.0))
    shape = draw.choice(("uniform", "exponential", "heavy"))
    means.set_links(1.0 + draw.random() * 4, shape=shape, high_ms=high)


def loss(means: Means, draw: Stream) -> None:
    means.set_links(1.0 + draw.random() * 4, loss=draw.choice((0.02, 0.1, 0.3)))


def corrupt(means: Means, draw: Stream) -> None:
    means.set_links(0.5 + draw.random() * 2, corrupt=draw.choice((0.001, 0.02)))


def partition(means: Means, draw: Stream) -> None:
    """Two halves, in one or both directions, clients on all sides."""
    hosts = means.cluster.hosts()
    if len(hosts) > 1:
        chosen = draw.sample(hosts, 1 + draw.randrange(len(hosts) - 1))
        others = [host for host in hosts if host not in chosen]
        means.cut(chosen, others, symmetric=draw.random() < 0.6, seconds=0.3 + draw.random() * 4)


def partial_partition(means: Means, draw: Stream) -> None:
    """Two nodes do not hear each other; both reach all others."""
    hosts = means.cluster.hosts()
    if len(hosts) > 1:
        one, other = draw.sample(hosts, 2)
        means.cut([one], [other], symmetric=True, seconds=0.5 + draw.random() * 4)


def isolate_leader(means: Means, draw: Stream) -> None:
    leader = means.cluster.leader[1]
    if leader:
        host = means.cluster.processes[leader].host
        others = [other for other in means.cluster.hosts() if other != host]
        means.cut([host], others, symmetric=draw.random() < 0.5, seconds=1.0 + draw.random() * 3)


def isolate_winners(means: Means, draw: Stream) -> None:
    """Whoever wins an election is cut off at once, or at its first commit: logs end in entries of many
    terms, and what a leader took for committed is all that the next one knows."""

    def cut(name: str) -> None:
        host = means.cluster.processes[name].host
        others = [other for other in means.cluster.hosts() if other != host]
        seconds = draw.choice((0.3, 1.0, 2.0)) * (0.5 + draw.random())
        means.cut([host], others, symmetric=True, seconds=seconds)

    def cut_now(name: str) -> None:
        means.later(0.0, lambda: cut(name))

    def won(name: str) -> None:
        if draw.random() < 0.5:
            cut_now(name)
        else:
            first = CrashRule(label=LAG_PROBE, process=name, kind="", probability=1.0, on_fired=cut_now)
            means.add_rule(first, seconds=2.0)

    rule = CrashRule(label="raft.became_leader", kind="", probability=0.9, times=20, on_fired=won)
    means.add_rule(rule, seconds=8.0)
    if means.cluster.leader[1]:
        cut(means.cluster.leader[1])


def flapping(means: Means, draw: Stream) -> None:
    hosts = means.cluster.hosts()
    if len(hosts) > 1:
        one, other = draw.sample(hosts, 2)
        means.tell(f"flaps {one} {other}")
        means.network.flap(one, other, draw.choice((0.1, 0.4)), 6)


def reset(means: Means, draw: Stream) -> None:
    means.tell("resets connections")
    means.network.break_connections(draw.choice((0.2, 1.0)))


def blackhole(means: Means, draw: Stream) -> None:
    means.tell("makes connections silent")
    means.network.blackhole_connections(draw.choice((0.1, 0.5)), means.cluster.hosts())


def clog(means: Means, draw: Stream) -> None:
    hosts = means.cluster.hosts()
    for source in hosts:
        for target in hosts:
            if source != target and draw.random() < 0.3:
                means.network.clog(source, target, draw.random() * 3)
    means.tell("clogs links")


def syn_loss(means: Means, draw: Stream) -> None:
    means.set_links(2.0 + draw.random() * 3, syn_loss=0.4, dead_on_accept=draw.choice((0.0, 0.2)))


# ---- the metadata service's test processor


def _gated(means: Means, draw: Stream) -> str:
    """Mostly the leader."""
    leader = means.cluster.leader[1]
    live = means.cluster.live()
    return leader if leader in live and draw.random() < 0.8 else means.some_live(draw)


def hold_commits(means: Means, draw: Stream) -> None:
    """Some submissions wait before they are judged, and pass in another order."""

    def order(held: Sequence[Held]) -> Sequence[Held]:
        means.cluster.world.count("gate.held", len(held))
        return draw.sample(held, len(held))

    share = draw.choice((0.3, 1.0))
    name = _gated(means, draw)
    if name in means.cluster.nodes:
        gate = means.cluster.nodes[name].log.member.gate
        gate.hold_commits(lambda _: draw.random() < share)
        means.tell(f"holds commits at {name}")
        means.release_later(name, gate, draw.choice((0.05, 0.5, 2.0)) * (0.5 + draw.random()), order)


def lose_commits(means: Means, draw: Stream) -> None:
    """Some submissions are lost, and outcomes of others."""
    name = _gated(means, draw)
    if name in means.cluster.nodes:
        gate = means.cluster.nodes[name].log.member.gate
        gate.drop_commits(draw.randrange(4), lambda _: draw.random() < 0.5)
        gate.drop_replies(2 + draw.randrange(6))
        means.tell(f"loses commits at {name}")
        means.release_later(name, gate, 0.5 + draw.random() * 2)


def hide_epochs(means: Means, draw: Stream) -> None:
    """A node goes on, and shows no new epoch."""
    name = means.some_live(draw)
    if name in means.cluster.nodes:
        node = means.cluster.nodes[name]
        node.log.member.gate.hold_visibility_at(node.log.state.epoch + draw.randrange(3))
        means.cluster.world.count("gate.hidden")
        means.tell(f"hides epochs at {name}")
        means.release_later(name, node.log.member.gate, 0.3 + draw.random() * 2)


def lose_managed(means: Means, draw: Stream) -> None:
    """Who proposed a command to the management group crashes, or is cut off, when others may have it already:
    whoever submitted it is not answered and asks again."""

    def lose(name: str) -> None:
        means.cluster.world.count("fault.lose_managed")
        if draw.random() < 0.5:
            means.crash(name, KILL, _down_s(draw))
            return
        host = means.cluster.processes[name].host
        others = [other for other in means.cluster.hosts() if other != host]
        means.cut([host], others, symmetric=True, seconds=1.0 + draw.random() * 3)

    def proposed(name: str) -> None:
        wait_s = draw.choice((0.002, 0.01, 0.03)) * draw.random()
        means.later(wait_s, lambda: lose(name))

    rule = CrashRule(label="management.proposed", kind="", probability=0.5, times=2, on_fired=proposed)
    means.add_rule(rule, seconds=5.0)


def strand_appended(means: Means, draw: Stream) -> None:
    """A leader is cut off as it appends, or a little later: what it judges from then on rests on entries that
    only it has, or the others commit what it cannot tell of."""
    wait_s = draw.choice((0.0, 0.003, 0.01)) * (0.5 + draw.random())
    cut_s = draw.choice((1.5, 6.0))

    def cut(name: str) -> None:
        means.cluster.world.count("fault.strand_appended")
        host = means.cluster.processes[name].host
        others = [other for other in means.cluster.hosts() if other != host]
        means.cut([host], others, symmetric=True, seconds=cut_s * (0.5 + draw.random()))

    rule = CrashRule(
        label="processor.appended",
        kind="",
        probability=draw.choice((0.05, 0.3)),
        times=3,
        on_fired=lambda name: means.later(wait_s, lambda: cut(name)),
    )
    means.add_rule(rule, seconds=5.0)


#: All kinds that strike by time; those that strike at stages of operations are the nemesis's own.
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("kill", kill, ("process.kill",)),
        Fault("power", power, ("process.power", "disk.lost", "disk.torn", "disk.holes")),
        Fault("kill_then_power", kill_then_power, ("fault.kill_then_power",)),
        Fault("all_down", all_down, ("fault.all_down",), 0.4),
        Fault("crash_at_callback", crash_at_callback, ("process.crash_at_callback",), 1.5),
        Fault("crash_at_probe", crash_at_probe, ("probe.crash",), 2.0),
        Fault("crash_repairing", crash_repairing, ("fault.crash_repairing",), 2.0),
        Fault("linger", linger, ("probe.linger",)),
        Fault("pause", pause, ("process.pause",)),
        Fault("slow_node", slow_node, ("process.slow_callback",), 0.5),
        Fault("clock_drift", clock_drift, ("clock.drift",), 0.5),
        Fault("wall_jump", wall_jump, ("clock.jump",), 0.5),
        Fault("slow_disk", slow_disk, ("disk.slow_sync",)),
        Fault("disk_error", disk_error, ("disk.sync_error",), 0.5),
        Fault("torn_disks", torn_disks, ("disk.torn", "disk.holes")),
        Fault("power_all_in_sync", power_all_in_sync, ("fault.all_down",)),
        Fault("power_after_read", power_after_read, ("fault.power_after_read",)),
        Fault("latency", latency, ("fault.latency",)),
        Fault("loss", loss, ("net.retransmitted",)),
        Fault("corrupt", corrupt, ("net.corrupted",), 0.5),
        Fault("partition", partition, ("net.held", "net.syn_blocked")),
        Fault("partial_partition", partial_partition, ("net.held",)),
        Fault("isolate_leader", isolate_leader, ("net.held",)),
        Fault("isolate_winners", isolate_winners, ("net.held",), 2.0),
        Fault("flapping", flapping, ("net.held",)),
        Fault("reset", reset, ("net.broken",)),
        Fault("blackhole", blackhole, ("net.blackholed",)),
        Fault("clog", clog, ("net.clogged",)),
        Fault("hold_commits", hold_commits, ("gate.held",)),
        Fault("lose_commits", lose_commits, ("gate.dropped", "gate.lost_replies"), 2.0),
        Fault("hide_epochs", hide_epochs, ("gate.hidden",)),
        Fault("syn_loss", syn_loss, ("net.syn_lost",), 0.5),
        Fault("strand_appended", strand_appended, ("fault.strand_appended",)),
        Fault("lose_managed", lose_managed, ("fault.lose_managed",)),
    )
}
#: Kinds that strike when an operation enters a stage, with the counter of their effect.
STAGE_FAULTS: dict[str, str] = {
    "crash_coordinator": "fault.crash_coordinator",
    "crash_newcomer": "fault.crash_newcomer",
    "crash_source": "fault.crash_source",
    "hold_behind": "fault.hold_behind",
    "cut_newcomer": "fault.cut_newcomer",
}
#: Kinds that strike at stages, with the counter of their effect; only where a scenario names them.
LEAVER_FAULTS: dict[str, str] = {"no_heir": "fault.no_heir", "late_mending": "fault.late_mending"}
#: Kinds that strike by time where there are several data centres.
DC_FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("cut_dc", cut_dc, ("fault.cut_dc",)),
        Fault("lose_dc", lose_dc, ("fault.lose_dc",)),
    )
}
#: Kinds that strike by time and take what a disk had promised to keep.
STORE_FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("lose_store", lose_store, ("fault.lose_store",), 2.0),
        Fault("damage_block", damage_block, ("disk.block_damaged",), 2.0),
    )
}
#: Kinds that bring about what only the middle of something shows, for some scenarios.
HALFWAY_FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("strand_decision", strand_decision, ("fault.strand_decision",), 2.0),
        Fault("strand_writes", strand_writes, ("fault.strand_writes",), 2.0),
        Fault("crash_building", crash_building, ("fault.crash_building",), 3.0),
        Fault("wipe_counting", wipe_counting, ("fault.wipe_counting",), 2.0),
        Fault("linger_counting", linger_counting, ("fault.linger_counting",), 2.0),
        Fault("stop_clocks", stop_clocks, ("clock.stopped",), 2.0),
        Fault("lone_holder", lone_holder, ("fault.lone_holder",), 2.0),
        Fault("power_at_drop", power_at_drop, ("fault.power_at_drop",), 2.0),
        Fault("long_away", long_away, ("fault.long_away",), 3.0),
        Fault("pause_reconciler", pause_reconciler, ("fault.pause_reconciler",)),
    )
}
#: Every kind that strikes by time.
TIMED: dict[str, Fault] = {**FAULTS, **DC_FAULTS, **STORE_FAULTS, **HALFWAY_FAULTS}
ALL_KINDS: Sequence[str] = (*FAULTS, *STAGE_FAULTS)
