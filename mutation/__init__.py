"""Measures how many small changes of the product the unit tests and the simulator notice.

Owns: enumeration of mutants, the trial of one mutant, the choice of tests for it, the report. Invariants: the
sources on disk are never changed (a mutant lives in one forked process); the same room, sample and seed name
the same mutants. Neighbours: `make mutants` runs it; nothing of the product imports it.
"""
