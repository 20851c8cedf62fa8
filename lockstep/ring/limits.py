"""The bounds of the ring, each named once with its reason."""

from __future__ import annotations

from typing import Final

#: Entries of a ring, members and tombstones: a thousand members, and nine times as many that left.
RING_ENTRIES_MAX: Final = 10_000
#: Tokens of all its members, owned and to be owned: with the entries 6 MiB, so a ring goes in one message.
RING_TOKENS_MAX: Final = 500_000
#: Characters of a member's, a data centre's or a rack's name.
RING_NAME_CHARACTERS_MAX: Final = 64
#: Members that one change may concern: a data centre that leaves, and its message is small.
RING_CHANGES_MAX: Final = 256
