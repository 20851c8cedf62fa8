"""The CQL door: listening, connections, and how much of what they bring is taken in.

Owns: connections with their outboxes, the hot path of prepared writes, admission and its refusals, responses
that are owed, draining, events for drivers. Invariant: a connection's answers leave in bounded memory.
Neighbours: hands requests to server.statements; server.auth says who a client is.
"""
