"""Requests between nodes: transport, coordinator, replica side, repair and range streaming.

Owns: the internode protocol (frames, handshake, verbs), the plan of a read or write at one epoch, the
coordinator that keeps a request correct while placements change, the replica that fences stale plans,
and the movement of ranges under a session. Invariants: every frame carries its sender's epoch; a
request succeeds only when the acknowledging replicas satisfy the newest plan the coordinator knows;
a replica checks the epoch and applies in one synchronous step. Neighbours: uses metadata for placements
and storage for data; node wires it to the metadata log.
"""
