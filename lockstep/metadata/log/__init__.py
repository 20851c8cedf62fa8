"""Entries of the log and their hash chain, applying them, the leader's tip, snapshots and dumps.

Invariant: the value of epoch N + 1 comes only from applying entry N + 1 to the value of epoch N.
"""
