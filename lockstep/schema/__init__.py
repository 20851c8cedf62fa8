"""Keyspaces, tables, columns and types as values, and the checks that a schema change must pass.

Owns: the schema model, the CQL type system with its serialisation, the byte-ordered clustering
encoding, and the schema transformations. Invariant: no dangling reference in any schema value, and
table and column ids come from the log and are never reused. Neighbours: imports values only; metadata
holds the schema, cql plans against it, storage sees only ids and bytes.
"""
