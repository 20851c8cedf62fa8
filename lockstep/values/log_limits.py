"""Limits of what a node tells its operators: its log, its audit file and its metrics."""

from __future__ import annotations

from typing import Final

#: A file of the node's log, and how many older ones stay beside it: a day or more of a busy node.
LOG_FILE_BYTES: Final = 20 * 1024 * 1024
LOG_FILES: Final = 10
#: The same of the audit file, whose lines are few.
AUDIT_FILE_BYTES: Final = 10 * 1024 * 1024
AUDIT_FILES: Final = 10
#: Of a request's path, body or a role's name, what a line of the audit file has.
AUDIT_TEXT_CHARACTERS_MAX: Final = 4096
#: Between two lines of the log that tell of the same kind of event: often enough to see that it goes on.
REPEATED_LOG_MS: Final = 60_000
#: Kinds of such events that are told apart: some for each of a cluster's nodes.
REPEATED_LOG_KINDS_MAX: Final = 1000
#: Latency histograms of one node: nine operations at eleven levels, of user and of system tables. Of each 18
#: series go to whoever scrapes, if requests of its kind were made.
LATENCY_SERIES_MAX: Final = 200
#: Of what a replica says of its failure, what a client is told.
CAUSE_CHARACTERS_MAX: Final = 200
