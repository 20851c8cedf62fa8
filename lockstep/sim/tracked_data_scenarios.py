"""The scenarios of tracked tables that are read whole, captured, and loaded in bulk."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lockstep.sim.load_scenarios import LOAD_SCENARIOS
from lockstep.sim.scenario import Scenario
from lockstep.sim.tracked_scenarios import (
    DURING_LONG_MOVES,
    DURING_MOVES,
    NODES_AND_LINKS,
    NODES_LINKS_DISKS,
)
from lockstep.values.ids import Consistency

_TORN: Final = Scenario(
    name="tracked_torn",
    chaos_s=6.0,
    founders=(3,),
    factors=(3,),
    spares=0,
    tracked=True,
    whole=0.4,
    clients=3,
    volley=(2, 4),
    # A write at ONE is whole on one replica, and reads of one row must not bring others that row alone.
    rare_levels=(Consistency.ONE,),
    faults=("power", "pause", "slow_node", "partition", "latency", "flapping", "loss", "clog"),
    always=("strand_writes",),
    sometimes=(*("tracked.pulled", "read.tracked_reread", "read.tracked_brought", "read.tracked_anew"),),
)

TRACKED_DATA_SCENARIOS = (
    _TORN,
    # Clients that do little else than read, so that two cores judge a million reads in a quarter of an hour.
    replace(
        _TORN,
        name="tracked_torn_reads",
        chaos_s=8.0,
        whole=0.95,
        clients=4,
        volley=(16,),
        by_default=False,
    ),
    Scenario(
        name="tracked_changes",
        chaos_s=12.0,
        founders=(3, 3, 4),
        factors=(3,),
        spares=0,
        tracked=True,
        clients=1,
        capturing=4,
        cohort_after_s=(0.0, 0.0, 1.0),
        duplicate=(0.0, 0.05),
        faults=(
            *NODES_AND_LINKS,
            *("isolate_leader", "crash_at_probe", "loss", "slow_disk", "linger", "pause_reconciler"),
            "long_away",
        ),
        sometimes=(
            *("tracked.pulled", "read.tracked_brought", "cohort.set_apart", "cohort.rows_taken"),
            *("conditional.decided", "batches.written"),
        ),
    ),
    Scenario(
        name="tracked_change_moves",
        chaos_s=14.0,
        founders=(3, 3, 4),
        factors=(3, 3, 2),
        spares=3,
        tracked=True,
        busy_s=0.8,
        clients=1,
        capturing=4,
        cohort_after_s=(0.0, 0.0, 1.0),
        duplicate=(0.0, 0.05),
        faults=(
            *NODES_AND_LINKS,
            *DURING_LONG_MOVES,
        ),
        sometimes=(
            *("join completed", "decommission completed", "tracked.ranges_changed"),
            *("capture.write.without_log", "tracked.pulled", "tracked.handed_over", "read.tracked_brought"),
        ),
    ),
    Scenario(
        name="tracked_witness_capture",
        chaos_s=14.0,
        founders=(3, 3, 4, 5),
        factors=(3,),
        spares=2,
        tracked=True,
        witnesses=1,
        busy_s=1.0,
        clients=1,
        capturing=4,
        duplicate=(0.0, 0.05),
        faults=(
            *NODES_AND_LINKS,
            *DURING_LONG_MOVES,
        ),
        sometimes=(
            *("join completed", "decommission completed", "tracked.ranges_changed", "tracked.promoted"),
            *("capture.write.without_log", "tracked.pulled", "tracked.handed_over", "read.tracked_brought"),
            *("a witness was empty", "conditional.decided", "batches.written"),
        ),
    ),
    Scenario(
        name="tracked_change_tablets",
        # A new map of a captured table settles for 20 s.
        chaos_s=40.0,
        founders=(3, 4, 4),
        factors=(3,),
        spares=2,
        busy_s=3.0,
        tablets=4,
        tracked=True,
        resize_s=1.0,
        clients=1,
        capturing=3,
        duplicate=(0.0, 0.05),
        faults=(
            *NODES_LINKS_DISKS,
            *DURING_MOVES,
            *("pause_reconciler", "long_away"),
        ),
        # Streams count from the time that coordinators' clocks have.
        steps_clocks=False,
        sometimes=(
            *("split finalised", "merge finalised", "streams closed and opened", "tablets.begin"),
            *("tracked.pulled", "tracked.handed_over", "read.tracked_brought", "tracked.ranges_changed"),
        ),
    ),
    replace(
        LOAD_SCENARIOS[0],
        name="tracked_loads",
        tracked=True,
        sometimes=(
            *("a load was done", "a load left nothing", "load.target.taken_in"),
            *("join completed", "load.not_staged", "tracked.pulled", "read.tracked_reread"),
        ),
    ),
)
