"""Messages between nodes: connections, frames, the handshake, verbs with handlers, raw lanes.

Owns: one connection each way to each peer, requests with deadlines, requests that share a frame, errors on
the wire, who may talk (handshake, join secret, exclusion), the throttle. Invariants: every frame carries its
sender's epoch; a request ends once, with an answer, an error or its deadline; a verb's number is never given
a second meaning. Neighbours: imports runtime and values, and the error tree; every room above sends by it.
"""
