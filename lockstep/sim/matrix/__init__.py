"""The crash matrix: every operation, at every step, with every victim and every fault.

Owns: which cells there are (`cells`: pure), how one is run (`run`, `operator`), and what a
batch of them says (`report`). Invariant: a cell is run, or says why it cannot be; one whose fault never
struck has failed.
"""
