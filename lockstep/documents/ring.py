"""`ring/1`: the ring of a cluster without a log, as one of its nodes has it; `ring-abort/1`: what came of an
operator's abort.
"""

from __future__ import annotations

import msgspec


class Pending(msgspec.Struct, frozen=True):
    """A proposal that the node promised, or accepted, and whose end it does not know: what it carries, and
    who asked for that."""

    name: str
    initiator: str = ""
    what: str = ""
    actor: str = ""


class Proposing(msgspec.Struct, frozen=True):
    """The proposal of the node itself. `missing`: whose answer it waits for."""

    name: str
    what: str = ""
    missing: tuple[str, ...] = ()


class RingReport(msgspec.Struct, frozen=True):
    """`designated`: the node that changes go through, 0 where none seems alive. `silent` members seem dead,
    `laggards` have not said that they have this ring. `blocked`: why nothing can be agreed on now. `alarms`:
    what shows that two changes were agreed on one ring; `ended`: how the node's last proposals ended."""

    schema: str = "ring/1"
    node: int = 0
    mode: str = ""
    epoch: int = 0
    fingerprint: str = ""
    designated: int = 0
    members: dict[str, str] = {}
    voters: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    laggards: tuple[str, ...] = ()
    pending: Pending | None = None
    proposing: Proposing | None = None
    waiting: int = 0
    blocked: str = ""
    alarms: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


class RingAborted(msgspec.Struct, frozen=True):
    schema: str = "ring-abort/1"
    name: str = ""
    text: str = ""


class Promised(msgspec.Struct, frozen=True):
    """What a node holds; `silent`: why it did not say."""

    node: int
    epoch: int = 0
    pending: Pending | None = None
    silent: str = ""


class Promises(msgspec.Struct, frozen=True):
    """`ring-promises/1`"""

    schema: str = "ring-promises/1"
    nodes: tuple[Promised, ...] = ()


class RingWhy(msgspec.Struct, frozen=True):
    """`ring-why/1`"""

    schema: str = "ring-why/1"
    epoch: int = 0
    reasons: tuple[str, ...] = ()


class UpgradeReport(msgspec.Struct, frozen=True):
    """`upgrade/1`: how far the cluster is on its way from the ring to a log, as the asked node has it.
    `state` is `not_upgraded`, `build_coordinator_state` or `done`; `joined`: whether this node has begun its
    part of the log. `waits`: what is missing, where this node drives it; `gave_up`: why the last one came to
    nothing. `can_abort`: as long as the log is not built."""

    schema: str = "upgrade/1"
    node: int = 0
    state: str = ""
    epoch: int = 0
    joined: bool = False
    initiator: int = 0
    ignored: tuple[int, ...] = ()
    begun_epoch: int = 0
    built_epoch: int = 0
    can_abort: bool = False
    waits: str = ""
    gave_up: str = ""


class UpgradeAborted(msgspec.Struct, frozen=True):
    """`upgrade-abort/1`"""

    schema: str = "upgrade-abort/1"
    text: str = ""
