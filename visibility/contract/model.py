"""The inputs of the engine and the catalog: queue definitions, requests and their prepared parts.

Values only; the rules are in the files named after actions. Instants end in `_at_ms` (epoch
milliseconds of the shard's clock), durations in `_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from auth.caller import Caller
from visibility.contract.errors import QueueError
from visibility.contract.operations import Operation
from visibility.contract.queue_parts import (
    GonePart,
    Part,
    first_sequence,
    hash_of,
    number_in,
    way_of,
)


class RedrivePolicy(msgspec.Struct, frozen=True, gc=False):
    """The dead-letter queue, and the number of receives after which an undeleted message moves to
    it."""

    dead_letter_target_arn: str
    max_receive_count: int


class Joining(msgspec.Struct, frozen=True, gc=False):
    """The meaning of a queue's tags for a message that is sent to it, see `joining.py`: how many
    `messages` and bytes the queue holds at most, the message's time to live, 0 for none, and the
    `level` of one that names none, 0 where there are no levels."""

    messages: int
    size: int
    ttl_ms: int
    level: int
    is_throttled: bool
    """True if the queue may refuse a send because too much waits in it."""


class QueueSettings(msgspec.Struct, frozen=True, gc=False):
    """The attributes of a queue that decisions need, parsed once and in our units.

    `encryption` is the KmsMasterKeyId or the built-in key's name, None where messages are stored
    unsealed; `data_key_reuse_s` is the time for which one data key seals the messages of a
    KmsMasterKeyId. `own_tags` are the tags with a meaning for this service, each with a valid
    value; a feature reads its own. `own_bounds` are the least and the greatest number in each
    attribute with a meaning that the tags let messages have, None for none. `joining` is what the
    tags say about a message that joins the line as others do, None where that depends on more.
    """

    visibility_timeout_ms: int
    delay_ms: int
    retention_ms: int
    wait_ms: int
    maximum_message_size: int
    fifo: bool
    redrive_policy: RedrivePolicy | None
    content_based_deduplication: bool = False
    encryption: str | None = None
    data_key_reuse_s: int = 0
    own_tags: dict[str, str] = {}
    own_bounds: dict[str, tuple[int, int]] | None = None
    joining: Joining | None = None


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue, as the catalog defines it. Immutable: a change makes a new one with the next
    `version`.

    `queue_id` is never reused; `receipt_key` (32 bytes) authenticates the queue's receipt handles;
    `attributes` holds the settable ones as GetQueueAttributes shows them, defaults included;
    `settings` is derived from `attributes`. `deduplication_scope` is the DeduplicationScope of the
    creation, which stays in force (recorded from AWS); "" on a standard queue.

    `parts` is empty unless several shards keep the queue, else it is all its parts, the home first;
    `last_part` is the highest number that was issued to one. A shard gets the definition of its own
    part: the same, with the id and the shard of that part. `number` is that of the only part of a
    queue without parts, 0 unless it had several; `gone` are the parts that it had lately.
    `skipped_part` is the highest number of parts that a shard has and the record lost for good.
    """

    queue_id: int
    account: str
    region: str
    name: str
    version: int
    shard: int
    created_at_ms: int
    modified_at_ms: int
    receipt_key: bytes
    attributes: dict[str, str]
    tags: dict[str, str]
    settings: QueueSettings
    deduplication_scope: str = ""
    parts: tuple[Part, ...] = ()
    last_part: int = 0
    number: int = 0
    gone: tuple[GonePart, ...] = ()
    skipped_part: int = 0

    @property
    def part(self) -> Part:
        """The part whose definition this is, the home for the whole queue; only where there are
        parts."""
        return next(part for part in self.parts if part.queue_id == self.queue_id)

    @property
    def is_home(self) -> bool:
        """False for the definition of a part other than the home."""
        return not self.parts or self.parts[0].queue_id == self.queue_id

    @property
    def first_sequence(self) -> int:
        """No message that this queue or part issues has a lower sequence."""
        return first_sequence(self.part_number)

    @property
    def highest_part(self) -> int:
        """New parts get higher numbers."""
        return max(self.last_part, self.skipped_part)

    @property
    def part_number(self) -> int:
        """The number of this part, or of the only one."""
        return self.part.number if self.parts else self.number

    def way_of(self, sequence: int) -> tuple[QueueDefinition, ...]:
        """The parts that may have the message that a handle calls so, see `queue_parts.way_of`."""
        return tuple(map(self.of_part, self.parts_of(sequence))) or (self,)

    def parts_of(self, sequence: int) -> tuple[Part, ...]:
        """The same as `way_of`, without an unsplit queue. A message of a FIFO queue keeps its
        sequence, and goes to parts with higher numbers only."""
        if not self.parts:
            return ()
        if not self.settings.fifo:
            return way_of(self.parts, self.gone, sequence)
        number = number_in(sequence)
        later = [part for part in self.parts if part.number >= number]
        return tuple(sorted(later, key=lambda part: part.number)) or self.parts[:1]

    def of_part(self, part: Part) -> QueueDefinition:
        """The definition that the shard of a part gets."""
        if part.queue_id == self.queue_id:
            return self
        return msgspec.structs.replace(self, queue_id=part.queue_id, shard=part.shard)

    def all_parts(self) -> tuple[QueueDefinition, ...]:
        """The definitions of all parts, the home first; of an unsplit queue itself."""
        return tuple(map(self.of_part, self.parts)) or (self,)

    def earlier_parts(self, group: bytes) -> list[QueueDefinition]:
        """The parts that took messages of a FIFO group before this one; only where there are
        parts."""
        place, number = hash_of(group, self.receipt_key), self.part.number
        return [
            self.of_part(part) for part in self.parts if part.number < number and part.has(place)
        ]

    def part_after(
        self, queue_id: int, group: bytes, is_over: Callable[[Part], bool]
    ) -> QueueDefinition:
        """The part of a FIFO queue, perhaps a closed one, that took messages of the group next
        after the one with this id, or after one that is gone, without those that are over; behind
        the last one, and without parts, as `part_for`."""
        before = next((part.number for part in self.parts if part.queue_id == queue_id), -1)
        place = hash_of(group, self.receipt_key)
        later = [
            part
            for part in self.parts
            if part.number > before and part.has(place) and not is_over(part)
        ]
        if not later:
            return self.part_for(group)
        return self.of_part(min(later, key=lambda part: part.number))

    def part_for(self, group: bytes) -> QueueDefinition:
        """The part of a FIFO queue that takes messages of the group; an unsplit queue itself."""
        if not self.parts:
            return self
        place = hash_of(group, self.receipt_key)
        return self.of_part(next(p for p in self.parts if p.is_open and p.has(place)))

    def is_same_queue(self, other: QueueDefinition) -> bool:
        """True unless one of them was deleted, and the other created under its name: changes,
        purges and moves keep the receipt key."""
        return self.receipt_key == other.receipt_key

    @property
    def arn(self) -> str:
        """The queue's Amazon Resource Name."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"


class QueueCounters(msgspec.Struct, frozen=True, gc=False):
    """Exact numbers of a queue's messages by state, at the time of the answer."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def stored(self) -> int:
        """Messages, whatever their state."""
        return self.visible + self.in_flight + self.delayed


