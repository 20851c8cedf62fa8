"""Requests of clients, kept right while ownership moves: reads, writes, Paxos, counters, read repair.

Owns: whom to ask, when enough have answered, when to ask again or another one, and what a client is told.
Invariants: a request succeeds only when the replicas that acknowledged it satisfy the newest plan that the
coordinator knows; an outcome that is unknown is never told as a failure.
Neighbours: asks replicas over internode; what nobody acknowledged goes to handoff.
"""
