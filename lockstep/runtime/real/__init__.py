"""The production family of the ports: system clock and entropy, files, sockets, threads for fsync.

Owns: everything of the operating system that a node touches. Invariant: it promises exactly what
`runtime.ports` says. Neighbours: imports ports and values; only composition roots (cli, local, spark,
tests) import it, and the simulator reuses its task owner.
"""

from lockstep.runtime.real.certificates import (
    CHECK_HANDLER,
    CHECK_PACKAGES,
    Certificate,
    own_certificate,
    refuse_ended,
)
from lockstep.runtime.real.directory import RotatingFile, claim, keep_private, read_secret
from lockstep.runtime.real.doors import DoorProcesses
from lockstep.runtime.real.family import RealClock, facts_of, real_runtime, route_diagnostics, run
from lockstep.runtime.real.network import require_free, require_usable
from lockstep.runtime.real.workers import ConfinedWorkers, HelperProcesses

__all__ = [
    "CHECK_HANDLER",
    "CHECK_PACKAGES",
    "Certificate",
    "ConfinedWorkers",
    "DoorProcesses",
    "HelperProcesses",
    "RealClock",
    "RotatingFile",
    "claim",
    "facts_of",
    "keep_private",
    "own_certificate",
    "read_secret",
    "real_runtime",
    "refuse_ended",
    "require_free",
    "require_usable",
    "route_diagnostics",
    "run",
]
