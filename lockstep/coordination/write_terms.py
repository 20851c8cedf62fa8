"""Kinds of writes to replicas, as values: what a client asks for, what is owed, and what reads repair."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.internode import verbs


class Terms(msgspec.Struct, frozen=True):
    """`name` is that of notes and logs."""

    name: str = "write"
    verb: int = verbs.WRITE
    #: Whether hints are left for replicas that do not acknowledge.
    leaves_hints: bool = True
    #: Whether they are left whatever the settings and windows say.
    is_owed: bool = False
    #: When it was made that hints are left for late; 0: it is made now.
    made_us: int = 0
    #: Whether it ends when the table has lost columns that are written; else nobody sees their cells.
    needs_columns: bool = True
    #: Whether it keeps a plan that it was given, of one replica, until that does not hold any more.
    is_paired: bool = False


CLIENT: Final = Terms()
OWED: Final = Terms(is_owed=True, needs_columns=False)
PAIRED: Final = Terms(is_owed=True, needs_columns=False, is_paired=True)
#: What a read saw to be lacking is no write of a client: the next read sees it again.
REPAIR: Final = Terms("read-repair", verbs.READ_REPAIR, leaves_hints=False, needs_columns=False)
