"""The scenarios of keyspaces whose tables spread by tablets, or come to do so, and of captured changes."""

from __future__ import annotations

from lockstep.sim.faults.kinds import ALL_KINDS
from lockstep.sim.faults.lost_stores import FACTS as LOST_STORE_FACTS
from lockstep.sim.scenario import Scenario

#: All kinds but those that strike repairs, of which there are none, and those that break what streams rely
#: on: that clocks are right within seconds.
_CAPTURE_FAULTS = tuple(kind for kind in ALL_KINDS if kind not in ("crash_repairing", "wall_jump"))

TABLET_SCENARIOS = (
    Scenario(
        name="tablets",
        chaos_s=15.0,
        founders=(3, 4, 4),
        tablets=8,
        replication_s=3.0,
        # Nothing is repaired here that a crash could strike.
        faults=tuple(kind for kind in ALL_KINDS if kind != "crash_repairing"),
        clients=3,
        resize_s=1.0,
        sometimes=(
            *("join completed", "decommission completed"),
            *("tablets.begin", "tablets.raised", "tablets.lowered"),
            *("leader changed", "write.replanned"),
            *("split finalised", "merge finalised", "split revoked", "merge revoked"),
        ),
    ),
    Scenario(
        name="tablet_losses",
        chaos_s=15.0,
        founders=(4, 5),
        spares=2,
        tablets=4,
        busy_s=3.0,
        kinds_s=2.0,
        clients=2,
        faults=(
            *("kill", "power", "pause", "partition", "latency", "flapping", "slow_disk"),
            *("isolate_leader", "crash_at_probe"),
        ),
        sometimes=("tablets.begin", "join completed", "disk destroyed"),
    ),
    Scenario(
        name="tablet_stores",
        chaos_s=20.0,
        founders=(3, 4),
        factors=(3,),
        spares=1,
        tablets=4,
        tracked=True,
        busy_s=4.0,
        clients=2,
        counting=2,
        deciding=2,
        always=("lose_store",),
        faults=(
            *("kill", "power", "pause", "partition", "flapping", "latency", "slow_disk", "slow_node"),
            *("crash_at_probe", "isolate_leader"),
        ),
        sometimes=(*LOST_STORE_FACTS, "rebuild completed", "tablets.begin", "tracked.handed_over"),
    ),
    Scenario(
        name="tablet_sides",
        chaos_s=12.0,
        founders=(3, 4),
        spares=2,
        tablets=4,
        resize_s=0.8,
        clients=1,
        counting=1,
        batching=1,
        deciding=2,
        viewing=1,
        indexing=1,
        faults=(
            *("kill", "power", "pause", "slow_node", "partition", "latency", "flapping", "slow_disk"),
            *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind", "loss"),
        ),
        sometimes=(
            *("split finalised", "merge finalised", "tablets.begin", "join completed"),
            *("a decision applied", "a counter changed", "a batch was written"),
            *("views.derived", "index.built", "batches.replayed"),
        ),
    ),
    Scenario(
        name="to_tablets",
        chaos_s=12.0,
        founders=(3, 3, 4),
        replication_s=5.0,
        migrates_s=1.0,
        faults=("kill", "power", "pause", "partition", "latency", "crash_at_probe", "loss"),
        sometimes=(
            "tablets.started",
            "tablets.taken_back",
            "tablets.begin",
            "join completed",
            *("replica.refused.stale", "write.replanned"),
        ),
    ),
)

CAPTURE_SCENARIOS = (
    Scenario(
        name="capture",
        founders=(3, 3, 4),
        spares=3,
        busy_s=0.8,
        clients=1,
        capturing=4,
        duplicate=(0.0, 0.05),
        faults=(
            *("kill", "power", "all_down", "pause", "slow_node", "partition", "latency", "flapping"),
            *("isolate_leader", "crash_at_probe", "crash_newcomer", "crash_source", "hold_behind"),
            *("loss", "slow_disk"),
        ),
        sometimes=(
            *("join completed", "decommission completed", "leader changed"),
            "capture.write.without_log",
        ),
    ),
    Scenario(
        name="capture_generations",
        # The streams of a node that joins count 65 s later.
        chaos_s=75.0,
        founders=(3,),
        spares=1,
        busy_s=4.0,
        clients=1,
        capturing=2,
        faults=("kill", "power", "pause", "partition", "isolate_leader", "hold_behind", "latency", "loss"),
        # As of streams of tablets.
        steps_clocks=False,
        sometimes=(
            *("join completed", "leader changed", "generations published", "changes in later streams"),
        ),
    ),
    Scenario(
        name="capture_tablets",
        # A new map of a captured table settles for 20 s.
        chaos_s=50.0,
        founders=(3, 4, 4),
        spares=2,
        busy_s=3.0,
        tablets=4,
        resize_s=1.0,
        clients=1,
        capturing=3,
        duplicate=(0.0, 0.05),
        faults=_CAPTURE_FAULTS,
        # Streams count from the time that coordinators' clocks have.
        steps_clocks=False,
        sometimes=(
            *("join completed", "decommission completed", "leader changed", "tablets.begin"),
            *("split finalised", "merge finalised", "streams closed and opened"),
        ),
    ),
)
