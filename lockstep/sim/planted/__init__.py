"""Planted bugs: product functions replaced by faulty ones, to prove that the checkers bite.

Invariant: nothing in the product knows of them; each plant replaces named attributes for the time of one
run, and undoes it. A plant that no seed finds says that either a checker or a fault is missing.
"""

from lockstep.sim.planted.access import ACCESS
from lockstep.sim.planted.columns import COLUMNS
from lockstep.sim.planted.counters import COUNTERS
from lockstep.sim.planted.damage import DAMAGE
from lockstep.sim.planted.data import DATA
from lockstep.sim.planted.decisions import DECISIONS
from lockstep.sim.planted.decisions import DIRECTED as _DECISIONS_DIRECTED
from lockstep.sim.planted.degraded import DEGRADED
from lockstep.sim.planted.indexes import INDEXES
from lockstep.sim.planted.log import LOG
from lockstep.sim.planted.lost_stores import LOST_STORES
from lockstep.sim.planted.machines import MACHINES
from lockstep.sim.planted.overload import OVERLOAD
from lockstep.sim.planted.owed import DIRECTED as _OWED_DIRECTED
from lockstep.sim.planted.owed import OWED
from lockstep.sim.planted.plant import Planted
from lockstep.sim.planted.purging import DIRECTED as _PURGING_DIRECTED
from lockstep.sim.planted.purging import PURGING
from lockstep.sim.planted.repairs import REPAIRS
from lockstep.sim.planted.service import SERVICE
from lockstep.sim.planted.sessions import DIRECTED as _DIRECTED
from lockstep.sim.planted.sessions import SESSIONS
from lockstep.sim.planted.sharing import SHARING
from lockstep.sim.planted.stamps import DIRECTED as _STAMPS_DIRECTED
from lockstep.sim.planted.stamps import STAMPS
from lockstep.sim.planted.topology import DIRECTED as _TOPOLOGY_DIRECTED
from lockstep.sim.planted.topology import TOPOLOGY
from lockstep.sim.planted.views import DIRECTED as _VIEWS_DIRECTED
from lockstep.sim.planted.views import VIEWS

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
        *_STAMPS_DIRECTED,
        *_TOPOLOGY_DIRECTED,
        *_VIEWS_DIRECTED,
    )
}

__all__ = ["DIRECTED", "REGISTRY", "Planted"]
