"""What a repair's driver does where ids tell of everything: a wait for ids, and a comparison of data with
them; and how far a repair is.

Owns: waits, disagreements of data and ids, progress. Invariant: everything is done under the repair's
session; nothing is streamed in a wait. Neighbours: node.work.repairs, which drives it, and tracking.waiting,
which decides when a wait is over.
"""
