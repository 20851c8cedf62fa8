"""Random statements against an obvious model of the language.

Owns: `lockstep sim fuzz`. Neighbours: `kinds` (types and values, and how these stand in statements), `tables`
(random schemas), `facts` (what was written, and what of it is visible), `changes`, `altering` and `queries`
(statements: their text, and what the model does), `generators` and `query_generators` (random ones), `door`
(simulated nodes and their client), `driver` (runs and comparison), `report` (batches, shorter scripts),
`garbage` and `effort` (what no client means, and what it may cost).
Invariant: `kinds` to `queries` know nothing of how the product reconciles, selects or plans; they share only
the bytes of scalar types and the hash of partition keys with it.
"""
