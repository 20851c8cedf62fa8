"""Where every replica is to lie: the target that moves are planned toward.

A target is computed for one *domain* at a time: a rack, where each tablet has as many replicas in each rack,
or else a data centre. Invariants: a target has each tablet's replicas on different nodes, and no tablet has
more replicas in one rack than it had; what drains has nothing left, or the tablet is named that has nowhere
to go, and then its node keeps everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.placement.tablets.calm import is_apart
from lockstep.placement.tablets.load import (
    SMALLEST_SHARE,
    Drain,
    Host,
    LoadStatistics,
    can_receive,
    is_measured,
)
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.moves import Move, MoveKind, Running, Why
from lockstep.placement.tablets.packing import NODE_EXCHANGES, RATE_UNITS, Packing, Piece, Spot
from lockstep.placement.tablets.resize import NO_RESIZE, Resize, ResizeKind, moves_together, tablet_loads
from lockstep.placement.tablets.shards import Replica
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import TARGET_TABLET_BYTES

#: A node takes no tablet that would fill its disk above this share: merging needs room.
DISK_SHARE_MAX: Final = 0.98


class BalancedTable(msgspec.Struct, frozen=True):
    """A placement group with tablets. `lists`: the racks of data centres that have such a list; `is_on`:
    whether it is moved for balance; `target_bytes` of one tablet; `resize`: what is decided about it;
    `is_finalising`: that waits for moves to end, or for its new map to be everywhere."""

    map: TabletMap
    lists: Mapping[str, Sequence[str]] = {}
    is_on: bool = True
    target_bytes: int = TARGET_TABLET_BYTES
    resize: Resize = NO_RESIZE
    is_finalising: bool = False

    @property
    def is_merging(self) -> bool:
        return self.resize.kind is ResizeKind.MERGE

    @property
    def is_balanced(self) -> bool:
        """Pairs that came together to be merged are not taken apart for balance."""
        return self.is_on and not self.is_merging and not self.is_finalising


class Cluster(msgspec.Struct, frozen=True):
    """What a target follows from. `is_on`: whether anything is moved for balance; `held`: tablets that
    something else has, by group and last token. `is_calm`: it lay evenly, and nothing is to be moved for what
    may be chance."""

    hosts: Sequence[Host]
    tables: Sequence[BalancedTable]
    statistics: LoadStatistics
    running: Sequence[Running] = ()
    held: Mapping[tuple[int, int], str] = {}
    is_on: bool = True
    is_calm: bool = False


class DrainFailure(msgspec.Struct, frozen=True):
    """A node cannot be drained: this tablet has nowhere to go."""

    node: NodeId
    group: int
    right: int
    reason: str


class Domain(msgspec.Struct, frozen=True):
    """A rack of a data centre, or with rack "" the whole of it."""

    dc: str
    rack: str

    def text(self) -> str:
        return f"rack {self.rack} of data centre {self.dc}" if self.rack else f"data centre {self.dc}"


class Goal(msgspec.Struct, frozen=True):
    """All moves that lead to the target, those first that matter most; drains that are impossible; and for
    whose statistics a domain waits."""

    moves: tuple[Move, ...]
    failures: tuple[DrainFailure, ...]
    waits: tuple[str, ...]


def replicas_after(cluster: Cluster) -> dict[tuple[int, int], tuple[Replica, ...]]:
    """The replicas of tablets on their way, as if they had arrived."""
    found: dict[tuple[int, int], tuple[Replica, ...]] = {}
    maps = {table.map.id: table.map for table in cluster.tables}
    for one in cluster.running:
        key = (one.move.group, one.move.right)
        tablet = maps[key[0]].ending(key[1]) if key[0] in maps else None
        if tablet is not None:
            found[key] = one.move.after(found.get(key, tablet.replicas))
            assert len(found[key]) == len(tablet.replicas), "a move keeps how many replicas there are"
    return found


def is_rack_bound(table: BalancedTable, dc: str, racks: int) -> bool:
    """Whether tablets have as many replicas in each rack of a data centre, so that none changes it."""
    factor = dict(table.map.replication.factors).get(dc, 0)
    return dc in table.lists or factor % racks == 0


def domains(cluster: Cluster) -> list[Domain]:
    racks: dict[str, dict[str, None]] = {}
    for host in cluster.hosts:
        racks.setdefault(host.dc, {})[host.rack] = None
    found: list[Domain] = []
    for dc in sorted(racks):
        count = len(racks[dc])
        if count > 1 and all(is_rack_bound(table, dc, count) for table in cluster.tables):
            found += [Domain(dc, rack) for rack in sorted(racks[dc])]
        else:
            found.append(Domain(dc, ""))
    return found


def domain_of(cluster: Cluster, host: Host) -> Domain:
    """The domain that a host belongs to."""
    return next(one for one in domains(cluster) if one.dc == host.dc and one.rack in ("", host.rack))


class DomainPlan:
    """The target of one domain while it is made. Hosts that can receive come first: they are the bins."""

    def __init__(self, domain: Domain, cluster: Cluster) -> None:
        self.domain = domain
        self._cluster = cluster
        statistics = cluster.statistics
        hosts = sorted(
            (host for host in cluster.hosts if host.dc == domain.dc and domain.rack in ("", host.rack)),
            key=lambda host: (not can_receive(host, statistics), host.node),
        )
        self._hosts = hosts
        self._at = {host.node: at for at, host in enumerate(hosts)}
        self._bins = sum([can_receive(host, statistics) for host in hosts])
        self._capacity = [statistics.nodes[host.node].capacity_bytes for host in hosts[: self._bins]]
        assert len(self._at) == len(hosts), "a node is in a domain once"
        assert all(capacity > 0 for capacity in self._capacity), "who receives has room"
        self._lists = [bool(table.lists.get(domain.dc)) for table in cluster.tables]
        self._spots: list[Spot] = []
        # A node where a request costs twice as much can take half as many.
        able = [host.shards / statistics.costs.get(host.node, 1.0) for host in hosts[: self._bins]]
        self._packing = Packing(self._capacity, self._may, able, NODE_EXCHANGES)
        self.failures: list[DrainFailure] = []
        self.waits: list[str] = []

    # What there is

    def read(self, arrived: Mapping[tuple[int, int], tuple[Replica, ...]]) -> None:
        """Take in the replicas that lie in the domain."""
        at_of, statistics = self._at, self._cluster.statistics
        came_from = {
            (one.move.group, one.move.right, one.move.target[0]): one.move.source[0]
            for one in self._cluster.running
        }
        for number, table in enumerate(self._cluster.tables):
            group, least = table.map.id, max(1, table.target_bytes // SMALLEST_SHARE)
            loads = {node: load.tablets.get(group, {}) for node, load in statistics.nodes.items()}
            for tablet in table.map.tablets():
                right, replicas = tablet.right, tablet.replicas
                if arrived and (group, right) in arrived:
                    replicas = arrived[group, right]
                spot = Spot(number, right)
                for node, shard in replicas:
                    if node not in at_of:
                        continue
                    there = came_from.get((group, right, node), node) if came_from else node
                    load = loads[there].get(right) if there in loads else None
                    if load is None:
                        load = statistics.tablet(group, right, tablet.nodes)
                    rate = int(load.rate * RATE_UNITS)
                    piece = Piece(spot, max(load.bytes, least), load.bytes, rate, at_of[node], shard)
                    spot.pieces.append(piece)
                assert len({piece.bin for piece in spot.pieces}) == len(spot.pieces), "a node has one replica"
                if spot.pieces:
                    self._spots.append(spot)

    # What may be

    def _may(self, piece: Piece, to: int) -> bool:
        return self._refusal(piece, to) is None

    def _refusal(self, piece: Piece, to: int) -> str | None:
        """Why a piece cannot lie in a bin."""
        # Nor where another one goes away from: that one would stay, and this one go to its place instead, for
        # replicas are alike but for what they weigh, by which this was reckoned.
        for other in piece.spot.pieces:
            if other is not piece and to in (other.bin, other.home):
                return "has a replica of it"
        if self._packing.bytes[to] + piece.bytes > DISK_SHARE_MAX * self._capacity[to]:
            return "is full"
        hosts = self._hosts
        rack = hosts[to].rack
        if self.domain.rack or hosts[piece.bin].rack == rack:
            return None
        if self._lists[piece.table]:
            return "is in another rack than the one that is to have this replica"
        racks = [hosts[other.bin].rack for other in piece.spot.pieces]
        if racks.count(rack) + 1 > max([racks.count(known) for known in racks]):
            return "is in a rack that would have more replicas of it than any has"
        return None

    # What is to be

    def solve(self) -> None:
        draining: dict[int, list[Piece]] = {}
        is_on = [table.is_balanced for table in self._cluster.tables]
        for spot in self._spots:
            for piece in spot.pieces:
                if piece.bin < self._bins:
                    self._packing.add(piece, is_on[piece.table])
                elif self._hosts[piece.bin].drain is not Drain.NONE:
                    draining.setdefault(piece.bin, []).append(piece)
        if draining and (missing := self._unmeasured()):
            names = ", ".join(str(self._hosts[at].node) for at in sorted(draining))
            self.waits.append(
                f"{self.domain.text()}: node {missing[0]} has no statistics, so node {names} is not drained"
            )
            return
        for at in sorted(draining):
            self._drain(self._hosts[at], draining[at], is_on)
        self._settle(self._packing)
        assert all(len({piece.bin for piece in spot.pieces}) == len(spot.pieces) for spot in self._spots), (
            "no node gets two replicas of a tablet"
        )
        on_bin: list[list[Piece]] = [[] for _ in self._hosts]
        for spot in self._spots:
            for piece in spot.pieces:
                on_bin[piece.bin].append(piece)
        for at in range(self._bins):
            self._settle_shards(on_bin[at], at, is_on)

    def _settle(self, packing: Packing) -> None:
        if self._cluster.is_on and not (self._cluster.is_calm and not is_apart(packing)):
            packing.settle()

    def _unmeasured(self) -> list[NodeId]:
        return [
            host.node
            for host in self._hosts
            if not is_measured(host, self._cluster.statistics)
            and not (host.drain is not Drain.NONE and (host.is_excluded or host.drain is Drain.REMOVE))
        ]

    def _drain(self, host: Host, pieces: list[Piece], is_on: Sequence[bool]) -> None:
        """Find a place for everything that a host has; it keeps everything when there is none for one."""
        assert all(piece.bin >= self._bins for piece in pieces), "a node that is drained receives nothing"
        done: list[Piece] = []
        reason = ""
        if host.drain is Drain.LEAVE and host.is_excluded:
            reason = "the node is excluded and can hand nothing over: it can be removed"
        for piece in sorted(pieces, key=lambda piece: -piece.size):
            bins = [] if reason else [to for to in range(self._bins) if self._may(piece, to)]
            if not bins:
                group = self._cluster.tables[piece.table].map.id
                reason = reason or self._nowhere(piece)
                self.failures.append(DrainFailure(host.node, group, piece.spot.right, reason))
                break
            self._packing.place(piece, bins, is_on[piece.table])
            done.append(piece)
        else:
            return
        for piece in done:
            self._packing.remove(piece)
            piece.bin = piece.home

    def _nowhere(self, piece: Piece) -> str:
        refusals: dict[str, list[str]] = {}
        for to in range(self._bins):
            refusals.setdefault(self._refusal(piece, to) or "", []).append(str(self._hosts[to].node))
        texts = [f"node {', '.join(nodes)} {refusal}" for refusal, nodes in refusals.items()]
        return f"{self.domain.text()} has no place for it: {'; '.join(texts) or 'no node can receive'}"

    def _settle_shards(self, pieces: Sequence[Piece], at: int, is_on: Sequence[bool]) -> None:
        """Within a node: newcomers go where least is, then shards are made even."""
        assert all(piece.bin == at for piece in pieces), "a node deals out what is its own"
        shards = self._hosts[at].shards
        packing = Packing([1.0] * shards, _anywhere)
        every = range(shards)
        pairs: list[tuple[Piece, Piece]] = []
        coming: list[Piece] = []
        for piece in pieces:
            stays = piece.home == at and piece.shard < shards
            home = piece.shard if stays else -1
            made = Piece(piece.spot, piece.size, piece.bytes, piece.rate, home, 0)
            pairs.append((piece, made))
            if stays:
                packing.add(made, is_on[piece.table])
            else:
                coming.append(made)
        for made in sorted(coming, key=lambda one: -one.size):
            packing.place(made, every, is_on[made.table])
        self._settle(packing)
        for piece, made in pairs:
            piece.to_shard = made.bin
            assert 0 <= made.bin < shards, f"node {self._hosts[at].node} has no shard {made.bin}"

    # What leads there

    def moves(self) -> list[Move]:
        full = self._fullness_at_home()
        found: list[tuple[Why, float, Move]] = []
        for spot in self._spots:
            group = self._cluster.tables[spot.table].map.id
            before = {piece.home: piece for piece in spot.pieces}
            after = {piece.bin: piece for piece in spot.pieces}
            assert len(after) == len(spot.pieces), f"two replicas of {spot.right} on one node"
            gone = [piece for home, piece in before.items() if home not in after]
            came = [piece for to, piece in after.items() if to not in before]
            for leaving, coming in self._paired(gone, came):
                source, target = self._hosts[leaving.home], self._hosts[coming.bin]
                is_drain = source.drain is not Drain.NONE
                is_lost = source.drain is Drain.REMOVE or source.is_excluded
                move = Move(
                    MoveKind.REBUILD if is_lost else MoveKind.MIGRATION,
                    Why.DRAIN if is_drain else Why.BALANCE,
                    group,
                    spot.right,
                    (source.node, leaving.shard),
                    (target.node, coming.to_shard),
                    leaving.bytes,
                )
                found.append((move.why, full[coming.bin] - full[leaving.home], move))
            for at, piece in after.items():
                known = before.get(at)
                if known is not None and at < self._bins and known.shard != piece.to_shard:
                    node = self._hosts[at].node
                    source_replica, target_replica = (node, known.shard), (node, piece.to_shard)
                    move = Move(
                        MoveKind.INTRANODE,
                        Why.SHARDS,
                        group,
                        spot.right,
                        source_replica,
                        target_replica,
                        piece.bytes,
                    )
                    found.append((Why.SHARDS, 0.0, move))
        found.sort(key=lambda one: (one[0], one[1], one[2].group, one[2].right, one[2].source))
        return [move for _, _, move in found]

    def _paired(self, gone: list[Piece], came: list[Piece]) -> list[tuple[Piece, Piece]]:
        """Who takes over from whom: within a rack where that is possible, so that none has more meanwhile."""
        assert len(gone) == len(came), "as many come as go"
        pairs: list[tuple[Piece, Piece]] = []
        left, others = list(came), list[Piece]()
        for leaving in gone:
            rack = self._hosts[leaving.home].rack
            coming = next((piece for piece in left if self._hosts[piece.bin].rack == rack), None)
            if coming is None:
                others.append(leaving)
            else:
                left.remove(coming)
                pairs.append((leaving, coming))
        return [*pairs, *zip(others, left, strict=True)]

    def _fullness_at_home(self) -> list[float]:
        held = [0] * len(self._hosts)
        for spot in self._spots:
            for piece in spot.pieces:
                held[piece.home] += piece.size
        return [
            held[at] / self._capacity[at] if at < self._bins else float(held[at])
            for at in range(len(self._hosts))
        ]


def _anywhere(piece: Piece, to: int) -> bool:
    return True


def goal_of(cluster: Cluster) -> Goal:
    """The target of the whole cluster, and the moves that lead to it."""
    arrived = replicas_after(cluster)
    moves: list[Move] = []
    failures: list[DrainFailure] = []
    waits: list[str] = []
    for domain in domains(cluster):
        plan = DomainPlan(domain, cluster)
        plan.read(arrived)
        plan.solve()
        moves += plan.moves()
        failures += plan.failures
        waits += plan.waits
    assert len({(move.group, move.right, move.source) for move in moves}) == len(moves), (
        "a replica goes to one place"
    )
    moves.sort(key=lambda move: move.why)
    if not moves and not waits and cluster.is_on:
        moves = _together(cluster)
    return Goal(tuple(moves), tuple(failures), tuple(waits))


def _together(cluster: Cluster) -> list[Move]:
    """Moves of pairs that are to be merged, when there is nothing else to do."""
    busy = [*[(one.move.group, one.move.right) for one in cluster.running], *cluster.held]
    found: list[Move] = []
    for table in cluster.tables:
        if table.is_merging and not table.is_finalising:
            loads = tablet_loads(table.map, cluster.statistics)
            bytes_of = {right: load.bytes for right, load in loads.items()}
            found += moves_together(table.map, table.resize, cluster.hosts, busy, bytes_of)
    return found
