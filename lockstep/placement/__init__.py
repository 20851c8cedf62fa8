"""Who replicates which tokens: strategies, replica groups, plans of change and quorum proofs.

Owns: the replica group of every range of every replication setting, how it is computed from token
owners, how one placement becomes another, and the arithmetic that proves quorums meet. Invariant:
the ranges of a ring are sorted, adjacent and cover the whole token space. Neighbours: imports values
and schema only; metadata holds placements, topology changes them step by step.
"""
