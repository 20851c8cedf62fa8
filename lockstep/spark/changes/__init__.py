"""Streams of a table's changes: which part of its log may be read next, reading it, applying it to another
table.

Owns: positions in a log, windows of it, and what a change looks like in Spark. Invariant: a window is read
when nothing is written into it any more and before anything of it expires, so each change that a quorum
acknowledged is in exactly one window; windows follow each other without gaps, and none holds streams of two
generations. Neighbours: `lockstep.schema.log_tables` says what a log holds, `lockstep.coordination.capture`
writes it.
"""
