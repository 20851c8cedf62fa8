"""The cluster's metadata as one immutable value and the log entries that change it.

Owns: ClusterMetadata and its parts, log entries and their hash chain, the registry of transformations
by kind, applying an entry, the leader's tip, digests and diffs. Invariant: a value of epoch N + 1 comes
only from applying entry N + 1 to the value of epoch N, and the same entries give the same bytes on
every node. Neighbours: imports values, schema and placement; topology adds its own transformations;
consensus is unknown here.
"""
