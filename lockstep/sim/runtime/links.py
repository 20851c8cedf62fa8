"""Directed links between hosts: how long bytes take, and what keeps them from passing.

Invariant: all draws about a link come from that link's own stream.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from lockstep.sim.runtime.world import World


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One direction between two hosts. Times in milliseconds, the rest probabilities."""

    #: `uniform` in [low, high]; `exponential` and `heavy` have a tail beyond high.
    shape: Literal["uniform", "exponential", "heavy"] = "uniform"
    low_ms: float = 0.2
    high_ms: float = 2.0
    #: A segment is lost and comes a retransmission later.
    loss: float = 0.0
    retransmit_ms: float = 200.0
    #: A write arrives in two pieces.
    fragment: float = 0.05
    #: A write joins one of the same instant, as a kernel's buffer does.
    coalesce: float = 0.8
    #: One bit of a segment flips, unnoticed by TCP.
    corrupt: float = 0.0
    #: The first packet of a connection is lost.
    syn_loss: float = 0.0
    #: The connection is established and then silent for ever.
    dead_on_accept: float = 0.0


class Link:
    """Bytes from one host to another: their delays and what blocks them."""

    def __init__(self, world: World, source: str, target: str, settings: LinkSettings) -> None:
        self.source = source
        self.target = target
        self.name = f"{source}>{target}"
        self.draw = world.stream(f"link/{self.name}")
        self.chance = self.draw.random
        self.blocked = False
        self.clogged_until_ns = 0
        self._world = world
        self.configure(settings)

    def configure(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._low_ns = int(settings.low_ms * 1e6)
        self._span_ns = int((settings.high_ms - settings.low_ms) * 1e6)

    def arrival_ns(self, sent_ns: int) -> int:
        """When a packet sent then arrives, as if it were alone."""
        settings = self.settings
        share = self.chance()
        if settings.shape == "exponential":
            share = -math.log1p(-share)
        elif settings.shape == "heavy":
            share = min((1.0 - share) ** -0.7 - 1.0, 200.0)
        arrival = sent_ns + self._low_ns + int(self._span_ns * share)
        if settings.loss and self.chance() < settings.loss:
            self._world.count("net.retransmitted")
            arrival += self.retransmit_ns()
        if self.clogged_until_ns > arrival:
            self._world.count("net.clogged")
            arrival = self.clogged_until_ns + int(self.chance() * 10_000_000)
        return arrival

    def retransmit_ns(self) -> int:
        return int(self.settings.retransmit_ms * 1e6 * (1.0 + self.chance()))
