"""How large what one client sends may be where its size alone would keep a node from everything else.

Invariant: each number is named once, with its reason; nothing here depends on anything.
"""

from __future__ import annotations

from typing import Final

#: Tokens of one statement: read and planned in one go, which takes a core two seconds. A map literal of
#: 65,535 entries has 262,000, and clients send such.
STATEMENT_TOKENS_MAX: Final = 300_000
#: Characters of a statement that are as much work as a statement more: some 300 tokens.
TEXT_CHARACTERS_A_STATEMENT: Final = 1024
#: Characters of the statements that a batch brings as text; the values of a batch are bound far lower.
BATCH_TEXT_CHARACTERS_MAX: Final = 256 * 1024
#: Bytes of the whole number that a varint or decimal is: 4,000 digits, as many as a literal may have. Work on
#: long numbers costs the square of their digits: a mebibyte would keep a node busy for minutes.
NUMBER_BYTES_MAX: Final = 1664
#: Entries of a collection that a client sends as one value: all are looked at and sorted in one go, which
#: takes a core one or two seconds. Twice what the protocol's first versions could count; appending goes on.
COLLECTION_ENTRIES_MAX: Final = 131_072
#: Characters of all prepared statements that a node keeps: 10,000 of usual length have a quarter of that.
#: What is planned of a text takes some 30 times its bytes.
PREPARED_CHARACTERS_MAX: Final = 8 * 1024 * 1024
#: An envelope of a client that has not begun a session: STARTUP and credentials take some hundred bytes.
HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
#: How long a client may take to log in: a driver does it in its first messages, and who never does would hold
#: one of the connections that a node has for all.
LOGIN_MS_MAX: Final = 60_000
