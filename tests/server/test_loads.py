"""The door of bulk loads: who may ask, what cannot be read, and what keeps tombstones meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.loads import Load, Loads
from lockstep.node.data_service import oldest_hint_us
from lockstep.replica.load_messages import LoadFile
from lockstep.replica.load_requests import (
    AbortRequest,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    LookRequest,
)
from lockstep.server.auth.permits import Session
from lockstep.server.statements.loads import LoadDoor
from lockstep.storage.rows import keys
from lockstep.streaming.load_target import require_in_table
from lockstep.values.codec import encode
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    ProtocolViolation,
    Rejected,
    ServerFault,
    StorageError,
    Unauthorized,
)
from lockstep.values.tokens import Range


def load(job: str = "a", time_us: int = 9_000_000) -> Load:
    return Load(job, "k", "t", 3, 4, 3, time_us, 5, 10_000)


class Audited:
    """What an audit file would hold."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def loaded(self, request: str, who: str, peer: str, load: Any, outcome: str, code: str = "") -> None:
        self.lines.append((request, who, peer, load["job"], outcome, code))


def door(
    answer: Any,
    superusers: tuple[str, ...] | None = None,
    audited: Audited | None = None,
    running: tuple[Load, ...] = (),
) -> LoadDoor:
    def look(job: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def changed(request: Any) -> Any:
        return look(request.job)

    loads = SimpleNamespace(look=look, begin=changed, commit=changed, abort=changed)
    cluster = SimpleNamespace(loads=Loads(running))
    node: Any = SimpleNamespace(work=SimpleNamespace(bulk_loads=loads), log=SimpleNamespace(cluster=cluster))
    audit: Any = audited or Audited()
    if superusers is None:
        return LoadDoor(node, None, audit)
    access = SimpleNamespace(is_superuser=lambda user: user in superusers)
    permits: Any = SimpleNamespace(admit=lambda session: access)
    return LoadDoor(node, permits, audit)


def ask(asked: LoadDoor, body: bytes = encode(LookRequest("a")), user: str | None = None) -> bytes:
    return asyncio.run(asked.answer(Session(5, user=user), body, "10.0.0.9"))


def test_superusers_alone_load_where_roles_count() -> None:
    assert ask(door(load())) == encode(load())
    assert ask(door(load(), ("ann",)), user="ann") == encode(load())
    for user in ("bob", None):
        with pytest.raises(Unauthorized, match="not a superuser"):
            ask(door(load(), ("ann",)), user=user)


def test_what_changes_a_load_is_audited_once() -> None:
    begin = BeginRequest("a", "k", "t", 1000)
    commit, abort = CommitRequest("a", (), (), 6, 12), AbortRequest("a", "its job failed")
    seen = Audited()

    def asked(request: Any, answer: Any = None, running: tuple[Load, ...] = (), user: str = "ann") -> None:
        with contextlib.suppress(LockstepError):
            ask(door(answer or load(), ("ann",), seen, running), encode(request), user)

    asked(begin)
    asked(begin, user="bob")
    asked(commit, running=(load(),))
    asked(commit, StorageError("the disk is full"), (load(),))
    asked(abort, running=(load(),))
    told, seen.lines = seen.lines, []
    assert told == [
        ("begin", "ann", "10.0.0.9", "a", "done", ""),
        ("begin", "bob", "10.0.0.9", "a", "refused", Unauthorized.code),
        ("commit", "ann", "10.0.0.9", "a", "done", ""),
        ("commit", "ann", "10.0.0.9", "a", "failed", ServerFault.code),
        ("abort", "ann", "10.0.0.9", "a", "done", ""),
    ]
    # Renewals, questions, files to be cut and ends of what has ended change nothing.
    asked(begin, running=(load(),))
    asked(BeginRequest("a", "k", "t", 1000, dry_run=True))
    asked(commit, CommitAnswer("running", cut=("0-0-0",)), (load(),))
    asked(abort)
    asked(LookRequest("a"))
    assert seen.lines == []


def test_what_goes_wrong_is_told_as_clients_know_it() -> None:
    with pytest.raises(ProtocolViolation, match="Malformed LOAD"):
        ask(door(load()), b"\xff")
    with pytest.raises(Rejected, match="no load"):
        ask(door(Rejected("there is no load a")))
    with pytest.raises(ServerFault, match="disk"):
        ask(door(StorageError("the disk is full")))


def file(table_id: int, token: int, left: int, right: int) -> LoadFile:
    key = keys.row_key(keys.partition_prefix(table_id, token, b"k"), b"", 1, bytes(14))
    return LoadFile(0, 0, 0, left, right, 1, 10, key, key, b"")


def test_a_file_says_that_it_is_of_the_table_and_the_range() -> None:
    require_in_table(load(), file(3, 5, 0, 10))
    for wrong in (file(4, 5, 0, 10), file(3, 11, 0, 10), file(3, 0, 0, 10), file(3, 5, 10, 10)):
        with pytest.raises(InvalidRequest, match="not of the table"):
            require_in_table(load(), wrong)
    assert Range(0, 10).contains(10)


def test_rows_of_running_loads_are_among_what_may_still_come() -> None:
    def oldest(*loads: Load, hints: int | None = None) -> int | None:
        context: Any = SimpleNamespace(
            cluster=lambda: SimpleNamespace(loads=Loads(loads)),
            configuration=SimpleNamespace(timeouts=SimpleNamespace(write_ms=2000)),
        )
        kept: Any = SimpleNamespace(oldest_us=lambda: hints)
        return oldest_hint_us(context, kept, SimpleNamespace(oldest_us=lambda: None))  # type: ignore[arg-type]

    assert oldest() is None
    assert oldest(load(), load("b", 8_000_000)) == 6_000_000
    assert oldest(load(), hints=5_000_000) == 3_000_000
