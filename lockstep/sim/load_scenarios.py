"""The scenario of bulk loads: they are staged and committed while nodes fail, come and go."""

from __future__ import annotations

from lockstep.sim.scenario import Scenario

LOAD_SCENARIOS = (
    Scenario(
        name="loads",
        chaos_s=12.0,
        founders=(3, 3, 4),
        factors=(3,),
        clients=1,
        loading=3,
        kinds_s=4.0,
        faults=(
            *("kill", "power", "pause", "partition", "latency", "slow_disk"),
            *("crash_at_probe", "loss", "hold_behind"),
        ),
        sometimes=(
            *("a load was done", "a load left nothing", "load.target.taken_in"),
            *("join completed", "load.not_staged", "an index found rows of a load"),
        ),
    ),
)
