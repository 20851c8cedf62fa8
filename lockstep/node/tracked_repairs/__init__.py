"""Repairs of tables whose ids tell of everything: a wait for ids, and a comparison of data with them.

Owns: what a repair's driver does with participants that know by ids what they hold. Invariant: everything is
done under the repair's session; nothing is streamed in a wait. Neighbours: node.work.repairs, which drives
it, and tracking.waiting, which decides when a wait is over.
"""
