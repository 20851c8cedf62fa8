"""Who the voters of the metadata group are, and where; and which host each founder of a cluster is, written
down before this one takes part in consensus.

Invariant: a voter is a host, known by its host id from the first entry's directory, or before that from what
the founders bound themselves to. An address only says where to find it: whoever else uses that address is not
the voter, and a voter that moved is found where it was last heard. Written once and never changed; meaningful
until the first entry of the log is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.internode.handshake import Address
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.placing import named_managers
from lockstep.node.log.journal import Journal
from lockstep.node.log.metadata_state import MetadataState
from lockstep.runtime.ports import Disk
from lockstep.values.codec import decoder, encode
from lockstep.values.ids import NodeId

FOUNDERS_PATH = "raft/founders"


class BoundFounders(msgspec.Struct, frozen=True, array_like=True):
    """Addresses and host ids of all founders, in the configured order; voter i is number i - 1."""

    addresses: tuple[Address, ...]
    host_ids: tuple[str, ...]


_DECODER = decoder(BoundFounders)


class FoundersFile:
    """`value` is None until this node bound itself; it never changes afterwards."""

    def __init__(self, disk: Disk) -> None:
        self._journal = Journal(disk, FOUNDERS_PATH)
        self.value: BoundFounders | None = None

    def load(self) -> None:
        records = self._journal.load_as(_DECODER)
        self.value = records[0] if records else None

    async def bind(self, value: BoundFounders) -> None:
        """Durable on return."""
        assert self.value is None, "a founder binds itself once"
        await self._journal.append(encode(value))
        self.value = value


#: A new cluster begins with one voter, its first founder; the group then grows with the cluster.
FIRST_VOTER = 1


class Member(msgspec.Struct, frozen=True):
    """Where a voter is, and which host it is."""

    address: Address
    host_id: str


#: Who goes on without the node that it sees off: who leaves may be gone before it has told the others so.
_STAYING = (NodeState.NORMAL, NodeState.REBUILDING)


def designated(cluster: ClusterMetadata, own: int, alive: Callable[[int], bool]) -> NodeId:
    """The node that changes go through where there is no log; 0 where no member of the ring seems alive.

    It stays, if anybody does. One that is shut out is asked for nothing but its voice.
    """
    shut_out = cluster.excluded_by_node
    members = [node for node in cluster.directory.nodes if node.owns_tokens and node.id not in shut_out]
    living = [node for node in members if node.id == own or alive(node.id)]
    staying = [node for node in living if node.state in _STAYING]
    return next((node.id for node in (*staying, *living)), NodeId(0))


class Voters:
    """`alive(node)` is an opinion."""

    def __init__(
        self,
        state: MetadataState,
        founders: FoundersFile,
        alive: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._state = state
        self._founders = founders
        self.alive = alive
        self._seen_at: dict[str, Address] = {}

    def ids(self) -> Sequence[int]:
        """Voters' node ids, ascending; empty when nothing was founded or begun to be.

        Without a log these are the nodes that have a voice on the ring.
        """
        cluster = self._state.current
        if cluster.is_on_ring:
            return [node.id for node in cluster.directory.nodes if node.owns_tokens]
        return cluster.voters or self.founding()

    def founding(self) -> Sequence[int]:
        """Whom the groups began with: the first founder alone; the same after every restart.

        Empty on a node that is no founder.
        """
        return (FIRST_VOTER,) if self._founders.value is not None else ()

    def member(self, voter: int) -> Member | None:
        """None when there is no such node."""
        info = self._state.current.directory.by_id.get(NodeId(voter))
        bound = self._founders.value
        if info is not None:
            host_id, address = info.host_id, (info.address, info.internode_port)
        elif bound is not None and 0 < voter <= len(bound.host_ids):
            host_id, address = bound.host_ids[voter - 1], bound.addresses[voter - 1]
        else:
            return None
        return Member(self._seen_at.get(host_id, address), host_id)

    def members(self) -> dict[int, Member]:
        found = ((voter, self.member(voter)) for voter in self.ids())
        return {voter: member for voter, member in found if member is not None}

    def named_managers(self) -> Sequence[int]:
        """Nodes that an operator named for the management group."""
        return named_managers(self._state.current)

    def managers(self) -> dict[int, Member]:
        """Where the management group is to be found: the nodes that were named for it, then the voters."""
        numbers = dict.fromkeys((*named_managers(self._state.current), *self.ids()))
        found = ((number, self.member(number)) for number in numbers)
        return {number: member for number, member in found if member is not None}

    def asked(self) -> tuple[Member, ...]:
        """Whom to ask for a change: the voters, or without a log the one node that changes go through."""
        members, cluster = self.members(), self._state.current
        if not cluster.is_on_ring:
            return tuple(members.values())
        own = cluster.directory.by_host_id.get(self._state.newest.host_id)
        chosen = members.get(designated(cluster, own.id if own is not None else 0, self.alive))
        return (chosen,) if chosen is not None else tuple(members.values())

    def id_of(self, host_id: str) -> int | None:
        """Which member this host is: a voter, or a node that becomes one."""
        coming = self._state.current.service.members or self.founding()
        members = ((number, self.member(number)) for number in coming)
        return next((n for n, member in members if member is not None and member.host_id == host_id), None)

    def is_first(self, host_id: str) -> bool:
        """Whether this host is the founder that begins the groups."""
        bound = self._founders.value
        return bound is not None and bound.host_ids[FIRST_VOTER - 1] == host_id

    def seen(self, host_id: str, address: Address) -> None:
        """If it is a member, it is at this address; that wins over the metadata while an address changes."""
        if self._seen_at.get(host_id) != address and self.id_of(host_id) is not None:
            self._seen_at[host_id] = address
