"""What the management group is asked to do: the commands of its log.

Invariant: a command carries an id that its submitter keeps over all retries, and the group's index that the
submitter knew at first sending: so a late copy is either known by its id or refused for its age. Tags are
never reused and fields are only appended.
"""

from __future__ import annotations

import msgspec

from lockstep.values import codec

COMMAND_ID_BYTES = 16


class Host(msgspec.Struct, frozen=True, array_like=True):
    """A node by its host id, and where it is. `node_id` 0: the log of metadata gave none yet."""

    host_id: str
    address: str
    port: int
    node_id: int = 0


class Repair(msgspec.Struct, frozen=True, array_like=True):
    """What began a cluster id. `kind` "founding" is the first; `detail` is the repair's own record."""

    kind: str = "founding"
    actor: str = ""
    detail: bytes = b""


class Former(msgspec.Struct, frozen=True, array_like=True):
    """A cluster id that came before, for a group that is made anew."""

    cluster_id: str
    repair: Repair = Repair()


class Found(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first command: identity and first nodes. `former` is the lineage that `cluster_id` continues."""

    cluster_id: str
    cluster_name: str
    hosts: tuple[Host, ...]
    repair: Repair = Repair()
    former: tuple[Former, ...] = ()


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Let a node in, or note its node id or new address. `epoch` is the metadata epoch it was asked at."""

    host: Host
    epoch: int


class Expel(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A host that is gone for good: it is never admitted again."""

    host_id: str
    reason: str = ""


class RecordVoters(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Voters of the metadata group, ascending, at which configuration index and metadata epoch."""

    voters: tuple[int, ...]
    configuration_index: int
    epoch: int
    recovery_generation: int = 0


Action = Found | Admit | Expel | RecordVoters


class Command(msgspec.Struct, frozen=True, array_like=True):
    id: bytes
    base_index: int
    actor: str
    action: Action


_DECODER: msgspec.msgpack.Decoder[Command] = codec.decoder(Command)


def encode_command(command: Command) -> bytes:
    assert len(command.id) == COMMAND_ID_BYTES, "a command id is 16 bytes"
    return codec.encode(command)


def decode_command(data: bytes) -> Command:
    """One of codec.UNREADABLE when the bytes are no command."""
    return _DECODER.decode(data)
