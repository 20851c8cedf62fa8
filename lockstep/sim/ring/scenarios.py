"""The scenario of whole nodes that run on the ring without a log: they agree on joins, departures, dead
members and the schema while nodes and links fail.
"""

from __future__ import annotations

from lockstep.sim.scenario import Scenario

RING_SCENARIOS = (
    Scenario(
        name="ringed",
        chaos_s=12.0,
        ring_mode=("quorum",),
        founders=(3, 3, 4),
        factors=(3, 2),
        spares=3,
        busy_s=0.8,
        schema_ms=600.0,
        kinds_s=2.0,
        faults=(
            *("kill", "power", "pause", "slow_node", "partition", "loss", "latency", "flapping"),
            *("crash_at_probe", "crash_newcomer", "crash_source", "slow_disk"),
        ),
        sometimes=("join completed", "decommission completed", "table created"),
        by_default=False,
    ),
    # They get a log meanwhile, or are on their way to it.
    Scenario(
        name="upgraded",
        chaos_s=12.0,
        ring_mode=("quorum", "quorum", "unanimous"),
        founders=(3, 4, 5),
        factors=(3, 2),
        spares=2,
        busy_s=1.5,
        schema_ms=800.0,
        upgrades_s=2.0,
        faults=(
            *("kill", "power", "pause", "slow_node", "partition", "loss", "latency", "flapping"),
            *("crash_at_probe", "slow_disk"),
        ),
        sometimes=(
            *("log built", "upgrade given up", "upgrade.decided", "upgrade.flushed", "upgrade.grouped"),
            *("upgrade.begun", "recovery.managed", "recovery.grouped", "join completed", "table created"),
        ),
        by_default=False,
    ),
    # Nobody is dead for good: all members must accept.
    Scenario(
        name="ringed_all",
        chaos_s=10.0,
        ring_mode=("unanimous",),
        founders=(3, 3, 2),
        factors=(3, 2),
        spares=2,
        busy_s=1.0,
        schema_ms=800.0,
        faults=("kill", "power", "pause", "slow_node", "partition", "loss", "latency", "slow_disk"),
        sometimes=("join completed", "table created"),
        by_default=False,
    ),
)
