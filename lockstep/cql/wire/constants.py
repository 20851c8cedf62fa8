"""Numbers of the native protocol, under their names.

Invariant: versions 3 to 6 share the envelope header and the opcodes; what differs by version is asked
of the sets at the end, never by comparing numbers elsewhere.
"""

from __future__ import annotations

import enum
from typing import Final

VERSION_3: Final = 3
VERSION_4: Final = 4
VERSION_5: Final = 5
#: Not fixed yet, so far equal to version 5; clients ask for it with FLAG_BETA.
VERSION_6_BETA: Final = 6
VERSIONS: Final = (VERSION_3, VERSION_4, VERSION_5, VERSION_6_BETA)
#: The highest that is fixed; refusals are sent in it.
VERSION_MAX: Final = VERSION_5
#: As listed in the SUPPORTED answer's PROTOCOL_VERSIONS.
VERSION_NAMES: Final = ("3/v3", "4/v4", "5/v5", "6/v6-beta")

HEADER_BYTES: Final = 9
#: Stream of an envelope that the server sends on its own (events).
EVENT_STREAM: Final = -1


class Opcode(enum.IntEnum):
    ERROR = 0x00
    STARTUP = 0x01
    READY = 0x02
    AUTHENTICATE = 0x03
    OPTIONS = 0x05
    SUPPORTED = 0x06
    QUERY = 0x07
    RESULT = 0x08
    PREPARE = 0x09
    EXECUTE = 0x0A
    REGISTER = 0x0B
    EVENT = 0x0C
    BATCH = 0x0D
    AUTH_CHALLENGE = 0x0E
    AUTH_RESPONSE = 0x0F
    AUTH_SUCCESS = 0x10
    #: Of bulk loads, asked and answered: no opcode of the protocol, whose own numbers grow from below.
    LOAD = 0x70
    LOADED = 0x71


#: Envelope flags.
FLAG_COMPRESSED: Final = 0x01
FLAG_TRACING: Final = 0x02
FLAG_PAYLOAD: Final = 0x04
FLAG_WARNINGS: Final = 0x08
FLAG_BETA: Final = 0x10

#: Flags of query parameters.
QUERY_VALUES: Final = 0x01
QUERY_SKIP_METADATA: Final = 0x02
QUERY_PAGE_SIZE: Final = 0x04
QUERY_PAGING_STATE: Final = 0x08
QUERY_SERIAL_CONSISTENCY: Final = 0x10
QUERY_TIMESTAMP: Final = 0x20
QUERY_NAMES: Final = 0x40
QUERY_KEYSPACE: Final = 0x80
QUERY_NOW: Final = 0x100

PREPARE_KEYSPACE: Final = 0x01

#: RESULT kinds.
RESULT_VOID: Final = 1
RESULT_ROWS: Final = 2
RESULT_SET_KEYSPACE: Final = 3
RESULT_PREPARED: Final = 4
RESULT_SCHEMA_CHANGE: Final = 5

#: Flags of result metadata.
METADATA_GLOBAL_TABLE: Final = 0x01
METADATA_MORE_PAGES: Final = 0x02
METADATA_NONE: Final = 0x04
METADATA_CHANGED: Final = 0x08

BATCH_LOGGED: Final = 0
BATCH_UNLOGGED: Final = 1
BATCH_COUNTER: Final = 2
BATCH_NAMES: Final = {BATCH_LOGGED: "LOGGED", BATCH_UNLOGGED: "UNLOGGED", BATCH_COUNTER: "COUNTER"}

EVENT_TOPOLOGY: Final = "TOPOLOGY_CHANGE"
EVENT_STATUS: Final = "STATUS_CHANGE"
EVENT_SCHEMA: Final = "SCHEMA_CHANGE"
EVENT_TYPES: Final = (EVENT_TOPOLOGY, EVENT_STATUS, EVENT_SCHEMA)

#: The type of conditional writes in timeouts.
WRITE_TYPE_CAS: Final = "CAS"

ERROR_SERVER: Final = 0x0000
ERROR_PROTOCOL: Final = 0x000A
ERROR_UNAVAILABLE: Final = 0x1000
ERROR_WRITE_TIMEOUT: Final = 0x1100
ERROR_READ_TIMEOUT: Final = 0x1200
ERROR_READ_FAILURE: Final = 0x1300
ERROR_FUNCTION_FAILURE: Final = 0x1400
ERROR_WRITE_FAILURE: Final = 0x1500
ERROR_INVALID: Final = 0x2200
ERROR_ALREADY_EXISTS: Final = 0x2400
ERROR_UNPREPARED: Final = 0x2500

#: Versions of the protocol in which the following holds.
#: Envelopes travel in checksummed segments once the handshake is answered.
USES_SEGMENTS: Final = frozenset({VERSION_5, VERSION_6_BETA})
#: Timeouts of conditional writes count contentions, and unknown outcomes have their own code.
HAS_CONDITIONAL_ERRORS: Final = frozenset({VERSION_5, VERSION_6_BETA})
#: Answers may carry warnings and a payload.
HAS_WARNINGS: Final = frozenset({VERSION_4, VERSION_5, VERSION_6_BETA})
#: A replica's failure is told apart from its silence.
HAS_FAILURES: Final = frozenset({VERSION_4, VERSION_5, VERSION_6_BETA})
#: Prepared statements name the bind variables that make the partition key.
HAS_KEY_INDEXES: Final = frozenset({VERSION_4, VERSION_5, VERSION_6_BETA})
#: Date, time, smallint and tinyint have option ids of their own.
HAS_SMALL_TYPES: Final = frozenset({VERSION_4, VERSION_5, VERSION_6_BETA})
#: Query flags are 32 bits, PREPARE has flags, and keyspace and now_in_seconds exist.
HAS_WIDE_FLAGS: Final = frozenset({VERSION_5, VERSION_6_BETA})
#: Prepared statements carry a result metadata id.
HAS_METADATA_ID: Final = frozenset({VERSION_5, VERSION_6_BETA})
#: Failures list (address, code) pairs instead of a count.
HAS_REASON_MAP: Final = frozenset({VERSION_5, VERSION_6_BETA})
#: Duration has an option id of its own.
HAS_DURATION: Final = frozenset({VERSION_5, VERSION_6_BETA})
