"""Raft as one pure step machine: events in, effects out.

Owns: elections, log replication, membership, leadership confirmation for reads. Invariant: a step reads no
clock, file, socket or randomness; the same events and the same draws give the same effects, and nothing that
others rely on leaves before the writes it rests on are durable. Neighbours: imports values only; the node's
driver feeds events and executes effects (see effects.Ready for the contract).
"""
