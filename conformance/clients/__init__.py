"""Small programs, one for each driver that is not the Python one, which check what applications rely on.

Invariant: a program takes addresses of nodes, prints `version TEXT`, then `check NAME` for each thing that
held, and ends with 0 only when all of CHECKS did.
"""

from __future__ import annotations

from typing import Final

#: What every program checks, in this order.
CHECKS: Final = ("connect", "prepare", "page", "batch", "collections", "user type")
