"""The metadata log at one node: its files, its Raft group, catching up, submissions.

Owns: the state that entries are applied to and its listeners, segments and snapshots on disk, the Raft driver
with its journal and transport, submitting to either group, fetching what is missing from peers, announcing.
Invariants: an epoch is durable here before any message names it; nothing is voted or acknowledged before it
is synced. Neighbours: consensus decides and this executes; membership and work listen to applied entries.
"""
