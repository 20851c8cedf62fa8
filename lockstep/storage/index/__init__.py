"""Secondary indexes of one store: entries, building, reading.

Invariant: an entry is written in the batch of its row, and confirmed by the row when it is read.
"""