class Content(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message in its stored form; `data`, packed and sealed by the gateway, is opaque to the
    engine.

    `sealed` is the number of the data key that opens `data`, 0 for none.
    `size` is the one AWS counts: UTF-8 bytes of the body plus names, types and values of the
    attributes. `group` and `deduplication` are digests (see `id_digests.py`), empty where the
    message has no group or is not deduplicated. `deliver_at_ms` is the instant from which a
    scheduled message can be received, `ttl_ms` its own time to live, `level` its priority (see
    `priority.py`), `sent_at_ms` the time of its sender's clock; 0 for others.
    """

    data: bytes
    size: int
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    group: bytes = b""
    deduplication: bytes = b""
    sealed: int = 0
    deliver_at_ms: int = 0
    ttl_ms: int = 0
    level: int = 0
    sent_at_ms: int = 0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A decoded receipt handle: the message's sequence number and the delivery's number, from 1."""

    sequence: int
    delivery: int


class Request(msgspec.Struct, frozen=True):
    """An Operation with the gateway's additions: everything that a shard needs to decide.

    `parts` holds the outcome of the stateless work, one for each entry of a batch or one for a
    single message: a Content to store, a Receipt to act on, or the error that refuses this entry.
    `dead_letter_queue` is the target of the queue's redrive policy, None if it has none or the
    target does not exist. `destination` is the queue to which a move task moves messages, None for
    each message's own source; `targets` are the ARNs of the sources to which its caller may send,
    None for all.
    """

    operation: Operation
    queue: QueueDefinition
    caller: Caller
    request_id: str
    parts: tuple[Content | Receipt | QueueError, ...] = ()
    dead_letter_queue: QueueDefinition | None = None
    destination: QueueDefinition | None = None
    targets: tuple[str, ...] | None = None


class Definitions(Protocol):
    """The present definitions of queues."""

    @property
    def highest_queue_id(self) -> int:
        """The last id that was issued, as far as this host knows."""

    @property
    def accounts(self) -> int:
        """The number of accounts that have queues."""

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue or part with this id, None if it was deleted."""

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        """The queue that an ARN names, None if there is none."""

    def keeps(self, arn: str) -> bool:
        """True if an ARN names a queue, or one that was deleted and can be restored."""

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        """The target of the queue's redrive policy; None if there is none, or it does not exist."""

    def all_queues(self) -> Iterable[QueueDefinition]:
        """All usable queues; of one with parts, each part."""

    def renewed(self, request: Request) -> Request | None:
        """The request with the present definitions; None if its queue is gone."""

    def continued(self) -> Iterable[tuple[int, int]]:
        """Pairs of ids, ascending: each purged queue that is kept, and the queue that continues
        it."""
