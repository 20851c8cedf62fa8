"""A node of a cluster that runs on the ring without a log: its member of the ring, what it keeps of it, and
what judges changes of the metadata there.

Owns: the file of promises and votes, the mail between members, the queue of changes to be agreed on.
Invariant: an entry is applied before anybody hears that it was agreed on, and what was promised is durable
before it is said. Neighbours: the machines are those of `ring`; the metadata's entries go the way that they
always go.
"""
