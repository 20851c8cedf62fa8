"""Rings without a log in simulated time: the product's own members, and a world that is made up.

Owns: the harness, what must hold at each step, and how fast a change reaches a thousand
members. Invariant: the seed alone says what happens. Neighbours: imports `lockstep.ring` and the simulator's
streams.
"""
