"""The error tree. Every error says its code, whose fault it is, whether a retry can help, whether
the outcome is known, and what to do next.

    LockstepError
    ├── ConfigurationError            operator   bad or unknown setting, port in use, wrong directory
    ├── PreconditionError             operator   refused because of the cluster's present state
    │   ├── ChangesGone               operator   a log of changes has lost what was to be read
    │   └── NodeRestarting            operator   the node begins another life in its process
    ├── RequestError                  client     carries the CQL protocol error code
    │   ├── BadCredentials            0x0100
    │   ├── SyntaxError_              0x2000
    │   ├── Unauthorized              0x2100
    │   ├── InvalidRequest            0x2200
    │   │   └── ColumnsGone                      planned again by the coordinator, never sent to clients
    │   ├── ConfigurationInvalid      0x2300
    │   ├── AlreadyExists             0x2400
    │   ├── Unprepared                0x2500
    │   ├── ProtocolViolation         0x000A
    │   ├── Unavailable               0x1000     nothing was sent: definite failure
    │   ├── Overloaded                0x1001
    │   ├── NodeDraining              0x1002     nothing was done: ask another node
    │   ├── WriteTimeout              0x1100     outcome unknown
    │   ├── ConditionalUnknown        0x1700     outcome unknown
    │   ├── ReadTimeout               0x1200
    │   ├── ReadFailure               0x1300
    │   ├── WriteFailure              0x1500
    │   └── ServerFault               0x0000
    ├── MetadataError
    │   ├── Rejected                  client     judged at an epoch and refused, never logged
    │   │   ├── OperationRunning      client     an operation excludes it until it ends
    │   │   └── VersionMismatch       operator   some node could not read it in the log
    │   ├── LogTruncated              operator   an epoch that this node no longer keeps
    │   ├── OutcomeUnknown            server     may or may not be in the log
    │   ├── NotLeader                 server     ask another node
    │   │   └── LeadershipLost        server     it had been appended: outcome unknown
    │   └── CannotApply               server     an entry this node cannot apply: it stops serving
    ├── PeerError
    │   ├── PeerUnreachable           network    nothing was sent
    │   ├── PeerTimeout               network    outcome unknown
    │   ├── HandshakeRefused          operator   other cluster, other lineage, wrong address
    │   └── FrameCorrupt              network
    ├── ReplicaRefusal
    │   ├── StaleEpoch                server     the sender's plan is older than a change that matters
    │   ├── OtherRing                 server     the sender has another ring of the same epoch
    │   ├── NotReplica                server     this node does not hold the range at the shared epoch
    │   ├── IndexNotAvailable         server     this node has not built a secondary index yet
    │   ├── RangeLacking              server     this node lost what it stored of the range
    │   └── SessionClosed             server     work of a session that was closed
    └── StorageError
        ├── CorruptFile               server     names file and offset
        │   └── TableFileDamaged      server     names what of the tables is in the file
        └── DiskRefused               server     full or failing disk
"""

from __future__ import annotations

from typing import ClassVar, Literal

from lockstep.values.ids import Consistency, named

Fault = Literal["client", "operator", "server", "network"]


class LockstepError(Exception):
    """Root. `code` is stable and greppable; `hint` is a next command or action, or empty."""

    code: ClassVar[str] = "LOCKSTEP"
    fault: ClassVar[Fault] = "server"
    retriable: ClassVar[bool] = False
    outcome_known: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """`error[CODE]: sentence`, then the hint on its own line."""
        text = f"error[{self.code}]: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


class ConfigurationError(LockstepError):
    code: ClassVar[str] = "CONFIGURATION"
    fault: ClassVar[Fault] = "operator"
    exit_code = 2


class PreconditionError(LockstepError):
    code: ClassVar[str] = "PRECONDITION"
    fault: ClassVar[Fault] = "operator"
    exit_code = 3


class NodeRestarting(PreconditionError):
    """The node begins another life in this process, to carry out what was decided for it."""

    code: ClassVar[str] = "NODE_RESTARTING"
    retriable: ClassVar[bool] = True


class ChangesGone(PreconditionError):
    """Changes that a follower was to read are not in the log of their table any more."""

    code: ClassVar[str] = "CHANGES_GONE"


class RequestError(LockstepError):
    """An error a CQL client receives; `cql_code` is the native protocol's error code."""

    code: ClassVar[str] = "REQUEST"
    fault: ClassVar[Fault] = "client"
    cql_code: ClassVar[int] = 0x0000


