"""The Spark room: reading and writing Lockstep tables from PySpark, and what a session needs to start.

Owns: finding a Java runtime, local sessions, the data source `lockstep` (batch read and append), and the
report that closes a demonstration. Invariant: what travels between Spark's processes names tables and
token ranges, never addresses, so that a plan made before a topology change is still right after it.
Neighbours: speaks only the native protocol to a cluster, with the codec of `cql.wire`.
"""
