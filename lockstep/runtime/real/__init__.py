"""The production family of the ports: system clock and entropy, files, sockets, threads for fsync.

Owns: everything of the operating system that a node touches. Invariant: it promises exactly what
`runtime.ports` says. Neighbours: imports ports and values; only composition roots (cli, local, spark,
tests) import it, and the simulator reuses its task owner.
"""

from lockstep.runtime.real.family import real_runtime, run

__all__ = ["real_runtime", "run"]
