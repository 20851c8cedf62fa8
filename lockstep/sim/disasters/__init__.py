"""A cluster that loses the majority of a group for good, is repaired, and meets what it had lost again.

Owns: the nodes of such a run (`nodes`), what must hold at every step (`watch`), and what is done (`run`).
"""
