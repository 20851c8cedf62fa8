"""This node's clock among those of the others: what it makes of it, and what it does when it is wrong.

Invariant: nobody's clock is set and no timestamp is moved by what is known here: it is shown, clients are
warned, and a newcomer whose clock is far off does not join.
"""

from __future__ import annotations

from lockstep.gossip.failure_detector import ClockOffsets, Offset, measured, own_skew
from lockstep.node.configuration import ClockSection
from lockstep.node.stamps import Stamps
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Runtime
from lockstep.values.node_limits import CLOCK_STEP_US


class Clocks:
    """`answered` takes what other nodes say; the rest tells of it."""

    def __init__(
        self, runtime: Runtime, stamps: Stamps, conditions: Conditions, settings: ClockSection
    ) -> None:
        self._clock = runtime.clock
        self._stamps = stamps
        self._conditions = conditions
        self._settings = settings
        self._offsets = ClockOffsets()
        #: What clients are told who leave timestamps to this node; empty when its clock is not far off.
        self.warning = ""
        #: Wall time less steady time at the last look, in microseconds.
        self._base_us = self._difference_us()
        conditions.watch(self._look)

    def asks(self) -> int:
        """What a question carries, to be brought back by its answer: the steady clock in microseconds."""
        return int(self._clock.monotonic_s() * 1e6)

    def answered(self, node: int, asked_us: int, other_us: int) -> None:
        """`node` answered what was asked at `asked_us` of the steady clock, when its wall clock was at
        `other_us`; 0: it does not say."""
        self._notice_step()
        if other_us > 0 and asked_us > 0:
            self._offsets.heard(node, self.measured(asked_us, other_us), self._clock.monotonic_s())
            self._judge()

    def measured(self, asked_us: int, other_us: int) -> Offset:
        """The offset of a clock that was at `other_us` at some time since `asked_us`."""
        round_trip_us = self.asks() - asked_us
        return measured(self._clock.wall_us() - round_trip_us, other_us, round_trip_us)

    def forget(self, node: int) -> None:
        self._offsets.forget(node)

    def offsets(self) -> dict[int, Offset]:
        """Of other nodes that were heard lately."""
        self._notice_step()
        return self._offsets.known(self._clock.monotonic_s())

    def skew(self) -> Offset:
        """How far this node's clock is ahead of the middle of all; nothing is known alone."""
        return own_skew(self.offsets().values())

    def too_far(self, offset: Offset) -> bool:
        """Whether a node whose clock is so far from a member's does not join."""
        return offset.certain_us > self._settings.skew_fail_ms * 1000

    # -- what is shown --------------------------------------------------------------------------------

    def _look(self) -> None:
        skew, warn_us = self._judge(), self._settings.skew_warn_ms * 1000
        self._conditions.follow(
            skew.certain_us > warn_us, "CLOCK_SKEW", detail=f"{shown(skew.offset_us)} the other nodes'"
        )
        ahead_us = self._stamps.ahead_us
        self._conditions.follow(ahead_us > warn_us, "CLOCK_SET_BACK", detail=length(ahead_us))

    def _judge(self) -> Offset:
        skew = self.skew()
        self.warning = ""
        if self.too_far(skew):
            self.warning = (
                f"The clock of this coordinator is {shown(skew.offset_us)} the other nodes': of writes "
                "without a timestamp of their own an earlier one may win over a later one"
            )
        return skew

    def _difference_us(self) -> int:
        return self._clock.wall_us() - self.asks()

    def _notice_step(self) -> None:
        now_us = self._difference_us()
        if abs(now_us - self._base_us) > CLOCK_STEP_US:
            self._offsets.stepped()
        self._base_us = now_us


def shown(ahead_us: int) -> str:
    """How far a clock is ahead of others, or behind them."""
    return f"{length(abs(ahead_us))} {'ahead of' if ahead_us >= 0 else 'behind'}"


def length(us: int) -> str:
    """In seconds, in steps coarse enough that it is no news every second."""
    return f"{us / 1e6:.1f} s" if us < 10_000_000 else f"{us / 1e6:.0f} s"
