"""Cases as texts: how they are read, how their steps are played, and messages of the request path in their
words, both ways.

A transcript begins with comments (`#`, the first one says what the case shows) and settings, then has one
step a line:

    history: register, prepare                 changes after the common beginning (epoch 8): history.CHANGES
    n1 at 10                                   where n1 and its peers begin; by default at epoch 8
    timeout 1000 ms                            of every request; by default 8000 ms

    n2 knows 11                       from now on n2 says that it is at epoch 11; `peers know 11`: all say so
    n2 serves the log                 answers fetches up to what it knows; `hides the log` holds them
    n2 announces                      sends n1 an announcement of what it knows
    n1 reaches 11                     wait until n1 has applied epoch 11
    n1 is at 10                       it has not
    n1 asked n2 for the log           since the beginning; `n1 asked nobody for the log`
    n1 syncs in 300 ms                how long its disk takes from now on
    n1 counts stale_table 1           its refusals of that reason
    client QUORUM: <CQL>              begins a request; `client executes QUORUM:`, `client pages 2 QUORUM:`
    client prepares: <CQL>
    client gets ok                    `rows d 1 x`, `no rows`, `error 0x2200 <part of the message>`
    n2 gets <message>                 the oldest message that came to n2 and was not named yet, see wording
    n2 says <answer>                  to the oldest named message; `n2 says nothing` never answers it
    n2 sends <message>                n2 is the coordinator
    n2 hears <answer>                 see wording; `n2 hears ok at 8`
    nothing for 300 ms                no message, no answer

    WRITE #1 d 1=x@10 planned 8 needs 5        a mutation of table ks.t: key d, clustering 1, value x, time 10
    WRITE #1 ks.o d 1=x@10 planned 8 needs 6   of another table
    READ d planned 8 needs 5                   one partition
    SCAN a..d after d/1 limit 2 planned 8 needs 5
    READ d told planned 8 needs 5              one that wants to be told of rows; few of them are given

`#1` names the mutation: the first one seen in a case is 1, and a mutation that is sent again keeps its number
only if it is the same to the last byte.

Invariant: at the end of a case no message is unnamed and no answer unheard. Different messages have different
words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replica.messages import ReadReply, ReadRequest, WriteReply, WriteRequest
from lockstep.sim.coordinator.history import JOINING_KEY, KEYS, CaseHistory
from lockstep.sim.coordinator.stage import PORT, Request, ScriptedPeer, Stage
from lockstep.sim.door import clustering_bytes, clustering_number
from lockstep.values.errors import (
    DiskRefused,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerUnreachable,
    StaleEpoch,
)
from lockstep.values.ids import Consistency, mutation_id
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
            if command.outline is not None:
                words.append("told")
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


_TIMEOUT_MS = 8000
#: A step that waits gives up after this long; a client's own time is over before.
_PATIENCE_MS = 10_000
#: At the end of a case, for messages that nobody named.
_AFTERWARDS_MS = 30
_SETTING = re.compile(r"history: (?P<history>.+)|n1 at (?P<epoch>\d+)|timeout (?P<timeout>\d+) ms")
_ADDRESS = ("127.0.0.1", PORT)


class StepFailed(AssertionError):
    """A step that did not come true."""


class Case(msgspec.Struct, frozen=True):
    """`about` says in a sentence what it shows; `steps` are (line number, text)."""

    name: str
    about: str
    history: tuple[str, ...]
    epoch: int
    timeout_ms: int
    steps: tuple[tuple[int, str], ...]


class Verdict(msgspec.Struct, frozen=True):
    """`problem` is empty when the case holds; `seen` is what happened; `reached` are n1's probes."""

    case: Case
    problem: str
    seen: tuple[str, ...]
    reached: dict[str, int]


def parse_case(name: str, text: str) -> Case:
    history: tuple[str, ...] = ()
    about, epoch, timeout_ms = "", 0, _TIMEOUT_MS
    steps: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        setting = _SETTING.fullmatch(stripped)
        if stripped.startswith("#"):
            about = about or stripped.lstrip("# ")
        elif setting is not None and not steps:
            if setting["history"] is not None:
                history = tuple(part.strip() for part in setting["history"].split(","))
            elif setting["epoch"] is not None:
                epoch = int(setting["epoch"])
            else:
                timeout_ms = int(setting["timeout"])
        elif stripped:
            steps.append((number, stripped))
    assert about and steps, f"case {name} says what it shows and has steps"
    return Case(name, about, history, epoch, timeout_ms, tuple(steps))


def cases() -> dict[str, Case]:
    """All cases by name, in the order of their names."""
    folder = resources.files("lockstep.sim.coordinator").joinpath("transcripts")
    found = {}
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".txt"):
            name = item.name.removesuffix(".txt")
            found[name] = parse_case(name, item.read_text(encoding="utf-8"))
    return found


