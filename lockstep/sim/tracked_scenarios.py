"""The scenarios of tracked tables: replicas that stay while everything else fails, and replicas that move."""

from __future__ import annotations

from lockstep.sim.scenario import Scenario
from lockstep.values.ids import Consistency

TRACKED_SCENARIOS = (
    Scenario(
        name="tracked",
        chaos_s=12.0,
        founders=(3, 4, 4, 5),
        factors=(3,),
        spares=0,
        tracked=True,
        clients=4,
        duplicate=(0.0, 0.05, 0.2),
        faults=(
            *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
            *("isolate_leader", "crash_at_probe", "loss", "slow_disk", "linger", "clog", "wall_jump"),
        ),
        sometimes=(
            *("tracked.pulled", "read.tracked_reread", "read.tracked_brought", "read.tracked_anew"),
            *("write.another_leads", "write.expired", "read.asked_another"),
        ),
    ),
    Scenario(
        name="tracked_statements",
        chaos_s=10.0,
        founders=(3, 3, 4),
        factors=(3,),
        spares=0,
        tracked=True,
        clients=1,
        counting=2,
        batching=2,
        indexing=2,
        columns=1,
        duplicate=(0.0, 0.05),
        faults=(
            *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
            *("isolate_leader", "crash_at_probe", "loss", "slow_disk", "linger"),
        ),
        sometimes=(
            *("tracked.pulled", "read.tracked_reread", "read.tracked_brought", "counter.added"),
            *("a batch was written", "batches.replayed", "index.built", "index.stale_removed"),
        ),
    ),
    Scenario(
        name="tracked_lwt",
        chaos_s=10.0,
        founders=(3, 3, 4),
        factors=(3,),
        spares=0,
        tracked=True,
        clients=2,
        deciding=4,
        duplicate=(0.0, 0.05),
        faults=(
            *("wall_jump", "kill", "power", "all_down", "pause", "slow_node", "partition", "latency"),
            *("flapping", "isolate_leader", "crash_at_probe", "loss", "slow_disk", "strand_decision"),
        ),
        sometimes=(
            *("a decision applied", "a decision refused", "a decision with an unknown outcome"),
            *("conditional.finishes", "conditional.brings", "conditional.brought", "replica.write.named"),
            *("tracked.pulled", "read.tracked_brought"),
        ),
    ),
    Scenario(
        name="tracked_moves",
        chaos_s=15.0,
        founders=(3, 3, 4),
        factors=(3, 3, 2),
        spares=3,
        tracked=True,
        clients=4,
        busy_s=0.5,
        kinds_s=1.5,
        faults=(
            *("kill", "power", "pause", "slow_node", "linger", "partition", "isolate_leader"),
            *("latency", "clog", "flapping", "crash_at_probe", "slow_disk", "loss"),
            *("crash_newcomer", "crash_source", "hold_behind"),
        ),
        sometimes=(
            *("tracked.handed_over", "tracked.ranges_changed", "tracked.pulled", "read.tracked_brought"),
            *("join completed", "decommission completed", "operation cancelled"),
        ),
    ),
    Scenario(
        name="tracked_cohorts",
        chaos_s=18.0,
        founders=(3, 3, 4, 5),
        factors=(3,),
        spares=0,
        tracked=True,
        clients=3,
        cohort_after_s=(0.5, 0.5, 2.0),
        duplicate=(0.0, 0.05),
        always=("long_away",),
        faults=(
            *("long_away", "kill", "power", "all_down", "pause", "slow_node", "partition", "latency"),
            *("isolate_leader", "crash_at_probe", "loss", "slow_disk", "linger", "flapping"),
        ),
        sometimes=(
            *("cohort.set_apart", "cohort.claimed", "cohort.taken", "cohort.rows_taken", "cohort.not_taken"),
            *("cohort.too_few", "read.tracked_partial", "read.tracked_switched", "read.tracked_anew"),
            *("tracked.pulled", "read.tracked_brought"),
        ),
    ),
    Scenario(
        name="tracked_altered",
        chaos_s=16.0,
        founders=(3, 3, 4),
        factors=(3,),
        spares=2,
        busy_s=4.0,
        retracks_s=1.5,
        clients=4,
        duplicate=(0.0, 0.05),
        faults=(
            *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
            *("isolate_leader", "crash_at_probe", "loss", "slow_disk", "linger"),
        ),
        sometimes=(
            *("ids tell of everything", "read.repaired", "read.tracked_reread", "read.tracked_brought"),
            *("replica.write.named", "tracked.pulled", "hints.delivered", "write.replanned"),
        ),
    ),
    Scenario(
        name="tracked_torn",
        chaos_s=6.0,
        founders=(3,),
        factors=(3,),
        spares=0,
        tracked=True,
        whole=True,
        clients=3,
        volley=(2, 4),
        # A write at ONE is whole on one replica, and reads of one row must not bring others that row alone.
        rare_levels=(Consistency.ONE,),
        faults=("power", "pause", "slow_node", "partition", "latency", "flapping", "loss", "clog"),
        always=("strand_writes",),
        sometimes=(*("tracked.pulled", "read.tracked_reread", "read.tracked_brought", "read.tracked_anew"),),
    ),
)
