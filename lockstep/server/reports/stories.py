"""Stories for the admin API: what the log did to one thing, entry after entry; and entries of the log in
words.

Invariant: made by applying the very entries of the log again, from the oldest value that this node can read;
where it begins later than the log does, it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from lockstep.documents.requests import Event, Story
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.operations import Body
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.schema.model import Replication
from lockstep.topology import story
from lockstep.values.errors import CannotApply, ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.limits import ENTRIES_PER_TURN_MAX, LOG_FETCH_ENTRIES_MAX, STORY_EVENTS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

if TYPE_CHECKING:
    from lockstep.server.admin.http import HttpRequest

#: A summary is one line of a table.
_SUMMARY_CHARACTERS_MAX = 200
#: Names shown of a list; a table may have hundreds of columns.
_NAMES_SHOWN_MAX = 4


def kind_name(kind: int) -> str:
    """`schema_change`, or `kind 99` for one that this version does not know."""
    try:
        return EntryKind(kind).name.lower()
    except ValueError:
        return f"kind {kind}"


def entry_summary(registry: Registry, entry: LogEntry) -> str:
    """What an entry does, in one line."""
    try:
        body: Any = registry.decode(entry.kind, entry.body)
    except CannotApply as error:
        return error.message
    for name in ("wanted", "step"):
        # An entry around another one, which says more of it.
        inner = getattr(body, name, None)
        body = inner if isinstance(inner, msgspec.Struct) else body
    change = getattr(body, "change", None)
    text = _fields(change if isinstance(change, msgspec.Struct) else body)
    return text if len(text) <= _SUMMARY_CHARACTERS_MAX else text[: _SUMMARY_CHARACTERS_MAX - 1] + "…"


def _fields(value: msgspec.Struct) -> str:
    return f"{type(value).__name__} {' '.join(_texts(value))}"


def _texts(value: msgspec.Struct) -> Iterator[str]:
    """Fields that say something; those of the body of a kind of operation stand among the others."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Body):
            yield f"kind={field.about.kind}"
            yield from _texts(cast(msgspec.Struct, field))
            continue
        if name == "salted_hash":
            yield from ["password"] if field else []
            continue
        if isinstance(field, tuple):
            if field:
                yield f"{name}={_elements(field)}"
        elif isinstance(field, bytes):
            if field:
                yield f"{name}={_bytes(field)}"
        elif isinstance(field, Replication):
            yield f"{name}={field.text()}"
        elif field not in ("", None, False):
            yield f"{name}={field}"


def _elements(elements: tuple[Any, ...]) -> str:
    """`(c, w)` for elements that have names, `(class: SimpleStrategy)` for pairs, `(1, 2)`
    for ids, `3 items` for others."""
    texts = [_name(element) for element in elements[:_NAMES_SHOWN_MAX]]
    if "" in texts:
        return "1 item" if len(elements) == 1 else f"{len(elements)} items"
    more = len(elements) - _NAMES_SHOWN_MAX
    return f"({', '.join(texts)}{f', {more} more' if more > 0 else ''})"


def _name(element: Any) -> str:
    if isinstance(element, str | int):
        return str(element)
    if isinstance(element, tuple) and len(element) == 2:
        return f"{element[0]}: {element[1]}" if all(isinstance(part, str | int) for part in element) else ""
    named = getattr(element, "name", "")
    return named if isinstance(named, str) else ""


def _bytes(data: bytes) -> str:
    """The beginning in hexadecimal: enough to compare by eye."""
    return data[:8].hex() + ("…" if len(data) > 8 else "")


Tell = Callable[[ClusterMetadata, ClusterMetadata], Iterator[str]]


