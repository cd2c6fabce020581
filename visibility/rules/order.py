"""Order: how a queue chooses the next messages, and what follows for its groups, delays, receipt
handles and history.

`orders.py` names the order of a queue; rules ask it instead of the queue's type. One object serves
all queues that have the order: what belongs to a queue is in its state, what belongs to a decision
in a GroupBook and in the receive that takes the messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from typing import ClassVar, Protocol

from visibility.contract.model import QueueSettings, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.leases import lease_of, no_lease
from visibility.rules.message_events import MessagesExpired
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

Candidates = Iterator[tuple[int, StoredMessage | None, Lease | None]]
"""(sequence, message, None) for a waiting message, (sequence, None, lease) for one visible
again."""


class Fate(Enum):
    """The outcome for a message that a receive was offered."""

    TAKEN = auto()
    LEFT = auto()
    """It is a dead letter now, or stays in its place until it can be one."""
    PASSED = auto()
    """Its retention is over; it stays until a pulse removes it."""


class Taking(Protocol):
    """A receive, as an order knows it: it is offered messages in turn, until it has enough.

    `receive.py` implements it.
    """

    shard: ShardState
    queue: QueueState
    request: Request
    stamp: Stamp
    limit: int
    """The number of messages that it takes at most; 0 or less if too many are in flight."""
    reserved: int
    """Messages of the highest priority that it may take if the limit lets it take none."""
    visible_at_ms: int
    """The end of the leases of this receive."""
    is_held_back: bool
    """True if it takes none because of a limit of the queue's tags."""
    comes_again: bool
    """Set if it must be decided again although it got nothing."""
    leases: list[Lease]
    messages: list[StoredMessage]

    @property
    def operation(self) -> ReceiveMessage:
        """The operation of the request."""

    @property
    def waits(self) -> bool:
        """True for a long poll."""

    def take(self, untouched: Iterable[tuple[int, StoredMessage]]) -> None:
        """Take waiting messages without a look at age and number of receives."""

    def look_at_each(self) -> None:
        """Get ready for `offer`, and for the properties and methods below."""

    @property
    def is_over(self) -> bool:
        """True if it takes no more, or this decision has looked at enough."""

    @property
    def book(self) -> GroupBook:
        """The queue's groups, of the kind that the order makes."""

    def offer(self, sequence: int, message: StoredMessage | None, lease: Lease | None) -> Fate:
        """Take a message unless it is too old or was received too often.

        `message` is given if it waits in line, `lease` if it was received here before. Raises
        DamagedRecord, MessagesMissing.
        """

    def passes(self, lease: Lease) -> bool:
        """True if the message's retention is over."""

    def locks(self, group: bytes) -> bool:
        """True if the group waits for a message that is on its way to another shard, or will be."""

    def events(self) -> tuple[Event, ...]:
        """The changes of groups, the dead letters, and the receive of what was taken."""


class Order(ABC):
    """The order of a queue's messages."""

    locks_groups: ClassVar[bool]
    """A message in flight, in the outbox, or lost holds back the later ones of its group."""
    handles_expire: ClassVar[bool]
    """A receipt handle is valid during its lease only, not for a message that waits again."""
    parts_have_groups: ClassVar[bool]
    """Each part of a queue has groups of its own, and messages keep their sequences when their
    group goes to another part. If not, any part takes any message, under a new sequence."""

    @abstractmethod
    def choose(self, taking: Taking) -> tuple[Event, ...]:
        """Offer the next messages; returns the events of the receive. Raises QueueError,
        DamagedRecord, MessagesMissing."""

    def ready(self, queue: QueueState) -> int:
        """More than 0 if a receive could find a message now: the number of those, or of the groups
        that have one."""
        return queue.visible

    def in_line(self, shard: ShardState, queue: QueueState) -> Candidates:
        """All messages that could be received, the oldest first. Of standard queues only."""
        raise NotImplementedError

    @abstractmethod
    def first_to_go(self, shard: ShardState, queue: QueueState, book: GroupBook) -> Candidates:
        """The waiting messages that may make room for others, the first ones first; `book` is that
        of the decision. Raises DamagedRecord, MessagesMissing."""

    @abstractmethod
    def book(
        self, shard: ShardState, queue: QueueState, blocked: Collection[bytes] | None = None
    ) -> GroupBook:
        """The queue's groups, for one decision; `blocked`: see `GroupBook`."""

    @abstractmethod
    def due_ms(
        self, queue: QueueState, settings: QueueSettings, delay_s: int | None, now_ms: int
    ) -> int | None:
        """A new message's key among the delayed ones, None if it is not delayed. `delay_s` is the
        message's own delay."""

    @abstractmethod
    def delay_ends_ms(self, due_ms: int, message: StoredMessage, settings: QueueSettings) -> int:
        """The instant at which a message with this key joins the line."""

    @abstractmethod
    def dead_letter_clock_ms(self, message: StoredMessage, now_ms: int) -> int:
        """The instant from which retention counts for a dead letter that joins such a queue."""

    @abstractmethod
    def may_wait_again(self, queue: QueueState) -> bool:
        """True if a message that was received may wait in line, without an Entry."""

    @abstractmethod
    def history_of(
        self, rows: Rows, queue: QueueState, sequence: int, message: StoredMessage | Lease
    ) -> Lease | None:
        """The last lease of a waiting message that lost its Entry, None for others. Raises
        DamagedRecord."""

    def lease_of(
        self, rows: Rows, queue: QueueState, sequence: int, message: StoredMessage
    ) -> Lease:
        """The message's lease with its history, or a placeholder. Raises DamagedRecord."""
        entry = queue.entries.get(sequence)
        if entry is not None:
            return entry.lease
        return self.history_of(rows, queue, sequence, message) or no_lease(sequence, message)

    def lease_unless_blocked(
        self, shard: ShardState, queue: QueueState, sequence: int, message: StoredMessage
    ) -> Lease:
        """The same, without the history where the message's group is blocked: it may be lost."""
        if message.group in queue.quarantined.groups:
            return lease_of(queue, sequence, message)
        return self.lease_of(shard.rows, queue, sequence, message)

    def expired(
        self, shard: ShardState, queue: QueueState, leases: list[Lease]
    ) -> tuple[Event, ...]:
        """The events that remove messages for good, wherever they are. Raises DamagedRecord."""
        book = self.book(shard, queue)
        book.leave_all(leases)
        return (*book.events(), MessagesExpired(queue.queue_id, leases))

    @abstractmethod
    def ended(self, queue: QueueState, leases: list[Lease], now_ms: int) -> Event:
        """The event that makes messages in flight visible; their groups are settled before."""

    def attempt(
        self, queue: QueueState, operation: ReceiveMessage, leases: list[Lease], now_ms: int
    ) -> tuple[Event, ...]:
        """The events by which the id of a receive attempt stands for these deliveries."""
        return ()