def play(case: Case) -> Verdict:
    """Play one case in a world of its own."""
    player = _Player(case)
    problem = ""
    try:
        player.play()
    except AssertionError as failed:
        problem = f"{player.where}: {failed}"
    finally:
        player.stage.close()
    return Verdict(case, problem, tuple(player.seen), player.stage.reached())


def text_of(verdict: Verdict, *, verbose: bool = False) -> str:
    """One line, and for a case that failed what happened."""
    case = verdict.case
    if not verdict.problem and not verbose:
        return f"ok      {case.name}: {case.about}"
    lines = [f"{'FAILED' if verdict.problem else 'ok':7} {case.name}: {case.about}"]
    lines += [f"        {line}" for line in verdict.seen]
    if verdict.problem:
        lines.append(f"        {verdict.problem}")
    return "\n".join(lines)


class _Player:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._history = CaseHistory(case.history)
        self._wording = Wording(self._history.values)
        self.stage = Stage(self._history, case.epoch or self._history.base_epoch, case.timeout_ms)
        self.where = "start"
        self.seen: list[str] = []
        self._requests: list[Request] = []
        self._sent = 0
        self._told = 0

    def play(self) -> None:
        self.stage.open()
        for number, text in self._case.steps:
            self.where = f"line {number} ({text})"
            self.seen.append(f"{self.stage.now_ms():8.1f} ms  {text}")
            self._step(text)
            self._tell_arrivals()
        self.where = "end"
        self.stage.wait(lambda: False, _AFTERWARDS_MS)
        self._tell_arrivals()
        self._nothing_left()

    def _step(self, text: str) -> None:
        for pattern, act in _STEPS:
            match = pattern.fullmatch(text)
            if match is not None:
                act(self, match)
                return
        raise StepFailed("no such step")

    def _tell_arrivals(self) -> None:
        """Put what arrived since the last step into what was seen."""
        for number, verb, request in self.stage.arrivals[self._told :]:
            self.seen.append(f"{'':11}    -> n{number}: {self._wording.request(verb, request)}")
        self._told = len(self.stage.arrivals)

    def _nothing_left(self) -> None:
        for peer in self.stage.peers.values():
            for verb, request, _ in peer.arrived:
                words = self._wording.request(verb, request)
                raise StepFailed(f"n{peer.number} got {words}, which no step names")
            for answer in peer.answers:
                raise StepFailed(f"n{peer.number} heard {self._wording.reply(answer)}, which no step names")
        for request in self._requests:
            raise StepFailed(f"the client got {request.said or 'no answer'}, which no step names")

    def _peer(self, match: re.Match[str]) -> ScriptedPeer:
        return self.stage.peers[int(match["peer"])]

    def _peers(self, match: re.Match[str]) -> list[ScriptedPeer]:
        return list(self.stage.peers.values()) if match["peer"] is None else [self._peer(match)]

    def _await(self, done: Callable[[], bool], what: str, limit_ms: float = _PATIENCE_MS) -> None:
        if not self.stage.wait(done, limit_ms):
            raise StepFailed(what)

    # -- steps -----------------------------------------------------------------------------------------

    def _knows(self, match: re.Match[str]) -> None:
        for peer in self._peers(match):
            peer.epoch = int(match["epoch"])

    def _log(self, match: re.Match[str]) -> None:
        for peer in self._peers(match):
            peer.serve_log(match["how"] == "serve")

    def _announces(self, match: re.Match[str]) -> None:
        self._peer(match).announce(_ADDRESS)

    def _reaches(self, match: re.Match[str]) -> None:
        wanted = int(match["epoch"])
        self._await(lambda: self._epoch() >= wanted, f"n1 stays at {self._epoch()}")

    def _is_at(self, match: re.Match[str]) -> None:
        if self._epoch() != int(match["epoch"]):
            raise StepFailed(f"n1 is at {self._epoch()}")

    def _epoch(self) -> int:
        assert self.stage.node is not None, "n1 runs"
        return self.stage.node.log.cluster.epoch

    def _asked(self, match: re.Match[str]) -> None:
        asked = [peer.number for peer in self.stage.peers.values() if peer.fetches]
        wanted = [] if match["peer"] is None else [int(match["peer"])]
        # What is asked now is on its way.
        if wanted and wanted[0] not in asked:
            self._await(lambda: self._peer(match).fetches > 0, f"n1 asked {asked}", 10)
        elif not wanted and asked:
            raise StepFailed(f"n1 asked {asked}")

    def _syncs(self, match: re.Match[str]) -> None:
        self.stage.set_sync_ms(float(match["ms"]))

    def _counts(self, match: re.Match[str]) -> None:
        assert self.stage.node is not None, "n1 runs"
        refusals = self.stage.node.data.replica.refusals
        counted = refusals.waits if match["reason"] == "waits" else refusals.counts[match["reason"]]
        if counted != int(match["count"]):
            raise StepFailed(f"it counts {counted}")

    def _asks(self, match: re.Match[str]) -> None:
        level = Consistency[match["level"]]
        self._requests.append(
            self.stage.ask(
                match["text"], level, execute=match["how"] == "executes", page_rows=int(match["pages"] or 0)
            )
        )

    def _prepares(self, match: re.Match[str]) -> None:
        request = self.stage.prepare(match["text"])
        self._await(lambda: request.said is not None, "it is not prepared")

    def _gets(self, match: re.Match[str]) -> None:
        """The answer to the client's oldest request that is not answered yet."""
        if not self._requests:
            raise StepFailed("the client waits for nothing")
        request = self._requests[0]
        self._await(lambda: request.said is not None, "the client gets no answer")
        del self._requests[0]
        said, wanted = request.said or "", match["text"]
        same = said.startswith(wanted) if wanted.startswith("error") else said == wanted
        if wanted.startswith("error") and not same:
            code, _, part = wanted.removeprefix("error ").partition(" ")
            same = said.startswith(f"error {code} ") and part in said
        if not same:
            raise StepFailed(f"the client got {said}")

    def _message(self, match: re.Match[str]) -> None:
        peer = self._peer(match)
        self._await(lambda: bool(peer.arrived), f"nothing came to n{peer.number}")
        verb, request, respond = peer.arrived.popleft()
        words = self._wording.request(verb, request)
        if words != match["text"]:
            raise StepFailed(f"n{peer.number} got {words}")
        peer.named.append((request, respond))

    def _says(self, match: re.Match[str]) -> None:
        peer = self._peer(match)
        if match["text"] == "nothing":
            peer.forget()
            return
        if not peer.named:
            raise StepFailed(f"n{peer.number} has nothing to answer")
        peer.answer(self._wording.answer(match["text"], peer.named[0][0], peer.epoch))
        self.stage.wait(lambda: False, 2)

    def _sends(self, match: re.Match[str]) -> None:
        self._sent += 1
        verb, request = self._wording.sent(match["text"], self._sent)
        self._peer(match).send(_ADDRESS, verb, request)
        self.stage.wait(lambda: False, 2)

    def _hears(self, match: re.Match[str]) -> None:
        peer = self._peer(match)
        limit_ms = float(match["ms"]) if match["ms"] else _PATIENCE_MS
        self._await(lambda: bool(peer.answers), f"n{peer.number} hears nothing", limit_ms)
        words = self._wording.reply(peer.answers.popleft())
        self.seen.append(f"{'':11}    <- n{peer.number}: {words}")
        if words != match["text"]:
            raise StepFailed(f"n{peer.number} hears {words}")

    def _nothing(self, match: re.Match[str]) -> None:
        self.stage.wait(self._anything, float(match["ms"]))
        if self._anything():
            self._nothing_left()

    def _anything(self) -> bool:
        arrived = any(peer.arrived or peer.answers for peer in self.stage.peers.values())
        return arrived or any(request.said is not None for request in self._requests)


