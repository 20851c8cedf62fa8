"""Repairs that replace the metadata, over HTTP: a tool asks every node what it holds, has one of them plan,
and tells each of the plan, then of the decision.

Invariant: only the node's own token lets somebody ask, for what roles may do is part of what is replaced.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from lockstep.documents.recovery import (
    Absent,
    DroppedEntry,
    HeldMetadata,
    ManagementTruncation,
    MetadataReplacement,
    ReplacementStep,
)
from lockstep.node.recovery.messages import Decide
from lockstep.node.recovery.replacing import Replacing
from lockstep.node.services import NodeServices
from lockstep.recovery.management_cut import ManagementCut
from lockstep.recovery.plan import ResetPlan
from lockstep.recovery.replacing import FORCED, LOADED, TRUNCATION, Cut, Held, Put
from lockstep.server.admin.management_truncation import truncate_management
from lockstep.server.admin.operations import Operation, later, read_body
from lockstep.server.admin.recovery import actor_of
from lockstep.server.reports.leader_views import GROUPS, named, refuse_on_ring
from lockstep.server.reports.stories import entry_summary, kind_name
from lockstep.values.codec import UNREADABLE, Decoder, decoder, encode
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import RECOVERY_LISTED_ENTRIES_MAX

_BASE: Final = "/management/v1/recovery"
HELD_PATH: Final = f"{_BASE}/metadata/held"
LOAD_PATH: Final = f"{_BASE}/metadata/load"
FORCE_PATH: Final = f"{_BASE}/{{group}}/force-cms"
TRUNCATE_PATH: Final = f"{_BASE}/{{group}}/truncate"
PREPARE_PATH: Final = f"{_BASE}/metadata/prepare"
DECIDE_PATH: Final = f"{_BASE}/metadata/decide"
_SILENT: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "object"},
    "description": "Nodes that did not say, and why",
}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_HELD: Final = decoder(Held)
_PLAN: Final = decoder(ResetPlan)


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epoch: int


class _Silent(msgspec.Struct, frozen=True):
    node: int
    reason: str = ""


class _Truncation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    index: int
    below_commit_index: bool = False
    held: tuple[str, ...] = ()
    silent: tuple[_Silent, ...] = ()
    digest: str = ""


class _Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`value`: a packed value, in base64; empty for what the node has."""

    value: str = ""
    voters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    silent: tuple[_Silent, ...] = ()


class _Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plan: str


class _Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attempt: str
    go: bool


