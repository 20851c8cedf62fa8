"""Processors: what makes an entry of the metadata log out of a submission.

The kinds: `raft` on members of the metadata group, `local` on a node that is its own service, `remote` on
nodes that only forward; `processors.kinds` chooses, and finds those that other distributions bring.
"""
