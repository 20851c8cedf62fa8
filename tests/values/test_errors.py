"""What clients are told when too few replicas answer: their tests match these texts."""

from __future__ import annotations

import pytest

from lockstep.values.errors import (
    ConditionalUnknown,
    ReadFailure,
    ReadTimeout,
    RequestError,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import TIMEOUT, TOO_MANY_TOMBSTONES, Consistency

QUORUM, SERIAL = Consistency.QUORUM, Consistency.SERIAL


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unavailable(QUORUM, 2, 1), "Cannot achieve consistency level QUORUM"),
        (Unavailable(Consistency.EACH_QUORUM, 2, 1, "dc2"),
         "Cannot achieve consistency level EACH_QUORUM in DC dc2"),
        (Unavailable(Consistency.LOCAL_SERIAL, 2, 1), "Cannot achieve consistency level LOCAL_SERIAL"),
        (ReadTimeout(QUORUM, 1, 2, True), "Operation timed out - received only 1 responses."),
        (WriteTimeout(QUORUM, 0, 2, "SIMPLE"), "Operation timed out - received only 0 responses."),
        (WriteTimeout(QUORUM, 0, 1, "BATCH_LOG"), "Operation timed out - received only 0 responses."),
        (WriteTimeout(SERIAL, 1, 2, "CAS", 3),
         "CAS operation timed out: received 1 of 2 required responses after 3 contention retries"),
        (ConditionalUnknown(SERIAL, 1, 2),
         "CAS operation result is unknown - proposal accepted by 1 but not a quorum."),
        (ReadFailure(QUORUM, 1, 2, 1, False, (("127.0.0.2", TOO_MANY_TOMBSTONES),)),
         "Operation failed - received 1 responses and 1 failures: READ_TOO_MANY_TOMBSTONES from /127.0.0.2"),
        (WriteFailure(QUORUM, 0, 2, 2, "SIMPLE", (("127.0.0.1", TIMEOUT), ("127.0.0.2", TIMEOUT))),
         "Operation failed - received 0 responses and 2 failures: TIMEOUT from /127.0.0.1, "
         "TIMEOUT from /127.0.0.2"),
        (WriteFailure(QUORUM, 0, 2, 1, "SIMPLE"), "Operation failed - received 0 responses and 1 failures"),
    ],
)  # fmt: skip
def test_failures_of_requests_are_worded_as_clients_know_them(error: RequestError, text: str) -> None:
    assert error.message == text
