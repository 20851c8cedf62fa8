"""Ids of mutations, and which of them somebody holds, as values.

Owns sets of offsets (`intervals`) and what somebody holds of the logs of a range (`held`). Invariant:
pure; equal sets have equal forms. Below everything that replicates, it knows nothing of what ids stand for.
"""
