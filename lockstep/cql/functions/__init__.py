"""Functions of CQL: native ones, casts, arithmetic, aggregates, and those of users.

Invariant: a function is its types and what it does to serialised values; two registries, native and of a
keyspace, answer by name and argument types.
"""
