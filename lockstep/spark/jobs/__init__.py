"""Jobs over whole tables, each a function that takes a Spark session: export, load, cdc, verify, audit,
history, sweep.

Owns: what each job does, what it says it would do (its plan), and its report. Invariant: a job tells how far
it is through the `Progress` that it is handed, ends with a report that is a value, and fails with an error of
the one tree whose sentence a user can act on; what a job found wrong is in its report and is no error. Tables
are reached by the format `lockstep` alone. Neighbours: the command `lockstep pipeline` asks for them, and so
may any program with a session.
"""
