"""Statements compiled against a catalog: names and types resolved, restrictions analysed.

Invariant: what is compiled depends on the text and the schema alone, so that it can be kept and reused.
"""
