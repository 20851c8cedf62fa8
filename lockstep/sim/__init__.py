"""The simulated runtime and what runs on it.

Owns: virtual time and the scheduler (`world`, `loop`), processes and their faults (`process`), the
simulated family of the ports (`streams`, `disk`, `network`, `probes`), the trace and the guard.
Invariant: one seed gives one run, whatever the process, hash seed or machine.
Neighbours: runs the rooms below unchanged; only cli, spark and testing import it.
"""
