"""The scenarios: what each loads, which faults strike, and what a batch of its seeds must have seen."""

from __future__ import annotations

from lockstep.sim.data_centres import FACTS as DC_FACTS
from lockstep.sim.faults import ALL_KINDS, DC_FAULTS, FAULTS, STAGE_FAULTS
from lockstep.sim.scenario import Scenario
from lockstep.values.ids import Consistency

_OPERATIONS = ("join completed", "decommission completed", "operation cancelled", "table created")
_VOTERS = ("voters changed", "voters cancelled", "voter substituted", "voter asked to leave")
#: Without faults an operation is over before anyone thinks of cancelling it.
_UNDISTURBED = ("join completed", "decommission completed", "table created")
_RETRIES = (
    "retry: same epoch again",
    "retry: same epoch after a snapshot",
    "retry: unknown no more",
    "retry: id expired",
)
_STALE = ("replica.refused.stale", "write.replanned")

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="swarm",
            chaos_s=15.0,
            faults=tuple(ALL_KINDS),
            sometimes=(
                *_OPERATIONS,
                *_VOTERS,
                *_STALE,
                "leader changed",
                "coordinator crashed during an operation",
                "read.repaired",
                "stream.target.broken",
                "net.duplicated",
                "disk.torn",
                "fault.all_down",
                "log.node.broken",
            ),
        ),
        Scenario(
            name="moves",
            chaos_s=15.0,
            founders=(3, 3, 1),
            factors=(3, 2, 1, 1),
            spares=4,
            busy_s=0.4,
            faults=(
                *STAGE_FAULTS,
                *("kill", "power", "pause", "slow_node", "linger", "partition", "isolate_leader"),
                *("latency", "clog", "flapping", "crash_at_probe", "slow_disk"),
            ),
            sometimes=(
                *_OPERATIONS,
                *_STALE,
                "coordinator crashed during an operation",
                "stream.target.broken",
            ),
        ),
        Scenario(
            name="kinds",
            chaos_s=15.0,
            founders=(3,),
            factors=(3, 2),
            busy_s=1.5,
            kinds_s=0.6,
            replication_s=2.0,
            faults=("pause", "slow_node", "partition", "latency", "flapping", "slow_disk", "isolate_leader"),
            sometimes=(
                *("join completed", "move completed", "rebuild completed", "remove completed"),
                *("disk destroyed", "replication_change completed"),
            ),
        ),
        Scenario(
            name="dcs",
            chaos_s=15.0,
            founders=(2, 3),
            factors=(3, 2),
            spares=1,
            dcs=(2, 2, 3),
            busy_s=1.0,
            replication_s=2.0,
            clients=4,
            levels=(Consistency.LOCAL_QUORUM, Consistency.LOCAL_QUORUM, Consistency.QUORUM),
            rare_levels=(Consistency.ONE, Consistency.EACH_QUORUM, Consistency.EACH_QUORUM, Consistency.ALL),
            faults=(
                *DC_FAULTS,
                *("kill", "pause", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_at_probe", "hold_behind"),
            ),
            sometimes=(*DC_FACTS, "join completed", "decommission completed", "operation cancelled"),
        ),
        Scenario(
            name="stamps",
            chaos_s=12.0,
            founders=(3,),
            spares=2,
            busy_s=1.5,
            clients=1,
            stamped=4,
            dcs=(1, 1, 2),
            faults=(
                *("wall_jump", "clock_drift", "kill", "power", "pause", "slow_node", "partition"),
                *("latency", "flapping", "isolate_leader", "crash_newcomer", "crash_source", "hold_behind"),
            ),
            sometimes=(
                *("a later write has an earlier timestamp", "clock.jump", "read.repaired"),
                *("join completed", "decommission completed", *_STALE),
            ),
        ),
        Scenario(
            name="counts",
            chaos_s=12.0,
            founders=(3,),
            factors=(3, 2),
            spares=3,
            busy_s=0.8,
            clients=1,
            counting=4,
            kinds_s=3.0,
            duplicate=(0.0, 0.05, 0.2),
            faults=(
                *("kill", "power", "pause", "slow_node", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_newcomer", "crash_source", "hold_behind", "crash_at_probe"),
            ),
            sometimes=(
                *("a counter changed", "a counter changed with an unknown outcome", "net.duplicated"),
                *("counter.repeated", "counter.behind", "counter.next_leader"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="purge",
            chaos_s=25.0,
            founders=(3,),
            factors=(3, 3, 2),
            spares=2,
            busy_s=12.0,
            repair_s=0.7,
            faults=(
                *("kill", "power", "kill_then_power", "partition", "isolate_leader", "slow_disk"),
                *("crash_at_probe", "crash_newcomer", "crash_source"),
            ),
            sometimes=("repair done", "repair failed", "storage.purge.written", "repair.mend.applied"),
        ),
        Scenario(
            name="power",
            chaos_s=12.0,
            founders=(3,),
            spares=1,
            busy_s=4.0,
            sync_ms=(20.0, 80.0),
            faults=(
                *("power", "kill_then_power", "all_down", "torn_disks", "disk_error", "slow_disk"),
                *("power_all_in_sync", "power_after_read"),
                *("crash_at_probe", "crash_at_callback", "latency"),
            ),
            sometimes=("disk.torn", "disk.holes", "fault.all_down", "log.node.broken", "leader changed"),
        ),
        Scenario(
            name="log",
            chaos_s=12.0,
            founders=(3,),
            spares=1,
            busy_s=6.0,
            churn_ms=60.0,
            append_bytes=(1, 1, 1 << 20),
            clients=1,
            faults=(
                *("kill", "power", "kill_then_power", "all_down", "torn_disks", "slow_disk", "pause"),
                *("crash_at_probe", "crash_at_callback", "isolate_leader", "partition", "partial_partition"),
                *("isolate_winners", "loss", "latency", "blackhole", "flapping"),
            ),
            sometimes=("leader changed", "fault.all_down", "disk.torn"),
        ),
        Scenario(
            name="schema",
            chaos_s=10.0,
            founders=(3,),
            spares=1,
            busy_s=4.0,
            schema_ms=120.0,
            faults=(
                *("kill", "power", "kill_then_power", "pause", "slow_node", "partition", "isolate_leader"),
                *("partial_partition", "loss", "latency", "flapping", "crash_at_probe", "linger"),
            ),
            sometimes=("leader changed", "schema change ok", "schema change rejected", *_STALE),
        ),
        Scenario(
            name="metadata",
            chaos_s=10.0,
            founders=(3, 3, 1, 5),
            spares=2,
            busy_s=2.5,
            clients=1,
            metadata_ms=150.0,
            schema_ms=300.0,
            duplicate=(0.0, 0.02, 0.2),
            recent_ids=48,
            replays=True,
            append_bytes=(1, 1 << 20),
            faults=(*(kind for kind in FAULTS if kind != "power_after_read"), "hold_behind"),
            sometimes=(
                *_VOTERS,
                *_RETRIES,
                "leader changed",
                "leader changed in a change of voters",
                "service: frozen",
                "service: thawed",
                "service: repeated advance refused",
                "schema change ok",
                "schema change rejected",
                "gap crossed by a snapshot",
                "log truncated",
                "log dropped at a voter",
                "raft.replace.after",
                "raft.snapshot.present",
                "net.duplicated",
                "disk.torn",
                "fault.all_down",
            ),
        ),
        Scenario(
            name="lwt",
            chaos_s=12.0,
            founders=(3,),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.8,
            clients=1,
            deciding=5,
            faults=(
                *("wall_jump", "clock_drift", "kill", "power", "all_down", "pause", "slow_node", "partition"),
                *("latency", "flapping", "isolate_leader", "crash_at_probe", "crash_newcomer"),
                *("crash_source", "hold_behind", "loss", "slow_disk"),
            ),
            sometimes=(
                *("a decision applied", "a decision refused", "a decision with an unknown outcome"),
                *("conditional.finishes", "conditional.brings", "conditional.beaten"),
                *("conditional.plan_changed", "join completed", "decommission completed", *_STALE),
            ),
        ),
        Scenario(
            name="views",
            chaos_s=12.0,
            founders=(3, 3, 4),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.8,
            clients=1,
            viewing=4,
            duplicate=(0.0, 0.05),
            faults=(
                *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
                *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
                *("loss", "slow_disk"),
            ),
            sometimes=(
                *("views.derived", "views.delivered", "views.built", "batches.replayed"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(name="calm", chaos_s=8.0, sometimes=_UNDISTURBED),
    )
}
