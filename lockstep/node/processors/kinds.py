"""Which processor a node has: the built-in kinds, and those of other distributions.

Invariant: a kind is chosen by configuration alone, once, before the node starts. `raft` is made by the node
itself, when it becomes a member of the consensus group; every other kind is a factory called once at start.
A distribution brings a kind by an entry point in the group `lockstep.processors`: its name is the kind, its
object a factory.

The processor of a node that never takes part in the metadata service: submissions are others' to judge.

Invariant: it appends nothing and claims nothing; submissions made on such a node are forwarded to the voters
(node.submission), and those that others send here are answered NotLeader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from lockstep.metadata.log.registry import Registry
from lockstep.node.configuration import Configuration
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.processors.base import LocalProcessor, Processor, Settle
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import ConfigurationError, NotLeader


class RemoteProcessor(Processor):
    def take(self, submit: Submit, settle: Settle) -> None:
        settle(NotLeader(None))

    def leading_term(self) -> int:
        raise NotLeader(None)


ENTRY_POINT_GROUP: Final = "lockstep.processors"
RAFT: Final = "raft"
LOCAL: Final = "local"
REMOTE: Final = "remote"


class Surroundings(msgspec.Struct, frozen=True):
    """What a factory gets. Committed entries go into `state.offer`, in order of their epochs."""

    runtime: Runtime
    state: MetadataState
    registry: Registry
    configuration: Configuration


Factory = Callable[[Surroundings], Processor]


def _local(given: Surroundings) -> Processor:
    return LocalProcessor(given.runtime, given.state, given.registry)


def _remote(_given: Surroundings) -> Processor:
    return RemoteProcessor()


BUILT_IN: Final[Mapping[str, Factory]] = {LOCAL: _local, REMOTE: _remote}


class EntryPoint(Protocol):
    """As importlib.metadata has them."""

    @property
    def name(self) -> str: ...

    def load(self) -> object: ...


def from_entry_points(points: Iterable[EntryPoint], kind: str) -> dict[str, Factory]:
    """The factory of `kind` among these entry points, if it is one of theirs; no other is loaded."""
    found: dict[str, Factory] = {}
    for point in points:
        if point.name != kind or kind in found:
            continue
        factory = point.load()
        if not callable(factory):
            raise ConfigurationError(f"the entry point {kind} of {ENTRY_POINT_GROUP} is not callable")
        found[kind] = factory
    return found


def chosen(configuration: Configuration, others: Mapping[str, Factory]) -> Factory | None:
    """The factory of the configured kind, None for `raft`. ConfigurationError when it is not known or does
    not fit the rest of the configuration."""
    kind = configuration.cms.processor
    if kind == RAFT:
        return None
    factory = BUILT_IN.get(kind) or others.get(kind)
    if factory is None:
        known = ", ".join(sorted((RAFT, *BUILT_IN, *others)))
        raise ConfigurationError(f"no metadata processor {kind} is installed", hint=f"there are: {known}")
    founders = configuration.cluster.founders
    if kind == LOCAL and not (configuration.is_founder and len(founders) == 1):
        raise ConfigurationError(
            "the local metadata processor is for a node that founds its cluster alone",
            hint="make this node the only one in [cluster] founders, or choose another [cms] processor",
        )
    if kind == REMOTE and configuration.is_founder:
        raise ConfigurationError(
            "a founder keeps the metadata and cannot be remote",
            hint="choose [cms] processor raft, or join with [cluster] seeds",
        )
    return factory
