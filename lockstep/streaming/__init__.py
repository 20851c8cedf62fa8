"""Ranges from node to node as sorted files, under the session of an operation.

Owns: the source, which builds files from a snapshot and serves them part by part; the target, which fetches
them, verifies each whole and makes it visible at once; progress, and what a target keeps across restarts.
Invariant: nothing of a range is visible before all of a file is verified and durable.
Neighbours: files come from storage, parts travel by internode's raw lanes, node.work asks for ranges.
"""
