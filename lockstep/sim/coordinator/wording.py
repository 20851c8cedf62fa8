"""Messages of the request path in the words of the transcripts, both ways.

    WRITE #1 d 1=x@10 planned 8 needs 5        a mutation of table ks.t: key d, clustering 1, value x, time 10
    WRITE #1 ks.o d 1=x@10 planned 8 needs 6   of another table
    READ d planned 8 needs 5                   one partition
    SCAN a..d after d/1 limit 2 planned 8 needs 5

`#1` names the mutation: the first one seen in a case is 1, and a mutation that is sent again keeps its number
only if it is the same to the last byte. Invariant: different messages have different words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replica.messages import ReadReply, ReadRequest, WriteReply, WriteRequest
from lockstep.sim.coordinator.history import JOINING_KEY, KEYS
from lockstep.sim.door import clustering_bytes, clustering_number
from lockstep.values.errors import (
    DiskRefused,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerUnreachable,
    StaleEpoch,
)
from lockstep.values.ids import mutation_id
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    Liveness,
    Mutation,
    Partition,
    Position,
    ReadCommand,
    ReadResult,
    Row,
)
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of

VERBS = {verbs.WRITE: "WRITE", verbs.READ: "READ", verbs.READ_REPAIR: "REPAIR"}
_NUMBERS = {"WRITE": verbs.WRITE, "READ": verbs.READ, "SCAN": verbs.READ, "REPAIR": verbs.READ_REPAIR}
#: A table that is in no history.
_NO_TABLE = 999
_LIMIT_SHOWN_MAX = 1000
_ROW = re.compile(r"(\d+)=(\w*)@(\d+)")
_SENT = re.compile(
    r"(?P<verb>WRITE|REPAIR|READ|SCAN) (?:(?P<table>\w+\.\w+) )?(?P<what>.*?)"
    r" planned (?P<epoch>\d+) needs (?P<needs>\d+)"
)


class WordsError(AssertionError):
    """A line of a transcript that means nothing."""


class Wording:
    """Speaks of the tables of one history."""

    def __init__(self, values: Sequence[ClusterMetadata]) -> None:
        self._ids: dict[str, int] = {"no.table": _NO_TABLE}
        self._names: dict[int, str] = {}
        self._columns: dict[int, int] = {}
        for value in values:
            for table in value.schema.tables_by_id.values():
                name = f"{table.keyspace}.{table.name}"
                if table.id not in self._names:
                    first = name not in self._ids
                    self._ids.setdefault(name, table.id)
                    self._names[table.id] = name if first else f"{name}({table.id})"
                if "v" in table.by_name:
                    self._columns.setdefault(table.id, table.by_name["v"].id)
        self._default = self._ids["ks.t"]
        self._mutations: list[Mutation] = []
        self._tokens = {TOKEN_MIN: "min", TOKEN_MAX: "max"}
        for key in (*KEYS, JOINING_KEY):
            self._tokens[token_of(key.encode())] = key
            self._tokens[token_of(key.encode()) - 1] = f"before-{key}"

    # -- to words --------------------------------------------------------------------------------------

    def request(self, verb: int, request: Any) -> str:
        """What a peer was asked."""
        if isinstance(request, WriteRequest):
            mutation = request.mutation
            words = [VERBS[verb], f"#{self._number(mutation)}", *self._table(mutation.table_id)]
            words.append(self._rows(mutation.key, mutation.rows))
        else:
            command = request.command
            if command.key is not None:
                words = ["READ", *self._table(command.table_id), command.key.decode()]
            else:
                bounds = f"{self._token(command.left)}..{self._token(command.right)}"
                words = ["SCAN", *self._table(command.table_id), bounds]
            if command.after is not None:
                words.append(f"after {self._position(command.after)}")
            if 0 < command.row_limit < _LIMIT_SHOWN_MAX:
                words.append(f"limit {command.row_limit}")
        return " ".join([*words, f"planned {request.epoch} needs {request.needs_epoch}"])

    def reply(self, reply: Any) -> str:
        """What a replica answered."""
        if isinstance(reply, StaleEpoch):
            return f"stale {reply.epoch} {reply.reason}"
        if isinstance(reply, LockstepError):
            return f"error {reply.code}"
        if isinstance(reply, WriteReply):
            return f"ok at {reply.accepted_epoch}"
        assert isinstance(reply, ReadReply), reply
        parts = [self._rows(p.key, p.rows) for p in reply.result.partitions if p.rows]
        return f"{'rows ' + ', '.join(parts) if parts else 'no rows'} at {reply.accepted_epoch}"

    def _number(self, mutation: Mutation) -> int:
        if mutation not in self._mutations:
            self._mutations.append(mutation)
        return self._mutations.index(mutation) + 1

    def _table(self, table_id: int) -> tuple[str, ...]:
        return () if table_id == self._default else (self._names.get(table_id, f"table-{table_id}"),)

    def _rows(self, key: bytes, rows: Sequence[Row]) -> str:
        shown = [key.decode()]
        for row in rows:
            for cell in row.cells:
                value = "-" if cell.value is None else cell.value.decode()
                shown.append(f"{clustering_number(row.clustering)}={value}@{cell.timestamp_us}")
        return " ".join(shown)

    def _token(self, token: int) -> str:
        return self._tokens.get(token, str(token))

    def _position(self, position: Position) -> str:
        if position.clustering is None:
            return position.key.decode()
        return f"{position.key.decode()}/{clustering_number(position.clustering)}"

    # -- from words ------------------------------------------------------------------------------------

    def sent(self, text: str, number: int) -> tuple[int, Any]:
        """(verb, request) of what a scripted coordinator sends; `number` names its mutation."""
        match = _SENT.fullmatch(text)
        if match is None:
            raise WordsError(f"{text!r} is no message")
        verb, name = match["verb"], match["table"] or "ks.t"
        table_id = self._ids[name]
        epoch, needs = int(match["epoch"]), int(match["needs"])
        if verb in ("WRITE", "REPAIR"):
            partition = self._partition(match["what"], table_id)
            at = max(row.liveness.timestamp_us for row in partition.rows if row.liveness is not None)
            made = Mutation(
                table_id, partition.token, partition.key, mutation_id(9, 1, number), at, rows=partition.rows
            )
            return _NUMBERS[verb], WriteRequest(epoch, needs, made)
        left, right, key = TOKEN_MIN, TOKEN_MAX, None
        if verb == "READ":
            key = match["what"].encode()
            right = token_of(key)
            left = right - 1
        elif match["what"] != "all":
            tokens = {word: token for token, word in self._tokens.items()}
            left, right = (tokens[word] for word in match["what"].split(".."))
        command = ReadCommand(table_id, left, right, key, ALL_ROWS, (), False, False, 100, 0, 1)
        return verbs.READ, ReadRequest(epoch, needs, command)

    def answer(self, text: str, request: Any, epoch: int) -> Any:
        """What a peer at `epoch` says to a request."""
        words = text.split()
        if words[0] == "ok":
            return WriteReply(int(words[2]) if len(words) > 1 else epoch)
        if words[0] == "stale":
            return StaleEpoch(int(words[1]) if len(words) > 1 else epoch)
        if words[0] in ("rows", "no"):
            return ReadReply(epoch, self._result(text, request.command))
        errors: dict[str, LockstepError] = {
            "not replica": NotReplica("not here"),
            "unreachable": PeerUnreachable("not served here"),
            "overloaded": Overloaded("too much"),
            "disk refused": DiskRefused("the disk is full"),
        }
        if text not in errors:
            raise WordsError(f"nobody says {text!r}")
        return errors[text]

    def _result(self, text: str, command: ReadCommand) -> ReadResult:
        if text == "no rows":
            return ReadResult(())
        body, more = text.removeprefix("rows "), text.endswith(" more")
        parts = body.removesuffix(" more").split(", ")
        partitions = tuple(self._partition(part, command.table_id) for part in parts)
        partitions = tuple(sorted(partitions, key=lambda partition: (partition.token, partition.key)))
        if not more:
            return ReadResult(partitions)
        last = partitions[-1]
        return ReadResult(partitions, True, Position(last.token, last.key, last.rows[-1].clustering))

    def _partition(self, text: str, table_id: int) -> Partition:
        key, _, rest = text.partition(" ")
        column = self._columns.get(table_id, 3)
        rows = []
        for word in rest.split():
            match = _ROW.fullmatch(word)
            if match is None:
                raise WordsError(f"{word!r} is no row")
            at = int(match[3])
            cell = Cell(column, match[2].encode(), at)
            rows.append(Row(clustering_bytes(int(match[1])), Liveness(at), None, (cell,)))
        encoded = key.encode()
        return Partition(token_of(encoded), encoded, rows=tuple(rows))