class Stories:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    async def tell(self, request: HttpRequest) -> Story:
        """A `story/1` document. ConfigurationError when there never was such a thing."""
        kind, name = request.query.get("kind", ""), request.query.get("id", "")
        if kind == "token":
            return await self._token(name, request.query.get("keyspace", ""), request.query.get("table", ""))
        if kind == "node":
            return await self._of(f"node {self.node_id(name)}", partial(_node, node=self.node_id(name)))
        number = _number(kind, name)
        if kind == "request":
            found = await self._of(f"request {number}", partial(_request, request=number))
        elif kind == "operation":
            found = await self._of(f"operation {number}", partial(_operation, operation=number))
        elif kind == "epoch":
            return await self._epoch(number)
        else:
            raise ConfigurationError(
                f"`{kind}` has no story", hint="node, request, operation, epoch and token have"
            )
        if not found.events:
            hint = "lockstep topology requests" if kind == "request" else "lockstep cms log"
            raise ConfigurationError(f"there is no {kind} {number} in the log", hint=hint)
        return found

    def node_id(self, name: str) -> int:
        """The node with this id, host id or address, also one that has left; the one that is there now when
        several had the address."""
        nodes = self._node.log.cluster.directory.nodes
        for node in reversed(nodes):
            if name in (str(node.id), node.host_id, node.address):
                return node.id
        known = ", ".join(f"{node.id} ({node.address})" for node in nodes)
        raise ConfigurationError(
            f"there never was a node {name}", hint=f"nodes by id and address, left ones included: {known}"
        )

    async def _token(self, name: str, keyspace: str, table: str) -> Story:
        token = _number("token", name)
        if not TOKEN_MIN < token <= TOKEN_MAX:
            raise ConfigurationError(f"{token} is no token", hint=f"{TOKEN_MIN + 1} to {TOKEN_MAX}")
        schema = self._node.log.cluster.schema
        if keyspace in schema.by_name and schema.by_name[keyspace].tablets is not None:
            raise ConfigurationError(
                f"tables of keyspace {keyspace} have tablets: it has no ranges of its own",
                hint=f"`lockstep ring {keyspace}.TABLE` shows who holds a token now",
            )
        names = [keyspace] if keyspace else [one.name for one in schema.keyspaces if one.tablets is None]
        if table and (keyspace not in schema.by_name or table not in schema.by_name[keyspace].by_name):
            raise ConfigurationError(
                f"there is no table {keyspace}.{table}", hint=f"lockstep describe {keyspace}"
            )
        title = f"token {token}" + (f" of {keyspace}" if keyspace else "")
        found = await self._of(title, partial(_tokens, keyspaces=names, token=token))
        if keyspace and not found.events:
            known = ", ".join(one.name for one in schema.keyspaces) or "none"
            raise ConfigurationError(f"there never was a keyspace {keyspace}", hint=f"keyspaces: {known}")
        return found

    async def _epoch(self, epoch: int) -> Story:
        node = self._node
        if not 1 <= epoch <= node.log.cluster.epoch:
            raise ConfigurationError(f"this node has epochs 1 to {node.log.cluster.epoch}, not {epoch}")
        past = Past(node.log.state)
        before = await past.value_at(epoch - 1)
        (entry,) = past.entries(epoch, epoch)
        after = apply_entry(before, entry, node.log.state.registry)
        texts = list(story.of_epoch(before, after)) or [entry_summary(node.log.registry, entry)]
        return _document(f"epoch {epoch}", 0, [_event(entry, text) for text in texts])

    async def _of(self, title: str, tell: Tell) -> Story:
        node = self._node
        past = Past(node.log.state)
        first = past.oldest_epoch
        value = await past.value_at(first)
        events: list[Event] = []
        while value.epoch < node.log.cluster.epoch:
            last = value.epoch + LOG_FETCH_ENTRIES_MAX
            for number, entry in enumerate(past.entries(value.epoch + 1, last)):
                after = apply_entry(value, entry, node.log.state.registry)
                events += [_event(entry, text) for text in tell(value, after)]
                value = after
                if number % ENTRIES_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
        return _document(title, first, events)


def _node(before: ClusterMetadata, after: ClusterMetadata, *, node: int) -> Iterator[str]:
    return story.of_node(before, after, NodeId(node))


def _request(before: ClusterMetadata, after: ClusterMetadata, *, request: int) -> Iterator[str]:
    return story.of_request(before, after, request)


def _operation(before: ClusterMetadata, after: ClusterMetadata, *, operation: int) -> Iterator[str]:
    return story.of_operation(before, after, operation)


def _tokens(
    before: ClusterMetadata, after: ClusterMetadata, *, keyspaces: list[str], token: int
) -> Iterator[str]:
    for keyspace in keyspaces:
        for text in story.of_token(before, after, keyspace, token):
            yield f"{keyspace}: {text}" if len(keyspaces) > 1 else text


def _event(entry: LogEntry, text: str) -> Event:
    return Event(entry.epoch, entry.commit_time_us, kind_name(entry.kind), entry.actor, text)


def _document(title: str, first: int, events: list[Event]) -> Story:
    """The newest events, when there are more than anyone reads."""
    left_out = max(0, len(events) - STORY_EVENTS_MAX)
    return Story("story/1", title, first, left_out, tuple(events[-STORY_EVENTS_MAX:]))


def _number(kind: str, name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ConfigurationError(f"a {kind} is a number, not {name!r}") from None
