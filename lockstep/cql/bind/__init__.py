"""Compiled statements bound to values: mutations, read commands, and result rows.

Invariant: time, ids and randomness come in a Context, so the same inputs give the same bytes.
"""
