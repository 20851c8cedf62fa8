"""Planted bugs: product functions replaced by faulty ones, to prove that the checkers bite.

Invariant: nothing in the product knows of them; each plant replaces named attributes for the time of one
run, and undoes it. A plant that no seed finds says that either a checker or a fault is missing.
"""

from lockstep.sim.mutants.captured import CAPTURED
from lockstep.sim.mutants.cohorts import COHORTS
from lockstep.sim.mutants.cohorts import DIRECTED as _COHORTS_DIRECTED
from lockstep.sim.mutants.columns import COLUMNS, COUNTERS, DECISIONS, INDEXES, VIEWS
from lockstep.sim.mutants.columns import DECISION_DIRECTED as _DECISIONS_DIRECTED
from lockstep.sim.mutants.columns import DIRECTED as _VIEWS_DIRECTED
from lockstep.sim.mutants.data import DATA, OWED
from lockstep.sim.mutants.data import DIRECTED as _OWED_DIRECTED
from lockstep.sim.mutants.disasters import DIRECTED as _DISASTERS_DIRECTED
from lockstep.sim.mutants.disasters import DISASTERS
from lockstep.sim.mutants.loads import LOADS
from lockstep.sim.mutants.overload import DIRECTED as _STAMPS_DIRECTED
from lockstep.sim.mutants.overload import OVERLOAD, SHARING, STAMPS
from lockstep.sim.mutants.repairs import DAMAGE, DEGRADED, LOST_STORES, PURGING, REPAIRS
from lockstep.sim.mutants.repairs import DIRECTED as _PURGING_DIRECTED
from lockstep.sim.mutants.ringed import DIRECTED as _RINGED_DIRECTED
from lockstep.sim.mutants.ringed import RINGED
from lockstep.sim.mutants.service import ACCESS, LOG, MACHINES, SERVICE
from lockstep.sim.mutants.service import DIRECTED as _SERVICE_DIRECTED
from lockstep.sim.mutants.sessions import DIRECTED as _DIRECTED
from lockstep.sim.mutants.sessions import SESSIONS, TOPOLOGY
from lockstep.sim.mutants.sessions import TOPOLOGY_DIRECTED as _TOPOLOGY_DIRECTED
from lockstep.sim.mutants.tablets import DIRECTED as _TABLETS_DIRECTED
from lockstep.sim.mutants.tablets import TABLETS
from lockstep.sim.mutants.tracked import DIRECTED as _TRACKED_DIRECTED
from lockstep.sim.mutants.tracked import TRACKED
from lockstep.sim.mutants.tracked_changes import TRACKED_CHANGES
from lockstep.sim.mutants.tracked_repairs import DIRECTED as _TRACKED_REPAIRS_DIRECTED
from lockstep.sim.mutants.tracked_repairs import TRACKED_REPAIRS
from lockstep.sim.mutants.tracked_tablets import TRACKED_TABLETS
from lockstep.sim.mutants.tracked_views import DIRECTED as _TRACKED_VIEWS_DIRECTED
from lockstep.sim.mutants.tracked_views import TRACKED_VIEWS
from lockstep.sim.mutants.upgraded import DIRECTED as _UPGRADED_DIRECTED
from lockstep.sim.mutants.upgraded import UPGRADED
from lockstep.sim.mutants.witnesses import DIRECTED as _WITNESSES_DIRECTED
from lockstep.sim.mutants.witnesses import WITNESSES
from lockstep.sim.plant import Planted

REGISTRY: dict[str, Planted] = {
    planted.name: planted
    for planted in (
        *DATA,
        *COUNTERS,
        *DECISIONS,
        *TOPOLOGY,
        *SESSIONS,
        *SHARING,
        *STAMPS,
        *LOG,
        *SERVICE,
        *PURGING,
        *OWED,
        *VIEWS,
        *INDEXES,
        *COLUMNS,
        *DAMAGE,
        *REPAIRS,
        *DEGRADED,
        *LOST_STORES,
        *MACHINES,
        *OVERLOAD,
        *ACCESS,
        *TABLETS,
        *LOADS,
        *CAPTURED,
        *TRACKED,
        *COHORTS,
        *TRACKED_REPAIRS,
        *TRACKED_TABLETS,
        *TRACKED_VIEWS,
        *TRACKED_CHANGES,
        *WITNESSES,
        *RINGED,
        *UPGRADED,
        *DISASTERS,
    )
}
#: Those that a test brings about; no seed is looked for.
DIRECTED: dict[str, Planted] = {
    planted.name: planted
    for planted in (
        *_DIRECTED,
        *_DECISIONS_DIRECTED,
        *_PURGING_DIRECTED,
        *_OWED_DIRECTED,
        *_SERVICE_DIRECTED,
        *_STAMPS_DIRECTED,
        *_TOPOLOGY_DIRECTED,
        *_VIEWS_DIRECTED,
        *_TABLETS_DIRECTED,
        *_TRACKED_DIRECTED,
        *_TRACKED_REPAIRS_DIRECTED,
        *_TRACKED_VIEWS_DIRECTED,
        *_WITNESSES_DIRECTED,
        *_DISASTERS_DIRECTED,
        *_RINGED_DIRECTED,
        *_UPGRADED_DIRECTED,
        *_COHORTS_DIRECTED,
    )
}

__all__ = ["DIRECTED", "REGISTRY", "Planted"]
