"""Statements executed: from a request to plans, rounds and an answer.

Owns: prepared and repeated statements, reads page by page, writes and batches with their limits, conditional
and counter statements, schema statements, user functions, tracing, warnings. Invariant: a plan is used only
while what it was made against still holds. Neighbours: cql plans, coordination executes.
"""
