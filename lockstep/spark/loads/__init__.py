"""Bulk loads from Arrow data: rows become sorted files, which nodes take in at once.

Owns: encoding of rows by whole columns, the files, and the conversation with the cluster. Invariant: what is
stored is what INSERT USING TIMESTAMP and TTL of the same rows stores.
"""
