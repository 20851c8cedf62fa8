"""The admin API: HTTP, the registry of operations, and what operators may ask for.

Owns: the port and its token, routing and the OpenAPI document from one table, and operations on topology,
repairs, backups, the metadata service, exclusion, draining and scrubbing. Invariant: errors are of the one
tree, with code, fault and hint. Neighbours: server.reports makes the documents that it serves.
"""
