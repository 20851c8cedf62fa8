"""Tracked replicas of one range in simulated time: the room's own machines, and a world that is made up.

Owns: the disks of the replicas, the harness, what must hold at each step. Invariant: the seed alone says what
happens. Neighbours: imports `lockstep.tracking` and the simulator's streams.
"""
