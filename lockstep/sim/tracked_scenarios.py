"""The scenario of tracked tables: nobody joins or leaves, everything else fails."""

from __future__ import annotations

from lockstep.sim.scenario import Scenario

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
)
