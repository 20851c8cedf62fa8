"""The scans room: many stored rows as columns, and what serves them to jobs.

Owns: the one path from the stored fragments of a range to Arrow batches, for whoever reads whole ranges; the
messages of read sessions, and the processes that answer their readers.
Invariant: rows of one shape are decoded together and give what merging them one by one gives. Neighbours:
takes fragments from `storage`, whose rules of merging and visibility it uses; knows types from `schema`.
"""
