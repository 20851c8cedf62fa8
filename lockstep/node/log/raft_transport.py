"""Raft messages between nodes: one verb for all groups, each message handed to its group's member here.

Invariant: a message reaches only the member of the group that it names; one for a group that has no member
on this node is dropped, as a lost one would be.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from lockstep.consensus.messages import Message, decode_message, encode_message
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.values.errors import FrameCorrupt

#: The group whose log is the metadata log.
METADATA_GROUP: Final = 1
#: The group that holds what the cluster is: its name, its lineage, whom it admits.
MANAGEMENT_GROUP: Final = 2


class RaftPayload(msgspec.Struct, frozen=True, array_like=True):
    """One Raft message on its way between nodes, already encoded."""

    data: bytes


class GroupMember(Protocol):
    """What gets a group's messages on this node."""

    group: int

    def received(self, peer: PeerInfo, message: Message) -> None: ...


class RaftTransport:
    def __init__(self, internode: Internode) -> None:
        self._internode = internode
        self._members: dict[int, GroupMember] = {}
        internode.register_fast(verbs.RAFT, RaftPayload, RaftPayload, self._receive)

    def attach(self, member: GroupMember) -> None:
        assert member.group not in self._members, f"group {member.group} has one member on a node"
        self._members[member.group] = member

    def detach(self, member: GroupMember) -> None:
        if self._members.get(member.group) is member:
            del self._members[member.group]

    def send(self, address: Address, message: Message) -> None:
        self._internode.send(address, verbs.RAFT, RaftPayload(encode_message(message)))

    def _receive(self, peer: PeerInfo, payload: RaftPayload, _respond: object) -> None:
        try:
            message = decode_message(payload.data)
        except msgspec.MsgspecError as error:
            raise FrameCorrupt(f"not a Raft message: {error}") from error
        member = self._members.get(message.group)
        if member is not None:
            member.received(peer, message)
