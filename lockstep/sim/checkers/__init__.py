"""Checkers: what must hold at every epoch, over every history, on every disk.

Owns: monitors of the metadata log (`log`), of ownership (`ownership`), the history checker of registers
(`registers`), and the inspection of replicas' disks (`replicas`). Invariant: a checker judges only what
the design promises, and each has a planted history in the tests that it rejects.
"""
