"""Opinions about other nodes, from what was heard of them.

Owns: the failure detector. Invariant: pure; nothing decided here changes metadata: liveness only orders
replicas, refuses hopeless requests early and is shown to people. Neighbours: imports values only; node
feeds it with messages, replication asks it.
"""
