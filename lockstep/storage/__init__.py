"""Storage: what one shard of a node keeps, and how it is read back.

Owns: the `Store` port (an ordered byte key-value database with atomic batches) and its two
implementations, the encoding of fragments, reconciliation, and the engine that serves reads and writes.

Invariants. Two writes never share a key and a redelivered write lands on its own key, so nothing is ever
lost by overwriting. Reconciliation is idempotent, commutative and associative. An acknowledgement and an
answer speak only of durable data.

Neighbours: `replication` plans requests and calls the engine; `node` opens the store and the engine.
"""
