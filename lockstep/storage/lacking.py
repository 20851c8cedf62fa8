"""What a store has lost of its content: stretches of its keys, until they are filled again.

Invariant: what is lacking is a record of the store that lacks it, so neither is ever there without the other;
a stretch is closed at both ends, and whoever asks about tokens of a table is told of every stretch
that may have held one of their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.storage.rows import keys
from lockstep.storage.rows.paxos_table import with_ballots
from lockstep.storage.store import Family, Put
from lockstep.values.codec import decoder, encode
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range


class Lack(msgspec.Struct, frozen=True, array_like=True):
    """Keys from `first_key` to `last_key`. `lost`: the file that held them; empty: the whole store.

    `since_us`: wall clock. `sole`: no other replica has it, so nobody can fill it. `given_up`: what no other
    replica has was given up before it was lost.
    """

    first_key: bytes
    last_key: bytes
    lost: str = ""
    since_us: int = 0
    sole: bool = False
    given_up: bool = False

    @property
    def is_everything(self) -> bool:
        """The whole store is gone."""
        return (self.first_key, self.last_key) == (FIRST_KEY, LAST_KEY)


#: The first and last key of a store that was made anew.
FIRST_KEY, LAST_KEY = b"", b"\xff" * 8
#: The name of the node-local fact.
FACT = b"lacking"
_DECODER = decoder(tuple[Lack, ...])


def lacking_record(lacks: Sequence[Lack]) -> Put:
    """What a store keeps of all that it lacks."""
    return "put", Family.LOCAL.key(FACT), encode(tuple(lacks))


def lacks_in(record: bytes | None) -> tuple[Lack, ...]:
    return _DECODER.decode(record) if record is not None else ()


def tokens_between(first_key: bytes, last_key: bytes, table_id: int) -> Range | None:
    """Tokens of a table, or of a companion, some of whose keys may lie between the two; None without any."""
    lower, upper = keys.table_bounds(table_id)
    if last_key < lower or first_key >= upper:
        return None
    left, right = TOKEN_MIN, TOKEN_MAX
    if first_key > lower and len(first_key) >= keys.PLACE_BYTES:
        left = max(keys.token_of(first_key) - 1, TOKEN_MIN)
    if last_key < upper and len(last_key) >= keys.PLACE_BYTES:
        right = keys.token_of(last_key)
    return Range(left, right) if left < right else None


def lacked(lacks: Sequence[Lack], table_id: int, tokens: Range) -> Range | None:
    """The first tokens of a range, with the ballots of conditional writes to them, that may be lacking."""
    for lack in lacks:
        for stored_id in with_ballots((table_id,)):
            between = tokens_between(lack.first_key, lack.last_key, stored_id)
            found = between.intersection(tokens) if between is not None else None
            if found is not None:
                return found
    return None
