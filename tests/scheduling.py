"""Which process of a run of the whole suite gets which tests, and when.

Tests of real processes wait half of their time, and all others compute. A run has two processes more than
cores: the last one begins with what computes, the others with what waits, so that cores are busy while tests
wait. It gives way to them: what waits has limits of time, and what computes takes what is left of the cores.
What is left for the end are short modules that compute, and no process is left alone with a long one.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Rooms whose tests wait for other processes most of the time.
WAITING = ("spark", "docs", "acceptance", "testing", "local")
#: Rooms whose modules take long: they come first.
LONG = (*WAITING, "sim", "node", "server", "scans")
#: The modules of this room share a cluster and a Java runtime, so one process does them all.
SHARING = "tests/spark"
#: Modules of many long runs that share nothing: each test goes to whoever is free, or one process is left
#: alone with half of a module.
APART = (
    "tests/sim/test_runs.py",
    "tests/sim/test_planted.py",
    "tests/sim/test_matrix.py",
    "tests/sim/test_tablet_matrix.py",
    "tests/docs/test_shell_blocks.py",
)

#: The niceness of the process that computes: a third of the share of another that wants the same core, so it
#: takes what they leave, and is not starved when all compute.
NICENESS = 5


def gives_way(process: str, count: int) -> bool:
    """Whether this one of so many processes, gw0 and on, begins with what computes."""
    return process == f"gw{count - 1}"


def place_of(nodeid: str) -> int:
    """Where the tests of a room come in the order of all."""
    room = _room_of(nodeid)
    return LONG.index(room) if room in LONG else len(LONG)


def _room_of(nodeid: str) -> str:
    return nodeid.split("/")[1]


class Scheduling(LoadFileScheduling):
    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = not gives_way(node.gateway.id, self.numnodes)
        chosen = next((scope for scope in self.workqueue if (_room_of(scope) in WAITING) is waits), None)
        if chosen is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        module = str(super()._split_scope(nodeid))
        if module in APART:
            return nodeid
        return SHARING if module.startswith(f"{SHARING}/") else module
