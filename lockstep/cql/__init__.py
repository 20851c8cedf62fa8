"""CQL text to plans, and read results to rows.

Owns: the grammar and its trees, resolution of names and types against a catalog, plans of changes
(mutations) and of reads (read commands), functions, schema statements, DESCRIBE; `wire` holds the native
protocol. Invariant: everything here is a function of its arguments: time, ids and randomness come in a
Context, so a plan made twice from the same inputs is the same bytes. Neighbours: imports values and
schema only; replication executes the plans, server feeds and answers clients.
"""
