"""Rows as fragments under keys, and one state out of any number of fragments.

Invariants: two writes never share a key; reconciliation is idempotent, commutative and associative.
"""
