"""Five walks through the house, counted in a simulated cluster of three nodes.

Invariant: the same tree gives the same figures in every process: the seed is fixed, everything lazy has run
once before a walk is counted. The first four count what the request causes (causes.py); a join counts all
that happens on all nodes until the newcomer serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from .calls import Calls, all_calls, all_handed
from .causes import Caused
from .contract import Contract

PACKAGE = "lockstep"
#: Looked through: values and ports are in every call, and say nothing about the way.
THROUGH = ("lockstep.values", "lockstep.runtime")
STAGE = ("lockstep.sim", "lockstep.testing")
#: The process in which the test kit's session runs.
CLIENT = "client"
SEED = 1
#: Virtual seconds after the answer in which what is left of a request ends.
TAIL_S = 1.0
#: Virtual seconds after which a new cluster's metadata stays as it is.
SETTLED_S = 5.0

_KEYSPACE = "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
_TABLE = "CREATE TABLE k.{} (a int, b int, c text, PRIMARY KEY (a, b))"
_INSERT = "INSERT INTO k.t (a, b, c) VALUES (?, ?, ?)"
_SELECT = "SELECT a, b, c FROM k.t WHERE a = ?"
#: As the Spark reader asks; one statement over the whole ring.
_RANGE = "SELECT a, b, c FROM k.t WHERE token(a) > ? AND token(a) <= ?"
_RING = (-(2**63), 2**63 - 1)
_ROWS = 8
#: The partition that both runs of a statement are about: plans are made once for each range of tokens.
_KEY = 1

Statement: TypeAlias = Callable[[int], tuple[str, tuple[Any, ...]]]
#: {walk: (statement and values of its n-th run, consistency)}.
_STATEMENTS: dict[str, tuple[Statement, str]] = {
    "INSERT at QUORUM": (lambda turn: (_INSERT, (_KEY, turn, "text")), "QUORUM"),
    "SELECT of a partition at QUORUM": (lambda turn: (_SELECT, (_KEY,)), "QUORUM"),
    "SELECT of a token range": (lambda turn: (_RANGE, _RING), "LOCAL_QUORUM"),
    "CREATE TABLE": (lambda turn: (_TABLE.format(f"t{turn}"), ()), "QUORUM"),
}


def walks(root: Path) -> dict[str, dict[str, Any]]:
    """{walk: figures, and its ways up}. `lockstep` must be the package of the checkout at `root`."""
    contract = Contract((root / ".importlinter").read_text())
    return _told({**_requests(contract), "a 4th node joins": _join(contract)})


def requests(root: Path) -> dict[str, dict[str, Any]]:
    """As `walks`, without the join."""
    return _told(_requests(Contract((root / ".importlinter").read_text())))


def _told(found: dict[str, Calls]) -> dict[str, dict[str, Any]]:
    return {
        name: {**calls.figures(), "ways up": calls.ways_up(), "through": sorted(calls.modules)}
        for name, calls in found.items()
    }


def _calls(contract: Contract, wiring: Calls | None = None) -> Calls:
    return Calls(contract, PACKAGE, through=THROUGH, stage=STAGE, wiring=wiring)


def _requests(contract: Contract) -> dict[str, Calls]:
    from lockstep.testing.simulated import SimulatedCluster

    wiring = _calls(contract)
    with contextlib.ExitStack() as stack:
        with all_handed(wiring):
            cluster = stack.enter_context(SimulatedCluster(3, seed=SEED))
        cluster.execute(_KEYSPACE)
        cluster.execute(_TABLE.format("t"))
        for key in range(_ROWS):
            cluster.execute(_INSERT, (key, key, "text"))
        # What a new cluster still commits to its metadata drops all plans.
        cluster.advance(SETTLED_S)
        return {
            name: _request(_calls(contract, wiring), cluster, statement, level)
            for name, (statement, level) in _STATEMENTS.items()
        }


def _request(calls: Calls, cluster: Any, statement: Statement, level: str) -> Calls:
    """The second run of a kind of statement is counted."""
    cluster.execute(*statement(1), consistency=level)
    cluster.advance(TAIL_S)
    with Caused(calls, STAGE[0], CLIENT).counting():
        cluster.execute(*statement(2), consistency=level)
        cluster.advance(TAIL_S)
    if not calls.modules:
        raise AssertionError("no call was seen: the simulator's loop is not the one that causes.py knows")
    return calls


def _join(contract: Contract) -> Calls:
    """From the start of the process until it serves and all have seen each other."""
    from lockstep.testing.simulated import SimulatedCluster

    wiring = _calls(contract)
    with all_handed(wiring), SimulatedCluster(4, seed=SEED):
        pass  # Everything lazy has run once.
    calls = _calls(contract, wiring)
    counting = all_calls(calls)
    cluster = SimulatedCluster(4, seed=SEED)
    start_node = cluster._sim.start_node

    def counted_from_the_fourth(name: str) -> None:
        if name == cluster.nodes[-1]:
            counting.__enter__()
        start_node(name)

    cluster._sim.start_node = counted_from_the_fourth  # type: ignore[method-assign]
    try:
        cluster.start()
    finally:
        counting.__exit__()
        cluster.close()
    return calls