_PEER = r"(?:n(?P<peer>[2-5])|peers)"
_ONE = r"n(?P<peer>[2-5])"
_STEPS: tuple[tuple[re.Pattern[str], Callable[[_Player, re.Match[str]], None]], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (_PEER + r" knows? (?P<epoch>\d+)", _Player._knows),
        (_PEER + r" (?P<how>serve|hide)s? the log", _Player._log),
        (_ONE + r" announces", _Player._announces),
        (r"n1 reaches (?P<epoch>\d+)", _Player._reaches),
        (r"n1 is at (?P<epoch>\d+)", _Player._is_at),
        (r"n1 asked (?:n(?P<peer>[2-5])|nobody) for the log", _Player._asked),
        (r"n1 syncs in (?P<ms>\d+) ms", _Player._syncs),
        (r"n1 counts (?P<reason>\w+) (?P<count>\d+)", _Player._counts),
        (r"client prepares: (?P<text>.+)", _Player._prepares),
        (r"client gets (?P<text>.+)", _Player._gets),
        (
            r"client (?:(?P<how>executes) |pages (?P<pages>\d+) )?(?P<level>[A-Z_]+): (?P<text>.+)",
            _Player._asks,
        ),
        (_ONE + r" gets (?P<text>.+)", _Player._message),
        (_ONE + r" says (?P<text>.+)", _Player._says),
        (_ONE + r" sends (?P<text>.+)", _Player._sends),
        (_ONE + r" hears (?P<text>.+?)(?: within (?P<ms>\d+) ms)?", _Player._hears),
        (r"nothing for (?P<ms>\d+) ms", _Player._nothing),
    )
)
