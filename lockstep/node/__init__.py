"""One running node: the composition root that executes the pure rooms' effects.

Owns: configuration, identity, the durable journals, the Raft driver, submission and catch-up, barriers
and topology work, the life cycle from empty directory to serving and back. Invariants: an epoch is
durable here before it appears in any message; nothing is voted or acknowledged before it is synced; all
state lives in objects, so a node can be stopped and started again inside one process.
Neighbours: everything left of it; `server` opens the doors on top of it.
"""
