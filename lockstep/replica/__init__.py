"""What a replica does when it is asked: judge the plan, apply or read, answer when it is durable.

Owns: the plan of a request at one epoch (also asked by coordinators), the fence against stale plans, reads
and digests, ballots, counter shards, the participant's side of repairs, guards of sessions, and the bodies of
all these requests. Invariant: a replica checks the epoch and applies in one synchronous step.
Neighbours: uses metadata for placements and storage for data; coordination asks it, over internode or here.
"""
