"""The blocking client against a server of a few lines: versions, errors, late answers; and its retries."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from lockstep.cql.wire import responses
from lockstep.cql.wire.client import ErrorResponse, decode_response
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import Envelope, EnvelopeReader, encode_envelope
from lockstep.spark.cql_client import CqlConnection, Endpoint, error_of
from lockstep.spark.scan import Retry
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    ProtocolViolation,
    ReadFailure,
    ReadTimeout,
    ServerFault,
    SyntaxError_,
    Unavailable,
    Unprepared,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.limits import SPARK_ATTEMPTS_MAX

Answer = Callable[[Envelope], bytes | None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Endpoint]]:
    """Start a server whose every answer comes from a function; None closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(answer: Answer) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                reader = EnvelopeReader()
                while data := connection.recv(65536):
                    answers = [answer(envelope) for envelope in reader.feed(data)]
                    if None in answers:
                        break
                    connection.sendall(b"".join(one for one in answers if one))

    threads: list[threading.Thread] = []

    def start(answer: Answer) -> Endpoint:
        threads.append(threading.Thread(target=talk, args=(answer,), daemon=True))
        threads[0].start()
        return Endpoint("127.0.0.1", listener.getsockname()[1])

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)


def ready(envelope: Envelope) -> bytes:
    return encode_envelope(4, Opcode.READY, envelope.stream, responses.READY)


def only_version_4(envelope: Envelope) -> bytes | None:
    if envelope.version != 4:
        body = responses.error(4, ProtocolViolation("Invalid or unsupported protocol version"))
        return encode_envelope(4, Opcode.ERROR, envelope.stream, body)
    return ready(envelope)


def test_an_older_server_is_spoken_to_in_its_version(serve: Callable[[Answer], Endpoint]) -> None:
    connection = CqlConnection.open(serve(only_version_4), 5.0)
    assert connection.version == 4
    connection.close()


def test_a_late_answer_is_a_timeout_and_ends_the_connection(serve: Callable[[Answer], Endpoint]) -> None:
    def silent(envelope: Envelope) -> bytes | None:
        return only_version_4(envelope) if envelope.opcode == Opcode.STARTUP else b""

    connection = CqlConnection.open(serve(silent), 0.2)
    with pytest.raises(PeerTimeout):
        connection.query("SELECT 1")
    assert connection.closed
    with pytest.raises(PeerUnreachable):
        connection.send(Opcode.OPTIONS, b"")


def test_a_closed_connection_is_an_error_of_the_peer(serve: Callable[[Answer], Endpoint]) -> None:
    def rude(envelope: Envelope) -> bytes | None:
        return only_version_4(envelope) if envelope.opcode == Opcode.STARTUP else None

    connection = CqlConnection.open(serve(rude), 5.0)
    with pytest.raises(PeerUnreachable):
        connection.query("SELECT 1")
    assert connection.closed


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "error",
    [
        SyntaxError_("line 1"),
        InvalidRequest("no"),
        Overloaded("busy"),
        ServerFault("broken"),
        ProtocolViolation("what"),
        Unprepared(b"\x01\x02"),
        Unavailable(4, 2, 1),
        ReadTimeout(4, 1, 2, True),
        WriteTimeout(4, 1, 2, "SIMPLE"),
        ReadFailure(4, 1, 2, 1, False, (("127.0.0.1", 1),)),
        WriteFailure(4, 1, 2, 1, "SIMPLE", (("127.0.0.1", 1),)),
    ],
    ids=lambda error: type(error).__name__ if isinstance(error, LockstepError) else None,
)
def test_errors_are_what_the_server_raised(version: int, error: LockstepError) -> None:
    body = decode_response(version, Opcode.ERROR, 0, responses.error(version, error)).body
    assert isinstance(body, ErrorResponse)
    again = error_of(body)
    assert type(again) is type(error)
    facts = {name: value for name, value in vars(error).items() if name not in ("message", "hint", "reasons")}
    assert {name: getattr(again, name) for name in facts} == facts


def test_a_retry_pauses_longer_each_time_and_gives_up() -> None:
    pauses: list[float] = []
    retry = Retry(pauses.append)
    error = PeerUnreachable("away")
    for _ in range(SPARK_ATTEMPTS_MAX - 1):
        retry.failed(error)
    with pytest.raises(PeerUnreachable):
        retry.failed(error)
    assert len(pauses) == SPARK_ATTEMPTS_MAX - 2
    assert pauses[0] <= 0.05 and 1.0 <= pauses[-1] <= 2.0
    retry.succeeded()
    retry.failed(error)


def test_an_error_that_no_retry_helps_is_raised_at_once() -> None:
    with pytest.raises(InvalidRequest):
        Retry(lambda seconds: None).failed(InvalidRequest("no"))
