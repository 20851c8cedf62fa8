"""Plain immutable values that every other room shares.

Owns: ids, epochs, tokens and ranges, consistency levels, rows and mutations as values, limits, the
binary codec and the error tree. Invariant: nothing here does I/O, reads a clock or draws randomness.
Neighbours: imports no other room; every room may import this one.
"""
