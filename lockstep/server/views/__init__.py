"""Virtual tables: rows of system keyspaces that are made when they are read.

Owns: `system`, `system_schema`, `system_views`, `system_auth` and the other system keyspaces, with the names
that drivers and tools expect. Invariant: nothing is stored here; rows are views of the metadata value and of
live state.
"""
