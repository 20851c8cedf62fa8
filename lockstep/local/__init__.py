"""Local clusters of real node processes on loopback addresses, and the demo that uses them.

Owns: the directory of a cluster on this machine, the processes it started, and faults done to them from
outside. Invariants: only a process that this package started is ever signalled (its id and its start time
must match); whatever is known about a cluster is in its directory, so any process can take over.
Neighbours: writes configuration with `node.configuration`; talks to nodes only over their ports.
"""
