"""Sending: the messages of one request, or of one step, on their way into a queue: deduplication,
limits, delays, schedules, time to live and the index of groups.

A message of a standard queue that none of these concern is sent without it (`send.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from visibility.content.receipts import sequence_number
from visibility.contract.errors import OverLimit
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.priority import joining_level
from visibility.contract.schedule import SCHEDULED_MAX
from visibility.contract.sender_order_tags import window_ms
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.time_to_live_tags import expiry
from visibility.rows.row_values import Remembered
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.length import full, overflow_of
from visibility.rules.message_events import MessagesDelayed, MessagesSent
from visibility.rules.orders import order_of
from visibility.rules.remembered_ids import DeduplicationRecorded, known_ids
from visibility.rules.room import Room, takes
from visibility.rules.schedules import account_has_room
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

Sent = tuple[str, str | None]
"""Message id and sequence number of one message, as its client is told."""


class Sending:
    """The messages of one request, collected."""

    __slots__ = (
        "_account",
        "_ahead",
        "_book",
        "_delayed",
        "_ends_ms",
        "_fresh",
        "_known",
        "_order",
        "_overflow",
        "_plain",
        "_queue",
        "_room",
        "_sender",
        "_settings",
        "_shard",
        "_stamp",
        "_waiting",
        "_window_ms",
        "duplicates",
    )

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        stamp: Stamp,
        parts: Sequence[object],
        *,
        makes_room: bool = True,
        sender: str = "",
    ) -> None:
        """`parts` includes the contents to send; what is above a limit of the queue may push out
        others if it `makes_room`. `sender` is an ARN, empty if it is unknown. Raises
        DamagedRecord."""
        self._sender = sender
        self._shard = shard
        self._account = definition.account
        self._queue = queue
        self._settings = definition.settings
        self._stamp = stamp
        self._order = order_of(definition.settings)
        overflow = overflow_of(shard, queue, definition, stamp) if makes_room else None
        self._overflow = overflow
        self._room = None if makes_room else Room.of(queue, definition)
        self._book = self._order.book(shard, queue) if overflow is None else overflow.book
        settings = definition.settings
        self._plain = not (queue.ready_groups.total or settings.delay_ms or settings.own_tags)
        """True while a message without a group or delay of its own just joins the line."""
        self._window_ms = window_ms(settings.own_tags)
        self._ahead = 0
        """Messages of senders whose clock is ahead."""
        self._waiting: list[StoredMessage] = []
        self._delayed: list[StoredMessage] = []
        self._ends_ms: list[int] = []
        self.duplicates = 0
        """Number of messages not appended."""
        self._fresh: dict[bytes, Remembered] = {}
        """Ids that this request is the first to use."""
        self._known: dict[bytes, Remembered] = {}
        """Ids of this request that it or others used before."""
        if queue.remembered_ms:
            digests = [part.deduplication for part in parts if isinstance(part, Content)]
            self._known = known_ids(shard, queue, digests, stamp.now_ms)

    def send(
        self,
        content: Content,
        delay_s: int | None,
        accepted_as: str | None = None,
        edited: StoredMessage | None = None,
    ) -> Sent:
        """Append a message, or return the original of a duplicate. One that a transaction accepted
        before, under this MessageId, meets no limit. One in place of an `edited` message has that
        one's origin. Raises DamagedRecord, OverLimit."""
        if self._plain and not (content.group or delay_s or content.deliver_at_ms or edited):
            stamp, message_id = self._stamp, accepted_as or self._stamp.message_id()
            self._waiting.append(
                StoredMessage(message_id, stamp.now_ms, content.size, content.data, content.sealed)
            )
            return message_id, None
        self._plain = False
        deduplication = content.deduplication
        known = self._known.get(deduplication) if deduplication else None
        if known is not None:
            self.duplicates += 1
            return known.message_id, sequence_number(known.sequence)
        if accepted_as is None:
            if self._overflow is not None:
                self._overflow.admit(content.size)
            elif self._room is not None and not takes(self._room, content.size):
                raise full()
        now_ms = self._stamp.now_ms
        message_id = accepted_as or self._stamp.message_id()
        group = self._book.group_of(content.group)
        due_ms, clock_ms = self._due_ms(content, delay_s, is_accepted=accepted_as is not None)
        sender_ms = 0
        if self._window_ms:
            sender_ms = min(content.sent_at_ms or now_ms, now_ms)
            due_ms = sender_ms + self._window_ms
            self._ahead += content.sent_at_ms > now_ms
        message = StoredMessage(
            message_id,
            now_ms,
            content.size,
            content.data,
            content.sealed,
            group=group,
            clock_ms=clock_ms,
            expires_ms=self._expires_ms(content, due_ms),
            level=joining_level(self._settings.own_tags, content.level),
            sender_ms=sender_ms,
            death=None if edited is None else edited.death,
            origin=None if edited is None else edited.origin,
        )
        if due_ms is None:
            sequence = self._queue.next_sequence + len(self._waiting)
            self._waiting.append(message)
            if group:
                self._book.arrive(group, sequence)
        else:
            sequence = self._queue.next_sequence + len(self._delayed)
            self._delayed.append(message)
            self._ends_ms.append(due_ms)
            if group:
                self._book.delay(group)
        if not deduplication:
            return message_id, None
        remembered = Remembered(now_ms, message_id, sequence)
        self._fresh[deduplication] = self._known[deduplication] = remembered
        return message_id, sequence_number(sequence)

    def _due_ms(
        self, content: Content, delay_s: int | None, *, is_accepted: bool
    ) -> tuple[int | None, int]:
        """The end of a message's delay, None for none, and the clock of a scheduled message, from
        which its retention counts. Raises OverLimit."""
        now_ms, at_ms = self._stamp.now_ms, content.deliver_at_ms
        if not at_ms:
            return self._order.due_ms(self._queue, self._settings, delay_s, now_ms), 0
        if at_ms <= now_ms:
            return None, 0
        if not is_accepted:
            self._check_schedules()
        return at_ms, at_ms

    def _check_schedules(self) -> None:
        """Refuse one more scheduled message if there are too many. Raises OverLimit."""
        if self._queue.delayed + len(self._delayed) >= SCHEDULED_MAX:
            raise OverLimit(
                f"The queue has {SCHEDULED_MAX} delayed messages, so none is scheduled."
            )
        if not account_has_room(self._shard, self._account, self._stamp.now_ms):
            raise OverLimit("The account has its share of delayed messages, so none is scheduled.")

    def _expires_ms(self, content: Content, due_ms: int | None) -> int:
        """The end of a message's time to live, which begins with its delivery; 0 for none."""
        own_tags, from_ms = self._settings.own_tags, self._stamp.now_ms
        if not own_tags:
            return 0
        if due_ms is not None:
            from_ms = due_ms or from_ms + self._settings.delay_ms
        return expiry(own_tags, from_ms, content.ttl_ms)

    def leaving_early(self) -> tuple[Event, ...]:
        """The changes of a request that is refused."""
        overflow = self._overflow
        return () if overflow is None or not overflow.leaves_early else overflow.events()

    def free(self, deleted: Lease) -> None:
        """Count the room of a message that is deleted in the same step."""
        if self._room is not None:
            self._room.give_back(deleted.size)

    def book_behind(self) -> GroupBook:
        """The book of groups, for other changes to the queue in the same step. All was sent."""
        first_free = self._queue.next_sequence + len(self._waiting) + len(self._delayed)
        self._book.next_number = max(self._book.next_number, first_free)
        return self._book

    def withdraw(self, lease: Lease) -> None:
        """Remove a waiting message of the same queue in the same step."""
        if lease.group:
            self._book.leave(lease.group, lease.sequence)
            self._book.settle(lease.group, (), [])

    def events(self) -> tuple[Event, ...]:
        """The changes of the request. In a standard queue, its delayed messages come after the
        others."""
        queue_id = self._queue.queue_id
        first = self._queue.next_sequence
        changed = self._book if self._overflow is None else self._overflow
        events: list[Event] = [*changed.events()]
        if self._waiting:
            events.append(MessagesSent(queue_id, first, self._waiting))
        if self._delayed:
            behind = first + len(self._waiting)
            delayed = MessagesDelayed(
                queue_id, behind, self._ends_ms, self._delayed, self._ahead, self._sender
            )
            events.append(delayed)
        if self._fresh:
            events.append(DeduplicationRecorded(queue_id, list(self._fresh.items())))
        return tuple(events)
