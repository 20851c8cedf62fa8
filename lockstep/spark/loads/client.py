"""A job's conversation with the cluster about its load.

Invariants. Every request may be sent again, to another host: none is done twice. A commit whose answer was
lost is asked for again until it is known what became of it; what is then told to be committed is whole.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.replica.load_messages import LoadFile
from lockstep.replica.load_requests import (
    ANSWER,
    COMMIT_ANSWER,
    PUT_ANSWER,
    READ_ANSWER,
    AbortRequest,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    LoadAnswer,
    LoadRequest,
    LookRequest,
    PutRequest,
    ReadRequest,
)
from lockstep.spark.cql_client import CqlConnection, error_of, may_retry, pool_of
from lockstep.spark.loads.files import SortedFiles, cut, pairs_of
from lockstep.spark.options import Options
from lockstep.spark.scan import Hosts
from lockstep.storage.rows import keys
from lockstep.values.codec import encode
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    ServerFault,
    Unavailable,
)
from lockstep.values.node_limits import LOAD_LEASE_MS, LOAD_PART_BYTES_MAX
from lockstep.values.tokens import Range

#: Times that one request is sent, to one host after the other.
_ATTEMPTS_MAX: Final = 8
_PAUSE_S: Final = 0.25
#: Times that files are cut anew because their ranges went to different replicas.
_CUTS_MAX: Final = 4
#: A commit waits for entries and for replicas to take files in.
_COMMIT_TIMEOUT_S: Final = 180.0
COMMITTED: Final = "committed"
RUNNING: Final = "running"


class LoadClient:
    """Of one load, in one process. Close it: it holds a connection."""

    def __init__(self, options: Options, job: str, turn: int = 0) -> None:
        """`turn` spreads the tasks of a job over the hosts."""
        self._options = options
        self.job = job
        self._turn = turn
        self._connection: CqlConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- requests -----------------------------------------------------------------------------------

    def _ask(self, request: LoadRequest) -> bytes:
        """The answer of the first host that gives one; its refusals are raised."""
        body, failure = encode(request), None
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return self._asked(body)
            except LockstepError as error:
                if not may_retry(error):
                    raise
                failure = error
                self.close()
                self._turn += 1
                time.sleep(_PAUSE_S * attempt)
        assert failure is not None, "an attempt was made"
        raise failure

    def _asked(self, body: bytes) -> bytes:
        if self._connection is None:
            endpoints = self._options.endpoints
            endpoint = endpoints[self._turn % len(endpoints)]
            self._connection = CqlConnection.open(endpoint, _COMMIT_TIMEOUT_S)
        answer = self._connection.request(Opcode.LOAD, body)
        if isinstance(answer, wire.ErrorResponse):
            raise _told(answer)
        if not isinstance(answer, wire.Loaded):
            raise ServerFault(f"a load was answered with {type(answer).__name__}")
        return answer.body

    def begin(
        self, overwrite: bool = False, timestamp_us: int = 0, lease_ms: int = LOAD_LEASE_MS
    ) -> LoadAnswer:
        """Begin the load, or renew it."""
        wanted = BeginRequest(
            self.job, self._options.keyspace, self._options.table, lease_ms, overwrite, timestamp_us
        )
        return ANSWER.decode(self._ask(wanted))

    def would_begin(self, timestamp_us: int = 0) -> LoadAnswer:
        """The write time that the load would have; InvalidRequest or Unauthorized when it could not begin."""
        wanted = BeginRequest(
            self.job, self._options.keyspace, self._options.table, self._options.lease_ms,
            timestamp_us=timestamp_us, dry_run=True,
        )  # fmt: skip
        return ANSWER.decode(self._ask(wanted))

    def look(self) -> LoadAnswer:
        return ANSWER.decode(self._ask(LookRequest(self.job)))

    def abort(self, reason: str) -> LoadAnswer:
        """Give the load up, unless it was committed: the answer says which."""
        return ANSWER.decode(self._ask(AbortRequest(self.job, reason)))

    def put(self, file: LoadFile, path: str) -> tuple[int, ...]:
        """Upload a file; the nodes that hold it then. Interrupted, it is sent from its begin."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return self._put(file, path)
            except (PeerError, ServerFault, InvalidRequest) as error:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
                if isinstance(error, InvalidRequest) and "again" not in error.message:
                    raise
                self.close()
                self._turn += 1
                time.sleep(_PAUSE_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _put(self, file: LoadFile, path: str) -> tuple[int, ...]:
        """All parts go to one host, for they follow each other there."""
        offset = 0
        with open(path, "rb") as content:
            while True:
                data = content.read(LOAD_PART_BYTES_MAX)
                answer = PUT_ANSWER.decode(self._asked(encode(PutRequest(self.job, file, offset, data))))
                offset += len(data)
                if answer.holders:
                    return answer.holders
                if offset >= file.size_bytes:
                    raise ServerFault(f"file {file.name} was sent whole, and is not held")

    def commit(self, files: Sequence[LoadFile], holders: Sequence[int], rows: int) -> CommitAnswer:
        """Make the load part of its table. Returns when enough replicas have taken it in; OutcomeUnknown when
        that is not known; everything else that is raised says that nothing became part of the table."""
        wanted = tuple(files)
        nodes = dict.fromkeys(holders)
        for _ in range(_CUTS_MAX):
            answer = self._committed(
                CommitRequest(self.job, wanted, tuple(nodes), int(self._options.consistency), rows)
            )
            if not answer.cut:
                return answer
            wanted, more = self._cut(wanted, answer)
            nodes.update(dict.fromkeys(more))
        raise OutcomeUnknown(
            f"ranges of load {self.job} were cut {_CUTS_MAX} times while it was committed; nothing of it "
            "became part of the table"
        )

    def _committed(self, request: CommitRequest) -> CommitAnswer:
        failure: LockstepError | None = None
        for attempt in range(_ATTEMPTS_MAX):
            try:
                answer = COMMIT_ANSWER.decode(self._asked(encode(request)))
            except (PeerError, ServerFault) as error:
                # It may have been committed: asked again, it says so.
                failure = error
                self.close()
                self._turn += 1
            else:
                if answer.cut or answer.done:
                    return answer
                told = ", ".join(map(str, answer.lacking))
                failure = OutcomeUnknown(
                    f"load {self.job} was committed at epoch {answer.ended_epoch}, and nodes {told} have not "
                    "taken it in yet"
                )
            time.sleep(_PAUSE_S * (attempt + 1))
        assert failure is not None, "an attempt was made"
        raise OutcomeUnknown(f"what became of load {self.job} is not known: {failure.message}") from failure

    # -- ranges that were cut -----------------------------------------------------------------------

    def _cut(self, files: Sequence[LoadFile], answer: CommitAnswer) -> tuple[tuple[LoadFile, ...], list[int]]:
        """The files with those cut anew whose ranges went to different replicas; who holds the new ones."""
        kept = [file for file in files if file.name not in answer.cut]
        nodes: list[int] = []
        with tempfile.TemporaryDirectory(prefix="lockstep-load-") as directory:
            for file in files:
                if file.name not in answer.cut:
                    continue
                path = os.path.join(directory, file.name)
                self._fetch(file, path)
                for piece, at in self._pieces(file, path, directory, answer.ranges):
                    nodes += self.put(piece, at)
                    kept.append(piece)
        return tuple(kept), nodes

    def _pieces(
        self, file: LoadFile, path: str, directory: str, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[LoadFile, str]]:
        stored_id = keys.stored_id_of(file.first_key)
        found = [Range(*one).intersection(file.range) for one in ranges]
        inside = [one for one in found if one is not None]
        bounds = [keys.token_bounds(stored_id, one) for one in inside]
        # An attempt of its own a cut: names of files are never used twice.
        attempt = file.attempt * _ATTEMPT_FACTOR + file.number + 1
        made = SortedFiles(directory, file.partition, attempt, [(one.left, one.right) for one in inside])
        pairs = pairs_of(path, f"{path}-scratch")
        return [
            made.file_of(some, inside[number].left, inside[number].right)
            for number, some in cut(pairs, bounds)
        ]

    def _fetch(self, file: LoadFile, path: str) -> None:
        """A staged file from whichever node has it, its replicas first. PreconditionError when none does."""
        pool = pool_of(os.getpid())
        for endpoint in Hosts(self._options, pool).order(file.right, 0):
            try:
                connection = pool.take(endpoint, self._options.timeout_s)
            except PeerError:
                continue
            try:
                if self._read(connection, file, path):
                    return
            except PeerError:
                continue
            finally:
                pool.give_back(connection)
        raise PreconditionError(f"no node that answers holds file {file.name} of load {self.job}")

    def _read(self, connection: CqlConnection, file: LoadFile, path: str) -> bool:
        offset = 0
        with open(path, "wb") as target:
            while offset < file.size_bytes:
                body = encode(ReadRequest(self.job, file.name, offset))
                answer: Any = connection.request(Opcode.LOAD, body)
                if isinstance(answer, wire.ErrorResponse):
                    raise _told(answer)
                part = READ_ANSWER.decode(answer.body)
                if not part.found or not part.data:
                    return False
                target.write(part.data)
                offset += len(part.data)
        return True


#: Attempts of tasks have numbers; those of their pieces begin far above.
_ATTEMPT_FACTOR: Final = 100_000


def _told(answer: wire.ErrorResponse) -> LockstepError:
    """The error with what the node says of the load, which counts of replicas alone do not tell."""
    error = error_of(answer)
    return PreconditionError(answer.message) if isinstance(error, Unavailable) else error
