"""Metrics of a node: their declarations, their samples, and the text of /metrics.

Invariant: a sample without a declaration in `metric_table` is refused.
"""