class Replacements:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._desk = node.membership.recovery
        self._part = Replacing(node.context.runtime, node.log, self._desk)

    async def held(self, body: Any) -> HeldMetadata:
        refuse_on_ring(self._node)
        asked = read_body(body, _Asked, "the body names no epoch")
        told = await self._part.hold(asked.epoch)
        return HeldMetadata(
            node=told.survey.node,
            cluster_id=told.survey.cluster_id,
            data=base64.b64encode(encode(told)).decode(),
            epoch=told.survey.epoch,
            broken=told.broken,
            can_plan=told.value_before,
            phase=told.phase,
            attempt=told.attempt,
            planned=told.planned,
        )

    async def truncate(self, group: str, body: Any, actor: str) -> MetadataReplacement | ManagementTruncation:
        """The plan; nothing is changed, but of cmg by a `digest`. Without what others hold, that of this node
        alone."""
        refuse_on_ring(self._node)
        wanted = read_body(body, _Truncation, "the body is no such wish")
        _refuse_unknown(group)
        if group == "cmg":
            taken = ManagementCut(wanted.index, actor, wanted.below_commit_index)
            return await truncate_management(self._node, taken, wanted.digest)
        cut = Cut(wanted.index, actor, wanted.below_commit_index)
        own = await self._part.hold(wanted.index, RECOVERY_LISTED_ENTRIES_MAX)
        told = [_decoded(_HELD, one) for one in wanted.held]
        held = [own, *(one for one in told if one.survey.node != own.survey.node)]
        plan = await self._part.cut(held, [one.node for one in wanted.silent], cut)
        return self._shown(plan, held, wanted.silent)

    async def load(self, body: Any, actor: str) -> MetadataReplacement:
        """The plan that puts a value on nodes; nothing is changed."""
        wanted = read_body(body, _Load, "the body is no such wish")
        if not wanted.value:
            raise ConfigurationError("the body has no value")
        return await self._put(LOADED, wanted, actor)

    async def force(self, group: str, body: Any, actor: str) -> MetadataReplacement:
        """The plan that makes these nodes the voters; nothing is changed. Both groups have the same ones, so
        it does not matter which of them is named."""
        wanted = read_body(body, _Load, "the body is no such wish")
        _refuse_unknown(group)
        if not wanted.voters or wanted.value:
            raise ConfigurationError("the body names the voters, and no value")
        return await self._put(FORCED, wanted, actor)

    async def _put(self, kind: str, wanted: _Load, actor: str) -> MetadataReplacement:
        refuse_on_ring(self._node)
        own = await self._part.hold(0)
        told = [_decoded(_HELD, one) for one in wanted.held]
        held = [own, *(one for one in told if one.survey.node != own.survey.node)]
        wish = Put(kind, actor, self._ids(wanted.voters), self._ids(wanted.nodes))
        plan = self._part.put(_bytes(wanted.value), held, wish)
        return self._shown(plan, held, wanted.silent)

    def _ids(self, names: tuple[str, ...]) -> tuple[NodeId, ...]:
        return tuple(info.id for info in named(self._node, ",".join(names)))

    def _shown(self, plan: ResetPlan, held: list[Held], silent: tuple[_Silent, ...]) -> MetadataReplacement:
        registry = self._node.log.registry
        entries = {entry.hash: entry for one in held for entry in one.entries}
        committed = max(one.committed for one in held)
        ordered = sorted(entries.values(), key=lambda one: (one.epoch, one.hash))
        reasons = {one.node: one.reason for one in silent}
        directory = self._node.log.cluster.directory
        return MetadataReplacement(
            kind=plan.kind,
            cluster_name=plan.cluster_name,
            former_id=plan.former_id,
            cluster_id=plan.cluster_id,
            attempt=plan.attempt,
            plan=base64.b64encode(encode(plan)).decode(),
            epoch=plan.last.epoch,
            dropped=tuple(
                DroppedEntry(
                    one.epoch,
                    kind_name(one.kind),
                    one.actor,
                    one.commit_time_us,
                    one.epoch <= committed,
                    tuple(sorted(has.survey.node for has in held if one in has.entries)),
                    entry_summary(registry, one),
                )
                for one in ordered
            ),
            more=0
            if plan.kind != TRUNCATION
            else max(max(one.last_epoch for one in held) - max((one.epoch for one in ordered), default=0), 0),
            voters=plan.voters,
            participants=plan.participants,
            absent=tuple(
                Absent(
                    node,
                    directory.by_id[node].address if node in directory.by_id else "",
                    node in self._node.log.cluster.voters,
                    reasons.get(node, "it was not asked"),
                )
                for node in plan.absent
            ),
            lost=plan.lost,
        )

    async def prepare(self, body: Any) -> ReplacementStep:
        refuse_on_ring(self._node)
        wanted = read_body(body, _Plan, "the body has no plan")
        return ReplacementStep(await self._part.prepare(_decoded(_PLAN, wanted.plan)))

    async def decide(self, body: Any) -> ReplacementStep:
        wanted = read_body(body, _Decision, "the body is no decision")
        done = await self._desk.decide(Decide(wanted.attempt, wanted.go))
        return ReplacementStep(done.node)

    def operations(self) -> list[Operation]:
        """For the admin API."""

        def breaking(path: str, summary: str, perform: Any, answer: str, **body: Any) -> Operation:
            required = [name for name in ("epoch", "index", "plan", "attempt", "go") if name in body]
            schema = {"type": "object", "required": required, "properties": body}
            return Operation("POST", path, summary, later(perform), answer, body=schema, breaks_glass=True)

        some = {"voters": _TEXTS, "nodes": _TEXTS, "held": _TEXTS, "silent": _SILENT}
        index, flag, text = {"type": "integer"}, {"type": "boolean"}, {"type": "string"}
        return [
            breaking(
                HELD_PATH,
                "What this node holds of the log from an epoch on, for a plan",
                lambda request, _: self.held(request.body),
                "What a plan is made from",
                epoch=index,
            ),
            breaking(
                TRUNCATE_PATH,
                "Plan to take entries out of the log; of cmg, carry the plan of this digest out",
                lambda request, values: self.truncate(values["group"], request.body, actor_of(request)),
                "The plan, and which entries go",
                index=index,
                belowCommitIndex=flag,
                held=_TEXTS,
                silent=_SILENT,
                digest=text,
            ),
            breaking(
                LOAD_PATH,
                "Plan to put other metadata on nodes; nothing is changed",
                lambda request, _: self.load(request.body, actor_of(request)),
                "The plan",
                value=text,
                **some,
            ),
            breaking(
                FORCE_PATH,
                "Plan to make nodes the voters of both groups, whatever these say; nothing is changed",
                lambda request, values: self.force(values["group"], request.body, actor_of(request)),
                "The plan",
                **some,
            ),
            breaking(
                PREPARE_PATH,
                "Write a plan down that replaces this node's metadata; nothing is changed",
                lambda request, _: self.prepare(request.body),
                "That it is durable",
                plan=text,
            ),
            breaking(
                DECIDE_PATH,
                "Carry a plan out that was written down, or give it up",
                lambda request, _: self.decide(request.body),
                "That it is durable",
                attempt=text,
                go=flag,
            ),
        ]


def _refuse_unknown(group: str) -> None:
    if group not in GROUPS:
        raise ConfigurationError(f"there is no group {group}", hint=f"there are {', '.join(GROUPS)}")


def _decoded(kind: Decoder[Any], text: str) -> Any:
    try:
        return kind.decode(_bytes(text))
    except UNREADABLE as error:
        raise ConfigurationError(f"what other nodes said, or a plan, cannot be read: {error}") from error


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ConfigurationError(f"the body has what is no base64: {error}") from error
