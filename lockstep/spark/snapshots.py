"""Snapshots: one table at one instant, opened as read sessions at its replicas, for many processes to read.

Invariant: a snapshot is data that names nodes by their ids and ranges by their tokens; where a node is now is
asked when it is read. Of each range it names the nodes that reads asked for at one epoch and that fixed their
content then, as many as its consistency level wants or more. It holds every write that was acknowledged at
that level before it was opened, and is read as of one second.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from lockstep.scans.messages import (
    OPENED,
    PAYLOAD_KEY,
    SECRET_BYTES,
    SessionNode,
    SessionOpened,
    SessionOrder,
    SessionRange,
)
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.session_files import EXPIRED, Expired
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.options import Options
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import (
    ConfigurationError,
    InvalidRequest,
    LockstepError,
    PeerUnreachable,
    Unavailable,
)
from lockstep.values.ids import Consistency

#: How often opening begins anew because the nodes did not agree on who owns what.
_ATTEMPTS_MAX: Final = 5
_PAUSE_S: Final = 0.5
#: Nodes that open a session at a time, for one client.
_ASKED_AT_ONCE_MAX: Final = 16
_COUNTS: Final = {Consistency.ONE: 1, Consistency.LOCAL_ONE: 1, Consistency.TWO: 2, Consistency.THREE: 3}
_MAJORITIES: Final = (Consistency.QUORUM, Consistency.LOCAL_QUORUM)


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """`ranges` cover the ring in order; each has the nodes that can be read, of which `wanted` must be."""

    session: str
    secret: bytes
    now_s: int
    table: ScanTable
    nodes: tuple[SessionNode, ...]
    ranges: tuple[SnapshotRange, ...]

    def node(self, number: int) -> SessionNode:
        return next(node for node in self.nodes if node.id == number)


class SnapshotRange(msgspec.Struct, frozen=True, array_like=True):
    left: int
    right: int
    nodes: tuple[int, ...]
    wanted: int


SNAPSHOT: Final = decoder(Snapshot)


def open_snapshot(options: Options) -> Snapshot:
    """PeerUnreachable, Unavailable, ConfigurationError, or what a node refuses with."""
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        order = SessionOrder("open", uuid.uuid4().hex, os.urandom(SECRET_BYTES), options.lease_ms)
        try:
            return _opened(options, order)
        except Unavailable:
            # Nodes are down, or have not heard of the same change yet.
            if attempt == _ATTEMPTS_MAX:
                raise
            time.sleep(_PAUSE_S * attempt * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt has ended")


def _opened(options: Options, order: SessionOrder) -> Snapshot:
    first = _first(options, order)
    asked = sorted({node for part in first.ranges for node in part.reads})
    by_id = {node.id: node for node in first.nodes}
    others = [by_id[number] for number in asked if number != first.node and number in by_id]
    found, failures = {first.node: first}, []
    for node, answer in zip(others, _each(options, others, order), strict=True):
        if isinstance(answer, SessionOpened):
            found[node.id] = answer
        else:
            failures.append(f"{node.address}: {answer.message}")
    try:
        return _agreed(options, order, first, found)
    except Unavailable as error:
        close_sessions(options, order, [by_id[number] for number in found if number in by_id])
        error.message = "; ".join([error.message, *failures])
        raise


def _each(
    options: Options, nodes: Sequence[SessionNode], order: SessionOrder
) -> list[SessionOpened | LockstepError]:
    """What nodes have of a session, or why they do not; they fix their contents at the same time."""

    def asked(node: SessionNode) -> SessionOpened | LockstepError:
        try:
            return ask(options, endpoint_of(options, node), order)
        except LockstepError as error:
            return error

    if len(nodes) < 2:
        return [asked(node) for node in nodes]
    with ThreadPoolExecutor(min(len(nodes), _ASKED_AT_ONCE_MAX)) as threads:
        return list(threads.map(asked, nodes))


def _agreed(
    options: Options, order: SessionOrder, first: SessionOpened, found: dict[int, SessionOpened]
) -> Snapshot:
    """What those nodes that agree with the newest one have together. Unavailable."""
    newest = max(found.values(), key=lambda one: (one.epoch, one.node == first.node))
    here = {number: one for number, one in found.items() if one.table == newest.table}
    ranges = tuple(readable(part, newest, here, first.dc, options.consistency) for part in newest.ranges)
    now_s = max(one.opened_us for one in found.values()) // 1_000_000
    return Snapshot(order.id, order.secret, now_s, newest.table, newest.nodes, ranges)


def _first(options: Options, order: SessionOrder) -> SessionOpened:
    failures = []
    for endpoint in options.endpoints:
        try:
            return ask(options, endpoint, order)
        except PeerUnreachable as error:
            failures.append(error.message)
    raise PeerUnreachable(
        f"none of the hosts answers: {'; '.join(failures)}", hint="check the options hosts and port"
    )


def readable(
    part: SessionRange,
    newest: SessionOpened,
    found: dict[int, SessionOpened],
    dc: str,
    consistency: Consistency,
) -> SnapshotRange:
    """Unavailable when too few nodes have the range of the same replicas, ConfigurationError when there are
    too few that have rows."""
    dcs = {node.id: node.dc for node in newest.nodes}
    local = consistency in (Consistency.LOCAL_QUORUM, Consistency.LOCAL_ONE)
    eligible = [node for node in part.reads if not local or dcs.get(node) == dc]
    witnesses = sum(1 for node in part.witnesses if not local or dcs.get(node) == dc)
    if consistency in _MAJORITIES and witnesses:
        # So many that whoever acknowledged a write, be it a witness among them, has one of these.
        wanted = (len(eligible) + witnesses + 1) // 2
    elif consistency in _MAJORITIES:
        wanted = len(eligible) // 2 + 1
    elif consistency is Consistency.ALL:
        wanted = len(eligible)
    elif consistency in _COUNTS:
        wanted = _COUNTS[consistency]
    else:
        raise ConfigurationError(f"a snapshot is not read at {consistency.name}")
    if witnesses and len(eligible) < max(wanted, 1):
        raise ConfigurationError(
            f"a snapshot at {consistency.name} is of {max(wanted, 1)} full replicas of each range, and there "
            f"are {len(eligible)}: witnesses have no rows",
            hint="read it at a lower level, or without the option snapshot",
        )
    nodes = tuple(node for node in eligible if node in found and part in found[node].ranges)
    if len(nodes) < max(wanted, 1):
        lacking = Unavailable(int(consistency), max(wanted, 1), len(nodes))
        if witnesses:
            lacking.message = f"{lacking.message} (only full replicas count here: witnesses have no rows)"
        raise lacking
    return SnapshotRange(part.left, part.right, nodes, max(wanted, 1))


def endpoint_of(options: Options, node: SessionNode) -> Endpoint:
    return msgspec.structs.replace(options.endpoint(node.address), port=node.cql_port)


def ask(options: Options, endpoint: Endpoint, order: SessionOrder) -> SessionOpened:
    """What one node has of a session. PeerError, RequestError."""
    answer = _asked(options, endpoint, order)
    if not answer:
        raise ConfigurationError(
            f"{endpoint.host} knows of no read sessions", hint="leave out the option snapshot"
        )
    return OPENED.decode(answer)


def _asked(options: Options, endpoint: Endpoint, order: SessionOrder) -> bytes:
    pool = pool_of(os.getpid())
    connection: CqlConnection = pool.take(endpoint, options.timeout_s)
    try:
        text = f"SELECT * FROM {_quoted(options.keyspace)}.{_quoted(options.table)} LIMIT 1"
        return connection.asked(text, {PAYLOAD_KEY: encode(order)}).get(PAYLOAD_KEY) or b""
    finally:
        pool.give_back(connection)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def close_snapshot(options: Options, snapshot: Snapshot) -> None:
    """End its sessions; those of nodes that do not answer end with their lease."""
    close_sessions(options, SessionOrder("close", snapshot.session, snapshot.secret), snapshot.nodes)


def close_sessions(options: Options, order: SessionOrder, nodes: Sequence[SessionNode]) -> None:
    order = msgspec.structs.replace(order, do="close")
    for node in nodes:
        try:
            _asked(options, endpoint_of(options, node), order)
        except LockstepError:
            continue


class Locations:
    """Where the readers of a snapshot's nodes answer, as this process has found out."""

    def __init__(self, options: Options, snapshot: Snapshot) -> None:
        self._options = options
        self._snapshot = snapshot
        self._known: dict[int, tuple[str, int]] = {}
        #: Nodes that failed, the last one last.
        self.failed: dict[int, None] = {}

    def of(self, node: int) -> tuple[str, int]:
        """Host and port. PeerError; InvalidRequest when the session is no more there."""
        found = self._known.get(node)
        if found is None:
            snapshot = self._snapshot
            named = self._snapshot.node(node)
            endpoint = endpoint_of(self._options, named)
            order = SessionOrder("find", snapshot.session, snapshot.secret)
            try:
                answer = ask(self._options, endpoint, order)
            except InvalidRequest as error:
                # The protocol has no code of its own for it.
                raise Expired(snapshot.session) if EXPIRED in error.message else error from None
            found = self._known[node] = (named.address, answer.port)
        return found

    def forget(self, node: int) -> None:
        """It failed: ask it last, and where it is again."""
        self._known.pop(node, None)
        self.failed.pop(node, None)
        self.failed[node] = None

    def order(self, part: SnapshotRange, turn: int) -> list[int]:
        """The range's nodes in the order in which to ask them."""
        at = turn % len(part.nodes)
        turned = (*part.nodes[at:], *part.nodes[:at])
        calm = [node for node in turned if node not in self.failed]
        return [*calm, *(node for node in self.failed if node in turned)]


def pieces_of(snapshot: Snapshot, left: int, right: int) -> Iterator[tuple[int, int, SnapshotRange]]:
    """A range of tokens, cut where its replicas change."""
    for part in snapshot.ranges:
        low, high = max(left, part.left), min(right, part.right)
        if low < high:
            yield low, high, part
