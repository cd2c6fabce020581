"""Messages between the replicas of one shard.

    asks    Ask       → Standing              where are you, before the key is taken
            Promise   → Promised | Refused    take nothing from leaders of lower terms
            Fetch     → Fetched | Behind      Entries for a candidate that adopts another's log
    leads   Append    → Appended | Refused    Entries, as the bytes of their records
            Heartbeat → Alive | Refused       the commit index, and the term confirmed
            Behind                            only a checkpoint helps
            HandOver                          take the key: it is free

A message may be lost, late, repeated or out of order. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from storage.log.entry import Position


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A host without a leader asks its peers before it takes the key."""

    attempt: int
    """Numbers the questions of one replica, so that an old answer is not taken for a new one."""
    last: Position


class Standing(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The position of a replica."""

    attempt: int
    replica_id: str
    log_id: bytes
    start: int
    """The index behind which its log can be shipped."""
    last: Position
    bytes_ahead: int
    """Bytes of its Entries above the asker's last one."""
    term: int
    """The term of its promise; the next two fields are from it, too."""
    voters: Mapping[str, str]
    old_voters: tuple[str, ...]
    wall_s: float


class Promise(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The holder of the key asks for a promise to its term."""

    term: int
    leader: str
    log_id: bytes
    voters: Mapping[str, str]
    old_voters: tuple[str, ...]


class Promised(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The promise is durable."""

    term: int
    replica_id: str
    last: Position
    """The last Entry that is durable."""


class Append(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Entries of the leader's log."""

    term: int
    leader: str
    previous: Position
    """The Entry before them."""
    records: list[bytes]
    commit: int


class Appended(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Up to this index the log is the leader's, and durable."""

    term: int
    replica_id: str
    index: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Another term is promised, or the log is another one."""

    term: int
    """The term that is promised."""
    leader: str
    """The replica that it is promised to."""
    replica_id: str
    last: Position
    committed: Position
    """The last Entry known to be committed: up to here no two logs differ."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The leader lives."""

    term: int
    leader: str
    round: int
    commit: int
    committed: Position = Position(0, 0, 0)
    """The position of that Entry, by which a follower that was away sees that it has the same."""
    receiver: str = ""
    """The replica that this is for; empty from hosts of the version before."""
    lost: int = 0
    """Up to this index it acknowledged Entries of this leader in this term. If it lacks any, it is
    to be another replica; 0 if it is not, or lacks none."""


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """When this was sent no higher term was promised."""

    term: int
    replica_id: str
    round: int
    wall_s: float
    has_space: bool = True
    """False if its disk is short: it should not lead."""
    synced: int | None = None
    """The index up to which its log is durable; None from hosts of the version before."""


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A candidate asks for the Entries of the log that it adopts."""

    term: int
    last: Position
    committed: Position


class Fetched(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """They follow `previous`, which may lie before what was asked for."""

    term: int
    previous: Position
    records: list[bytes]


class Behind(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The sender's log does not reach back that far."""

    term: int
    start: int


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The leader has given up the key so that the receiver leads."""

    term: int
    """The leader's last one."""


Message = (
    Ask
    | Standing
    | Promise
    | Promised
    | Append
    | Appended
    | Refused
    | Heartbeat
    | Alive
    | Fetch
    | Fetched
    | Behind
    | HandOver
)

encode_message = msgspec.msgpack.Encoder().encode
"""A message as bytes."""
decode_message = msgspec.msgpack.Decoder(Message).decode
"""Bytes back to the message. Raises msgspec.MsgspecError."""
