"""What messages, states and events mean that say less than the newest ones could."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.effects import HardState, Stored
from lockstep.consensus.events import Compact
from lockstep.consensus.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallReply,
    InstallSnapshot,
    PreVoteReply,
    PreVoteRequest,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Proposal

#: Struct -> what a field stands for in bytes of a member that did not know it, or of a driver that is silent.
DEFAULTS: dict[type[msgspec.Struct], dict[str, Any]] = {
    Configuration: {"voters": (), "outgoing": (), "learners": ()},
    HardState: {"term": 0, "vote": None},
    Stored: {
        "hard_state": HardState(), "snapshot": None, "entries": (), "applied_index": 0, "commit_index": 0,
    },
    Compact: {"size_bytes": 0, "keep_entries": 0},
    Append: {"quiet": False},
    AppendReply: {"rejected": False, "hint_index": 0, "hint_term": 0},
    Heartbeat: {"read_round": 0},
    HeartbeatReply: {"read_round": 0},
    InstallSnapshot: {"offset": 0, "data": b""},
    Snapshot: {"size_bytes": 0},
    VoteRequest: {"transfer": False},
    Acceptor: {"promised": NO_BALLOT, "accepted": None, "committed": None},
    Proposal: {"chain": ()},
}  # fmt: skip

TAGS = {
    "PreVoteRequest": 1,
    "PreVoteReply": 2,
    "VoteRequest": 3,
    "VoteReply": 4,
    "Append": 5,
    "AppendReply": 6,
    "Heartbeat": 7,
    "HeartbeatReply": 8,
    "InstallSnapshot": 9,
    "InstallReply": 11,
    "TimeoutNow": 10,
}


@pytest.mark.parametrize("kind", list(DEFAULTS))
def test_what_is_not_said_means_what_it_always_did(kind: type[msgspec.Struct]) -> None:
    values = kind.__struct_defaults__
    assert dict(zip(kind.__struct_fields__[-len(values) :], values, strict=True)) == DEFAULTS[kind]


def test_messages_keep_their_tags() -> None:
    kinds: tuple[type[msgspec.Struct], ...] = (
        PreVoteRequest, PreVoteReply, VoteRequest, VoteReply, Append, AppendReply, Heartbeat, HeartbeatReply,
        InstallSnapshot, InstallReply, TimeoutNow,
    )  # fmt: skip
    assert {kind.__name__: kind.__struct_config__.tag for kind in kinds} == TAGS
