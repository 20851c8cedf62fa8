"""Operation kinds, one module each, and nothing of any kind elsewhere.

Owns: of each kind the body (what is asked for, as it is stored), its stages, how it begins and ends, whom
it concerns, what refuses it, who fills whom, its place in the queue, and its rows of the crash matrix.
`registry` lists them; `ring` has what those share that are about a node's place in the ring. Invariant: a
kind imports no other kind, and whoever drives operations imports none (`topology.kind`).
"""
