"""Who is in the ring, agreed among its members without a log.

Owns: the ring as a value that merges, proposals of changes to it, the machines by which members agree on one
change a ring (all of them, or a majority by ballots), and the push-pull gossip that spreads what was agreed.
Invariant: pure; on one ring at most one change is agreed on, so the rings that members hold lie on one chain.
Between members that all must accept, an operator's abort can break that, and `unanimous` says so. Neighbours:
imports values only; the simulator drives it, and the nodes of a cluster that runs on
the ring.
"""
