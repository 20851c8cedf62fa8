"""The doors of a node: CQL for drivers, HTTP for operators, metrics.

Owns: connections and their limits, executing statements against the node, the system tables, events for
drivers, the admin API, the process entry. Invariant: nothing is stored here: system tables and answers are
views of the metadata value and of live counters; an outcome that is unknown is never answered as a failure.
Neighbours: imports every room of the node; the simulator and the local clusters start it.
"""
