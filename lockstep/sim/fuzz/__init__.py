"""Random statements against an obvious model of the language.

Owns: `lockstep sim fuzz`. Neighbours: `kinds` (types and values), `tables` (random schemas), `facts` (what
was written, and what of it is visible), `changes`, `altering`, `conditional`, `looks`, `selecting`, `views`
(statements, and what the model does), `saying` and `wording` (their text and bound values), `draws`,
`draw_alterings`, `draw_looks`, `draw_selectors` (random ones), `door` (simulated nodes), `asking` (what is
sent to them), `play` (runs and comparison), `shrink`, `planted`.
Invariant: `kinds` to `looks` know nothing of how the product reconciles, selects or plans; they share only
the bytes of scalar types and the hash of partition keys with it.
"""
