"""The scans room: many stored rows as columns.

Owns: the one path from the stored fragments of a range to Arrow batches, for whoever reads whole ranges.
Invariant: rows of one shape are decoded together and give what merging them one by one gives. Neighbours:
takes fragments from `storage`, whose rules of merging and visibility it uses; knows types from `schema`.
"""
