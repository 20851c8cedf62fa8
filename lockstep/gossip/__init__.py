"""What nodes tell each other beside consensus, and opinions about other nodes from what was heard of them.

Owns: the failure detector, the announcement tree, the rotation of pings, and whom to ask for missing log
entries. Invariant: pure; nothing decided here changes metadata: liveness only orders replicas, refuses
hopeless requests early and is shown to people, and a lost announcement only costs time. Neighbours: imports
values only; node feeds it with messages, replication asks it.
"""
