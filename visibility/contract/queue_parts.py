"""Parts: the shares of a queue that several shards keep.

To a shard, a part is a queue with an id of its own. The first part of a queue is its home: it has
the id of the queue and keeps what belongs to no part, such as its move tasks. A home
that closes makes another part the home. A part that is gone leaves the record, and its rows are
dropped like those of a deleted queue.

A part that closes names its heir, an open part that gets what it has. So a message goes one way,
from heir to heir, and a receipt handle, which names the part that issued it, is followed on it.

A part issues message sequences from `number << PART_BITS` on, so a receipt handle names its part.
Numbers are multiples of PART_STEP: a restored copy skips sequences, and even after many restores
they are within a part's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

import msgspec

PART_BITS = 44
PART_STEP = 16
NUMBERS_SKIPPED = 64 * PART_STEP
"""By a restore: more than the parts that a queue may have got since the backup."""
GONE_MS = (14 * 86_400 + 12 * 3_600) * 1_000
"""Time for which a handle may name a part that is gone: the greatest retention, and a lease."""
HASH_BITS = 64
PARTS_MAX = 16
"""Limit of a queue's parts: a purge writes a record for each of them in one transaction."""


class PartState(IntEnum):
    """State of a part. Stored: never renumber."""

    OPEN = 0
    DRAINING = 1  # it takes no messages any more; what it has is received and deleted


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a queue. `first_hash` and `last_hash` are the range of groups of a FIFO queue's
    part, both included; a standard queue's part has all."""

    number: int
    queue_id: int
    shard: int
    state: PartState = PartState.OPEN
    first_hash: int = 0
    last_hash: int = (1 << HASH_BITS) - 1
    heir: int = 0
    """The number of the part that gets what a draining one has."""
    drains_since_ms: int = 0
    """When it began to drain, by the clock of the host that wrote it; 0 if that is not known."""

    @property
    def is_open(self) -> bool:
        """True if it takes messages."""
        return self.state is PartState.OPEN

    def drained_for(self, ms: int, now_ms: int) -> bool:
        """True if it began to drain so long ago; False if that is not known."""
        return bool(self.drains_since_ms) and now_ms >= self.drains_since_ms + ms

    def comes_before(self, other: Part) -> bool:
        """True if this part of a FIFO queue had groups that the other one has now."""
        return (
            self.number < other.number
            and self.first_hash <= other.last_hash
            and other.first_hash <= self.last_hash
        )

    def has(self, group_hash: int) -> bool:
        """True if the group is in the part's range."""
        return self.first_hash <= group_hash <= self.last_hash


def hash_of(group: bytes, key: bytes) -> int:
    """The place of a group among the ranges of parts, of HASH_BITS bits. The key is a secret of the
    queue, so nobody can choose group ids of one part."""
    digest = blake2b(group, digest_size=HASH_BITS // 8, key=key, person=b"part").digest()
    return int.from_bytes(digest)


class GonePart(msgspec.Struct, frozen=True, array_like=True):
    """A part that is gone. Handles may name it as long as a message of its time is retained. The
    shard is -1 of one that went before this was recorded."""

    number: int
    heir: int
    gone_at_ms: int
    shard: int = -1


def first_sequence(number: int) -> int:
    """The first sequence of a part, above all of those before (rule 43); real ones start at 1."""
    return (number << PART_BITS) or 1


def way_of(parts: Sequence[Part], gone: Sequence[GonePart], sequence: int) -> tuple[Part, ...]:
    """The parts that may have the message with this sequence in its handle: the one that issued
    it, then those that got it from there, in order. The last one is open.

    Sequences of unknown parts are the home's to answer: it does not have them either.
    """
    number = number_in(sequence)
    way: list[Part] = []
    for _ in range(len(parts) + len(gone) + 1):
        part = next((part for part in parts if part.number == number), None)
        if part is not None:
            way.append(part)
            if part.is_open:
                return tuple(way)
            number = part.heir
        else:
            number = next((each.heir for each in gone if each.number == number), parts[0].number)
    return (*way, parts[0])


def number_in(sequence: int) -> int:
    """The number of the part that issued a sequence."""
    return (sequence >> PART_BITS) // PART_STEP * PART_STEP


def next_number(last: int, next_sequence: int) -> int:
    """A new part's number: above the last that was issued, and above what the home issued."""
    above = max(last, next_sequence >> PART_BITS)
    return (above // PART_STEP + 1) * PART_STEP
