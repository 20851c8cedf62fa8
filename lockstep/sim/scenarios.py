"""The scenarios: what each loads, which faults strike, and what a batch of its seeds must have seen."""

from __future__ import annotations

from msgspec import structs

from lockstep.sim.disasters.run import NAME as DISASTERS
from lockstep.sim.disasters.run import SOMETIMES, DisasterRun
from lockstep.sim.faults.data_centres import FACTS as DC_FACTS
from lockstep.sim.faults.halfway import LONE
from lockstep.sim.faults.kinds import ALL_KINDS, DC_FAULTS, FAULTS, STAGE_FAULTS
from lockstep.sim.faults.lost_stores import FACTS as LOST_STORE_FACTS
from lockstep.sim.load.conditional_workload import LACKED
from lockstep.sim.load_scenarios import LOAD_SCENARIOS
from lockstep.sim.ring.scenarios import RING_SCENARIOS
from lockstep.sim.scenario import Run, Scenario
from lockstep.sim.tablet_scenarios import CAPTURE_SCENARIOS, TABLET_SCENARIOS
from lockstep.sim.tracked_scenarios import TRACKED_SCENARIOS
from lockstep.values.ids import Consistency

_OPERATIONS = ("join completed", "decommission completed", "operation cancelled", "table created")
_VOTERS = ("voters changed", "voters cancelled", "voter substituted", "voter asked to leave")
#: Without faults an operation is over before anyone thinks of cancelling it.
_UNDISTURBED = ("join completed", "decommission completed", "table created")
_RETRIED = ("same epoch again", "same epoch after a snapshot", "unknown no more", "id expired")
_RETRIES = tuple(f"retry: {how}" for how in _RETRIED)
_STALE = ("replica.refused.stale", "write.replanned")

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        *TABLET_SCENARIOS,
        *TRACKED_SCENARIOS,
        *LOAD_SCENARIOS,
        *CAPTURE_SCENARIOS,
        *RING_SCENARIOS,
        Scenario(
            name="swarm",
            chaos_s=15.0,
            faults=tuple(ALL_KINDS),
            sometimes=(
                *_OPERATIONS,
                *_VOTERS,
                *_STALE,
                *("leader changed", "coordinator crashed during an operation", "read.repaired"),
                *("stream.target.broken", "net.duplicated", "disk.torn", "fault.all_down"),
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
            name="volleys",
            founders=(3,),
            factors=(3, 3, 2),
            busy_s=0.8,
            clients=2,
            volley=(4, 8, 16),
            faults=(
                *("kill", "power", "pause", "slow_node", "partition", "loss", "latency", "flapping"),
                *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
                *("slow_disk", "linger"),
            ),
            sometimes=(
                *("internode.shared", "replica.write.fenced", "read.repaired"),
                *("join completed", "decommission completed", *_STALE),
            ),
        ),
        Scenario(
            name="kinds",
            chaos_s=15.0,
            founders=(3,),
            factors=(3, 2),
            kinds_s=0.6,
            replication_s=2.0,
            faults=("pause", "slow_node", "partition", "latency", "flapping", "slow_disk", "isolate_leader"),
            sometimes=(
                *("join completed", "move completed", "rebuild completed", "remove completed"),
                *("disk destroyed", "voter's disk destroyed", "replication_change completed"),
            ),
        ),
        Scenario(
            name="dcs",
            chaos_s=15.0,
            founders=(2, 3),
            factors=(3, 2),
            spares=1,
            dcs=(2, 2, 3),
            # Changes of replication often, and between them little else that holds ranges.
            busy_s=2.0,
            replication_s=0.6,
            clients=4,
            unread=4,
            levels=(Consistency.LOCAL_QUORUM, Consistency.LOCAL_QUORUM, Consistency.QUORUM),
            rare_levels=(Consistency.ONE, Consistency.EACH_QUORUM, Consistency.EACH_QUORUM, Consistency.ALL),
            # Who stays must be filled only while replicas lack what hints would bring at once.
            hints=(False, False, True),
            faults=(
                *DC_FAULTS,
                *("kill", "pause", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_at_probe", "hold_behind"),
            ),
            sometimes=(*DC_FACTS, "join completed", "decommission completed", "operation cancelled"),
        ),
        Scenario(
            name="stamps",
            founders=(3,),
            clients=1,
            stamped=4,
            dcs=(1, 1, 2),
            faults=(
                *("wall_jump", "clock_drift", "kill", "power", "pause", "slow_node", "partition"),
                *("latency", "flapping", "isolate_leader", "crash_newcomer", "crash_source", "hold_behind"),
                "stop_clocks",
            ),
            sometimes=(
                "two writes have one timestamp",
                *("a later write has an earlier timestamp", "clock.jump", "read.repaired"),
                *("join completed", "decommission completed", *_STALE),
            ),
        ),
        Scenario(
            name="damage",
            founders=(3,),
            factors=(3,),
            spares=1,
            busy_s=1.0,
            clients=3,
            counting=1,
            deciding=1,
            repair_s=4.0,
            faults=("damage_block", "kill", "pause", "partition", "latency", "slow_disk", "isolate_leader"),
            sometimes=("disk.block_damaged", "read.asked_another", "counter.next_leader", "join completed"),
        ),
        Scenario(
            name="counts",
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
                "linger_counting",
            ),
            sometimes=(
                *("a counter changed", "a counter changed with an unknown outcome", "net.duplicated"),
                *("counter.repeated", "counter.behind", "counter.next_leader", "counter.given_up_meanwhile"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="purge",
            chaos_s=25.0,
            founders=(3,),
            factors=(3, 3, 2),
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
            name="stores",
            chaos_s=20.0,
            founders=(3,),
            factors=(3,),
            spares=1,
            busy_s=4.0,
            clients=2,
            counting=2,
            deciding=2,
            always=("lose_store",),
            faults=(
                *("kill", "power", "pause", "partition", "flapping", "latency", "slow_disk", "slow_node"),
                *("crash_at_probe", "crash_source", "isolate_leader", "wipe_counting"),
            ),
            sometimes=(
                *(*LOST_STORE_FACTS, "rebuild completed", "work.settles"),
                "a store was lost between the read and the write of a counter",
            ),
        ),
        Scenario(
            name="log",
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
            busy_s=2.5,
            clients=1,
            metadata_ms=150.0,
            schema_ms=300.0,
            duplicate=(0.0, 0.02, 0.2),
            recent_ids=48,
            replays=True,
            append_bytes=(1, 1 << 20),
            faults=(*(kind for kind in FAULTS if kind != "power_after_read"), "hold_behind", "power_at_drop"),
            sometimes=(
                *_VOTERS,
                *_RETRIES,
                "leader changed",
                "leader changed in a change of voters",
                *("service: frozen", "service: thawed", "service: repeated advance refused"),
                *("schema change ok", "schema change rejected", "gap crossed by a snapshot"),
                *("log truncated", "log dropped at a voter", "raft.replace.after"),
                *("raft.snapshot.present", "net.duplicated", "disk.torn", "fault.all_down"),
            ),
        ),
        Scenario(
            name="lwt",
            founders=(3,),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.8,
            clients=1,
            deciding=5,
            faults=(
                *("wall_jump", "clock_drift", "kill", "power", "all_down", "pause", "slow_node", "partition"),
                *("latency", "flapping", "isolate_leader", "crash_at_probe", "crash_newcomer"),
                *("crash_source", "hold_behind", "loss", "slow_disk", "strand_decision"),
                "stop_clocks",
            ),
            sometimes=(
                *(LACKED, "conditional.look_in_progress", "conditional.look_lacks"),
                "ballots.of_one_time",
                *("a decision applied", "a decision refused", "a decision with an unknown outcome"),
                *("conditional.finishes", "conditional.brings", "conditional.beaten"),
                *("conditional.plan_changed", "join completed", "decommission completed", *_STALE),
            ),
        ),
        Scenario(
            name="lwt_dcs",
            chaos_s=8.0,
            founders=(3,),
            factors=(3, 3, 2),
            spares=1,
            dcs=(2,),
            busy_s=1.0,
            clients=1,
            deciding=6,
            faults=(
                *DC_FAULTS,
                *("wall_jump", "kill", "power", "pause", "slow_node", "partition", "latency", "flapping"),
                *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
                *("loss", "strand_decision"),
            ),
            sometimes=(
                LACKED,
                *("a local decision applied", "a local decision applied in a cut-off data centre"),
                *("conditional.finishes", "conditional.brings", "conditional.plan_changed"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="views",
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
                *("views.derived", "views.delivered", "views.built", "views.paired", "batches.replayed"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="indexes",
            founders=(3, 3, 4),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.8,
            clients=1,
            indexing=4,
            duplicate=(0.0, 0.05),
            faults=(
                *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
                *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
                *("loss", "slow_disk"),
            ),
            sometimes=(
                *("index.built", "index.stale_removed", "index.confirmed"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="builds",
            founders=(3,),
            factors=(3, 2, 1),
            spares=1,
            busy_s=4.0,
            clients=1,
            viewing=2,
            indexing=2,
            always=("crash_building",),
            faults=("kill", "power", "pause", "slow_disk", "latency"),
            sometimes=("views.built", "index.built", "index.build_step", "views.build_page"),
        ),
        Scenario(
            name="batches",
            founders=(3,),
            factors=(3, 3, 2),
            clients=1,
            batching=4,
            dcs=(1, 1, 2),
            faults=(
                *("kill", "power", "pause", "slow_node", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
                "loss",
            ),
            sometimes=(
                *("a batch was written", "a batch with an unknown outcome", "batches.replayed"),
                *("hints.delivered", "hints.left_again", "hints.handed_over"),
                *("a hint was delivered", "a hint was handed on"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="leavers",
            chaos_s=10.0,
            founders=(4, 5),
            factors=(3, 2),
            busy_s=0.5,
            cancel=0.1,
            clients=1,
            batching=2,
            always=("no_heir", "late_mending"),
            faults=(
                *("kill", "pause", "partition", "latency", "crash_source", "crash_coordinator"),
                "hold_behind",
            ),
            sometimes=(
                *("log.hints.without_heir", "a leaver's hint was recorded", "hints.handed_over"),
                *("a hint came while its group changed", "a hint was planned for a former group"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="menders",
            chaos_s=10.0,
            founders=(3,),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.4,
            clients=1,
            columns=5,
            hints=(False,),
            always=("late_mending",),
            faults=("kill", "pause", "partition", "latency", "flapping", "loss", "crash_source"),
            sometimes=(
                *("a read repair came while its group changed", "read.repaired", "join completed"),
                *("a read repair was planned for a former group", "decommission completed"),
            ),
        ),
        Scenario(
            name="columns",
            chaos_s=10.0,
            founders=(3,),
            factors=(3, 3, 2),
            clients=1,
            columns=5,
            hints=(False, False, True),
            dcs=(1, 1, 1, 2),
            faults=(
                *("kill", "power", "pause", "slow_node", "partition", "partial_partition", "latency"),
                *("flapping", "reset", "crash_at_probe", "crash_newcomer", "crash_source", "all_down"),
                *("hold_behind", "loss", "slow_disk", "blackhole"),
            ),
            sometimes=(
                *("a value and a deletion have one timestamp", "a value that expires was read"),
                *("a value that expires and one that stays have one timestamp", "read.repaired"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            name="repairs",
            chaos_s=15.0,
            founders=(3, 3, 4),
            factors=(3, 3, 2),
            busy_s=4.0,
            clients=2,
            columns=3,
            repair_s=0.4,
            partial_repairs=True,
            hints=(False, True),
            duplicate=(0.0, 0.05, 0.2),
            faults=(
                *("kill", "power", "kill_then_power", "partition", "partial_partition", "isolate_leader"),
                *("slow_disk", "pause", "slow_node", "latency", "flapping", "crash_repairing"),
                *("crash_at_probe", "crash_newcomer", "crash_source"),
            ),
            sometimes=(
                *("repair done", "repair failed", "a repair was judged", "repair.mend.applied"),
                "marks of repairs were judged",
                *("a partial repair done", "a repair between some replicas done", "storage.purge.written"),
                *("join completed", "decommission completed"),
            ),
        ),
        Scenario(
            # All is asked for at ALL: what a quorum alone holds may be lost by force.
            name="forced",
            chaos_s=15.0,
            founders=(4, 5),
            factors=(3, 3, 2),
            busy_s=5.0,
            clients=2,
            levels=(Consistency.ALL,),
            rare_levels=(Consistency.ONE,),
            kinds_s=0.5,
            forced=0.9,
            repair_s=1.0,
            partial_repairs=True,
            faults=(
                *("kill", "power", "pause", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_at_probe"),
            ),
            sometimes=(
                *("node given up by force", "a range was marked repaired", "a part of a range was marked"),
                *("a snapshot with degraded ranges", "repair done"),
            ),
        ),
        Scenario(
            name="newcomers",
            chaos_s=15.0,
            founders=(3, 3, 4),
            factors=(3, 3, 2),
            spares=3,
            busy_s=0.6,
            cancel=0.1,
            cancel_joins=0.6,
            hints=(True, False),
            faults=(
                *("kill", "power", "pause", "slow_node", "partition", "latency", "flapping", "slow_disk"),
                *("crash_newcomer", "crash_source", "crash_coordinator", "hold_behind", "cut_newcomer"),
            ),
            sometimes=(
                *(
                    "a newcomer was emptied",
                    "a former replica was emptied",
                    "a cancelled newcomer joined again",
                ),
                *("join completed", "decommission completed", "operation cancelled"),
            ),
        ),
        Scenario(
            name="overload",
            chaos_s=8.0,
            founders=(3,),
            factors=(3, 3, 2),
            spares=1,
            busy_s=4.0,
            clients=1,
            overload=6,
            # Nodes are slow enough.
            faults=(
                *("kill", "power", "pause", "partition", "latency", "flapping", "slow_disk"),
                *("isolate_leader", "crash_at_probe", "hold_behind"),
            ),
            sometimes=(
                *("a request was refused as overloaded", "a request was served under overload"),
                *("internode.expired", "write.expired", "read.repaired", "join completed"),
            ),
        ),
        Scenario(
            name="givers",
            chaos_s=30.0,
            founders=(4, 5),
            factors=(3,),
            spares=6,
            busy_s=4.0,
            cancel=0.1,
            clients=3,
            unread=24,
            kinds_s=6.0,
            hints=(False, False, True),
            always=("lone_holder",),
            faults=("pause", "latency", "slow_disk", "hold_behind", "crash_source"),
            sometimes=(LONE, "disk destroyed", "join completed", "decommission completed"),
        ),
        Scenario(
            name="access",
            chaos_s=10.0,
            founders=(3, 3, 4),
            clients=1,
            access_ms=60.0,
            metadata_ms=400.0,
            schema_ms=400.0,
            kinds_s=3.0,
            repair_s=3.0,
            dcs=(1, 1, 2),
            replays=True,
            faults=("kill", "power", "pause", "partition", "latency", "isolate_leader", "crash_at_probe"),
            sometimes=(
                *("wrong wish rejected", "access wish ok", "access wish rejected", "leader changed"),
                "a new voter's disk destroyed",
            ),
        ),
        Scenario(
            name="tight",
            chaos_s=10.0,
            founders=(3, 3, 4),
            factors=(3, 3, 2),
            busy_s=1.0,
            clients=2,
            tight=True,
            by_default=False,
            access_ms=500.0,
            metadata_ms=500.0,
            volley=(1, 8),
            counting=2,
            batching=2,
            deciding=2,
            viewing=2,
            indexing=2,
            columns=2,
            dcs=(1, 1, 2),
            faults=(
                *("kill", "power", "pause", "partition", "partial_partition", "latency", "flapping"),
                *("slow_disk", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind", "loss"),
            ),
            sometimes=("join completed", "read.repaired", "batches.replayed"),
        ),
        Scenario(name="calm", chaos_s=8.0, sometimes=_UNDISTURBED),
    )
}

#: Fewer registers are read there, so what damage does to plain tables is looked for without them.
SCENARIOS["damaged_views"] = structs.replace(SCENARIOS["damage"], name="damaged_views", viewing=2, indexing=2)

#: What a run of its own plays: groups that lose their majority for good.
SCENARIOS[DISASTERS] = Scenario(name=DISASTERS, by_default=False, sometimes=SOMETIMES)


def run_of(name: str, seed: int, *, trace: bool = False) -> Run | DisasterRun:
    """One seed of a scenario."""
    return DisasterRun(seed, trace=trace) if name == DISASTERS else Run(SCENARIOS[name], seed, trace=trace)
