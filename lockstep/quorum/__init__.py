"""Whom a request asks and when enough have answered: plans, the one quorum round, its policies.

Owns: the plan of a request at one metadata value, the round (a pure machine of events and effects that knows
nothing of the question), what kinds of requests differ in, when one more replica is asked, and what failures
mean to a client. Invariant: a round ends once; what counts for it was given under a plan that still holds.
Neighbours: replica judges by the same plans; coordination and handoff carry out what rounds ask for.
"""
