"""The simulated runtime: virtual time, loops, processes, and the simulated family of the ports.

Invariant: one seed gives one run, whatever the process, hash seed or machine.
"""