class BadCredentials(RequestError):
    code: ClassVar[str] = "CQL_CREDENTIALS"
    cql_code = 0x0100


class Unauthorized(RequestError):
    """The role of the connection has no permission for this, or is there no longer."""

    code: ClassVar[str] = "CQL_UNAUTHORIZED"
    cql_code = 0x2100


class SyntaxError_(RequestError):
    code: ClassVar[str] = "CQL_SYNTAX"
    cql_code = 0x2000


class InvalidRequest(RequestError):
    code: ClassVar[str] = "CQL_INVALID"
    cql_code = 0x2200


class ColumnsGone(InvalidRequest):
    """Columns that a request was planned with were dropped while it was under way: it is to be planned anew.

    `begun`: a replica may hold what the request wrote. `epoch`: of a node that found it out for another one,
    which has to know as much before it plans; 0 where none did. Clients are never told of this error.
    """

    code: ClassVar[str] = "CQL_COLUMNS_GONE"
    outcome_known = False
    #: Not told by nodes that know nothing of it.
    epoch = 0

    def __init__(self, table: str, *, begun: bool) -> None:
        super().__init__(f"Columns of table {table} were dropped while the request was under way")
        self.begun = begun


class FunctionFailure(RequestError):
    """A function could not work its arguments out, as in a division by zero.

    `keyspace`, `function`, `arguments`: the function and the types of its arguments.
    """

    code: ClassVar[str] = "CQL_FUNCTION"
    cql_code = 0x1400

    def __init__(
        self, message: str, keyspace: str, function: str, arguments: tuple[str, ...], *, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.keyspace = keyspace
        self.function = function
        self.arguments = arguments


class ConfigurationInvalid(RequestError):
    code: ClassVar[str] = "CQL_CONFIGURATION"
    cql_code = 0x2300


class AlreadyExists(RequestError):
    code: ClassVar[str] = "CQL_ALREADY_EXISTS"
    cql_code = 0x2400

    def __init__(self, message: str, keyspace: str, table: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.keyspace = keyspace
        self.table = table


class Unprepared(RequestError):
    code: ClassVar[str] = "CQL_UNPREPARED"
    cql_code = 0x2500
    retriable = True

    def __init__(self, statement_id: bytes) -> None:
        super().__init__(f"prepared statement {statement_id.hex()} is not known here")
        self.statement_id = statement_id


class ProtocolViolation(RequestError):
    code: ClassVar[str] = "CQL_PROTOCOL"
    cql_code = 0x000A


class TruncateError(RequestError):
    """The table is emptied in the log, but a live node may still show old rows for a while."""

    code: ClassVar[str] = "CQL_TRUNCATE"
    fault: ClassVar[Fault] = "server"
    cql_code = 0x1003


class ServerFault(RequestError):
    code: ClassVar[str] = "CQL_SERVER"
    fault: ClassVar[Fault] = "server"
    cql_code = 0x0000


class Overloaded(RequestError):
    code: ClassVar[str] = "CQL_OVERLOADED"
    fault: ClassVar[Fault] = "server"
    retriable = True
    cql_code = 0x1001


class NodeDraining(RequestError):
    """A request to a node that takes leave of its clients. Drivers try the next node on this code, also with
    what is not idempotent."""

    code: ClassVar[str] = "CQL_DRAINING"
    fault: ClassVar[Fault] = "server"
    retriable = True
    cql_code = 0x1002

    def __init__(self) -> None:
        super().__init__("This node takes leave of its clients: ask another one")


class Unavailable(RequestError):
    """Too few live replicas, found before anything was sent. `dc`: where, for levels of each data centre."""

    code: ClassVar[str] = "CQL_UNAVAILABLE"
    fault: ClassVar[Fault] = "server"
    retriable = True
    cql_code = 0x1000

    def __init__(self, consistency: int, required: int, alive: int, dc: str = "") -> None:
        where = f" in DC {dc}" if dc else ""
        super().__init__(f"Cannot achieve consistency level {Consistency(consistency).name}{where}")
        self.consistency = consistency
        self.required = required
        self.alive = alive


class WriteTimeout(RequestError):
    """Too few acknowledgements in time: the write may or may not be applied."""

    code: ClassVar[str] = "CQL_WRITE_TIMEOUT"
    fault: ClassVar[Fault] = "server"
    retriable = True
    outcome_known = False
    cql_code = 0x1100

    def __init__(
        self, consistency: int, received: int, required: int, write_type: str, contentions: int = 0
    ) -> None:
        told = f"Operation timed out - received only {received} responses."
        if write_type == "CAS":
            told = (
                f"CAS operation timed out: received {received} of {required} required responses after "
                f"{contentions} contention retries"
            )
        super().__init__(told)
        self.consistency = consistency
        self.received = received
        self.required = required
        self.write_type = write_type
        #: Of a conditional write: how often others were first.
        self.contentions = contentions


class ConditionalUnknown(RequestError):
    """A conditional write was proposed, and it is not known whether it was or will be decided."""

    code: ClassVar[str] = "CQL_CAS_UNKNOWN"
    fault: ClassVar[Fault] = "server"
    outcome_known = False
    cql_code = 0x1700

    def __init__(self, consistency: int, received: int, required: int) -> None:
        super().__init__(
            f"CAS operation result is unknown - proposal accepted by {received} but not a quorum."
        )
        self.consistency = consistency
        self.received = received
        self.required = required


class ReadTimeout(RequestError):
    code: ClassVar[str] = "CQL_READ_TIMEOUT"
    fault: ClassVar[Fault] = "server"
    retriable = True
    cql_code = 0x1200

    def __init__(self, consistency: int, received: int, required: int, data_present: bool) -> None:
        super().__init__(f"Operation timed out - received only {received} responses.")
        self.consistency = consistency
        self.received = received
        self.required = required
        self.data_present = data_present


class ReadFailure(RequestError):
    """`reasons` names (replica address, failure code) pairs where they are known; `causes` says in words
    which replica failed and why."""

    code: ClassVar[str] = "CQL_READ_FAILURE"
    fault: ClassVar[Fault] = "server"
    cql_code = 0x1300

    def __init__(
        self,
        consistency: int,
        received: int,
        required: int,
        failures: int,
        data_present: bool,
        reasons: tuple[tuple[str, int], ...] = (),
        causes: str = "",
    ) -> None:
        told = f": {causes}" if causes else named(reasons)
        found = f"received {received} responses and {failures} failures{told}"
        super().__init__(f"Operation failed - {found}")
        self.consistency = consistency
        self.received = received
        self.required = required
        self.failures = failures
        self.data_present = data_present
        self.reasons = reasons


class WriteFailure(RequestError):
    """`reasons` names (replica address, failure code) pairs where they are known; `causes` says in words
    which replica failed and why."""

    code: ClassVar[str] = "CQL_WRITE_FAILURE"
    fault: ClassVar[Fault] = "server"
    outcome_known = False
    cql_code = 0x1500

    def __init__(
        self,
        consistency: int,
        received: int,
        required: int,
        failures: int,
        write_type: str,
        reasons: tuple[tuple[str, int], ...] = (),
        causes: str = "",
    ) -> None:
        told = f": {causes}" if causes else named(reasons)
        found = f"received {received} responses and {failures} failures{told}"
        super().__init__(f"Operation failed - {found}")
        self.consistency = consistency
        self.received = received
        self.required = required
        self.failures = failures
        self.write_type = write_type
        self.reasons = reasons


class MetadataError(LockstepError):
    code: ClassVar[str] = "METADATA"


class Rejected(MetadataError):
    """A transformation was judged at `epoch` and refused; it is not in the log and never will be.

    `cql_code` says how a CQL client is told (0x2200 unless stated).
    """

    code: ClassVar[str] = "REJECTED"
    fault: ClassVar[Fault] = "client"
    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        cql_code: int = 0x2200,
        epoch: int = 0,
        keyspace: str = "",
        table: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.cql_code = cql_code
        self.epoch = epoch
        self.keyspace = keyspace
        self.table = table


class OperationRunning(Rejected):
    """Refused because of an operation that runs: another submission may pass once that has ended."""

    code: ClassVar[str] = "OPERATION_RUNNING"
    retriable = True


class VersionMismatch(Rejected):
    """Refused because some node cannot read what it would bring into the log."""

    code: ClassVar[str] = "VERSION_MISMATCH"
    fault: ClassVar[Fault] = "operator"


class LogTruncated(MetadataError):
    """The wanted epoch is no longer kept here; `oldest_epoch` is the oldest that is."""

    code: ClassVar[str] = "LOG_TRUNCATED"
    fault: ClassVar[Fault] = "operator"

    def __init__(self, message: str, oldest_epoch: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.oldest_epoch = oldest_epoch


class OutcomeUnknown(MetadataError):
    code: ClassVar[str] = "OUTCOME_UNKNOWN"
    retriable = True
    outcome_known = False
    exit_code = 5


class NotLeader(MetadataError):
    """Raised where a submission reached a node that cannot judge it; `leader` is a guess or None."""

    code: ClassVar[str] = "NOT_LEADER"
    retriable = True

    def __init__(self, leader: int | None) -> None:
        super().__init__("this node does not lead the metadata group")
        self.leader = leader


class LeadershipLost(NotLeader):
    """The submission was appended by a leader that leads no more: it may still be committed."""

    code: ClassVar[str] = "LEADERSHIP_LOST"
    outcome_known = False


class CannotApply(MetadataError):
    code: ClassVar[str] = "CANNOT_APPLY"


class PeerError(LockstepError):
    code: ClassVar[str] = "PEER"
    fault: ClassVar[Fault] = "network"
    retriable = True


class PeerUnreachable(PeerError):
    code: ClassVar[str] = "PEER_UNREACHABLE"
    exit_code = 4


class PeerTimeout(PeerError):
    code: ClassVar[str] = "PEER_TIMEOUT"
    outcome_known = False
    exit_code = 5


class HandshakeRefused(PeerError):
    code: ClassVar[str] = "HANDSHAKE_REFUSED"
    fault: ClassVar[Fault] = "operator"
    retriable = False


class FrameCorrupt(PeerError):
    code: ClassVar[str] = "FRAME_CORRUPT"


class ReplicaRefusal(LockstepError):
    code: ClassVar[str] = "REPLICA_REFUSAL"
    retriable = True


class StaleEpoch(ReplicaRefusal):
    """The sender planned at an epoch older than `epoch`, and the change in between matters.

    `reason` says what changed, as quorum.refusals names it.
    """

    code: ClassVar[str] = "STALE_EPOCH"

    def __init__(self, epoch: int, reason: str = "") -> None:
        what = f" ({reason})" if reason else ""
        super().__init__(f"planned before a change that matters{what}; this node is at epoch {epoch}")
        self.epoch = epoch
        self.reason = reason


class OtherRing(ReplicaRefusal):
    """The sender has another ring of the same epoch, where a cluster runs without a log: what it plans holds
    for no node here."""

    code: ClassVar[str] = "OTHER_RING"
    retriable = False


class NotReplica(ReplicaRefusal):
    code: ClassVar[str] = "NOT_REPLICA"


class IndexNotAvailable(ReplicaRefusal):
    """This node has not yet built what of a secondary index was asked for."""

    code: ClassVar[str] = "INDEX_NOT_AVAILABLE"


class RangeLacking(ReplicaRefusal):
    """This replica lost what it stored of the range: until that is filled again from other replicas it takes
    writes, and answers nothing else."""

    code: ClassVar[str] = "RANGE_LACKING"
    fault: ClassVar[Fault] = "operator"


class SessionClosed(ReplicaRefusal):
    code: ClassVar[str] = "SESSION_CLOSED"
    retriable = False


class NodeExcluded(ReplicaRefusal):
    """The sender is on the exclude list: nobody takes its requests for data until it is included again."""

    code: ClassVar[str] = "NODE_EXCLUDED"
    fault: ClassVar[Fault] = "operator"
    retriable = False


class StorageError(LockstepError):
    code: ClassVar[str] = "STORAGE"


class CorruptFile(StorageError):
    code: ClassVar[str] = "CORRUPT_FILE"

    def __init__(self, path: str, offset: int, why: str, *, hint: str = "") -> None:
        super().__init__(
            f"{path} is corrupt at byte {offset}: {why}",
            hint=hint
            or "keep the data directory for analysis and check the disk; `lockstep explain CORRUPT_FILE`",
        )
        self.path = path
        self.offset = offset
        self.why = why


class TableFileDamaged(CorruptFile):
    """A file of tables is damaged or gone: this replica cannot answer for what is in it, others can.

    `first_key` and `last_key`: store keys between which its content lies; empty where that is not known.
    """

    code: ClassVar[str] = "TABLE_FILE_DAMAGED"

    def __init__(
        self, path: str, offset: int, why: str, first_key: bytes = b"", last_key: bytes = b""
    ) -> None:
        super().__init__(path, offset, why)
        self.hint = "`lockstep node scrub` checks every file; `lockstep explain TABLE_FILE_DAMAGED`"
        self.why = why
        self.first_key = first_key
        self.last_key = last_key


class DiskRefused(StorageError):
    code: ClassVar[str] = "DISK_REFUSED"
