"""The outbox of a shard: messages that left their queue for one of another shard.

A message is in the outbox from its departure until the other shard has it or has refused it. Its
name is (origin, number): an origin is 16 random bytes, new when the shard's log comes back without
Entries that others may know of, and numbers only rise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from visibility.contract.stored_message import PreparedDeletes
from visibility.rows.row_values import Departure

OUTBOX_MESSAGES_MAX = 2_000
"""Messages of an outbox, which memory holds; then messages stay where they are."""
OUTBOX_BYTES_MAX = 16 << 20
"""The same for their content."""
TARGET_SHARE = 4
"""A queue has at most this part of the outboxes of other shards, so that what it cannot take now
leaves room for what goes elsewhere."""


class Sends:
    """Sends of transactions to one queue that are in the outbox."""

    __slots__ = ("groups", "messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        """Bytes of content."""
        self.groups: Counter[bytes] = Counter()
        """Messages by group."""


class Outbox:
    """A shard's outbox. Changed by events and at a start only."""

    __slots__ = (
        "by_target",
        "departures",
        "next_number",
        "origin",
        "origins",
        "sends",
        "size",
        "transactions",
        "transfers",
        "unasked",
    )

    def __init__(self) -> None:
        self.origin = b""
        """The origin of the next departure; the first one makes it."""
        self.next_number = 1
        self.departures: dict[int, Departure] = {}
        """Ascending by number."""
        self.size = 0
        self.by_target: Counter[int] = Counter()
        """Messages by the id of the queue they go to."""
        self.transactions: Counter[bytes] = Counter()
        """Sends of transactions by token."""
        self.sends: dict[str, Sends] = {}
        """The same by the ARN of their queue."""
        self.unasked: dict[int, int] = {}
        """Numbers of prepared deletes whose transaction is not asked about yet, with the instants
        at which that is due; volatile: a new leader asks about all."""
        self.transfers: set[tuple[int, int]] = set()
        """Messages on their way to other parts of their queue, as (queue_id, sequence in
        handles)."""
        self.origins: set[bytes] = set()
        """Those of all departures since the start, and the one before; volatile."""

    def renew_origin(self) -> None:
        """Give the next departure a new origin. Names under the last one may still be remembered
        elsewhere."""
        if self.origin:
            self.origins.add(self.origin)
        self.origin = b""

    def add(self, number: int, departure: Departure) -> None:
        """Add a message behind the others."""
        self.departures[number] = departure
        self.origins.add(departure.origin)
        self.size += departure.size
        self.by_target[departure.target_queue_id] += 1
        if departure.sent is not None:
            self.transactions[departure.sent.transaction] += 1
            sends = self.sends.setdefault(departure.target_arn, Sends())
            sends.messages += 1
            sends.size += departure.size
            sends.groups[departure.arriving.group] += 1
        if departure.transfers:
            self.transfers.add((departure.queue_id, departure.handle))
        self.next_number = max(self.next_number, number + 1)

    def remove(self, number: int) -> Departure:
        """Remove a message."""
        departure = self.departures.pop(number)
        self.unasked.pop(number, None)
        self.size -= departure.size
        self.by_target[departure.target_queue_id] -= 1
        if not self.by_target[departure.target_queue_id]:
            del self.by_target[departure.target_queue_id]
        if departure.sent is not None:
            token = departure.sent.transaction
            self.transactions[token] -= 1
            if not self.transactions[token]:
                del self.transactions[token]
            self._remove_send(departure)
        if departure.transfers:
            self.transfers.discard((departure.queue_id, departure.handle))
        return departure

    def _remove_send(self, departure: Departure) -> None:
        sends, group = self.sends[departure.target_arn], departure.arriving.group
        sends.messages -= 1
        if not sends.messages:
            del self.sends[departure.target_arn]
            return
        sends.size -= departure.size
        sends.groups[group] -= 1
        if not sends.groups[group]:
            del sends.groups[group]

    def floors(self, to_shard: int) -> list[tuple[bytes, int]]:
        """By origin, the number below which nothing is left for a shard. O(departures)."""
        origins = self.origins | {self.origin} if self.origin else self.origins
        floors = dict.fromkeys(sorted(origins), self.next_number)
        for number, departure in reversed(self.departures.items()):
            if departure.to_shard == to_shard:
                floors[departure.origin] = number
        return list(floors.items())

    def has_of_transaction(self, token: bytes) -> bool:
        """True if sends of the transaction with this token are under way."""
        return token in self.transactions

    def has_of_group(self, arn: str, group: bytes) -> bool:
        """True if sends of transactions to this group of a queue are under way."""
        sends = self.sends.get(arn)
        return sends is not None and group in sends.groups

    def prepared(self) -> Iterator[tuple[int, PreparedDeletes]]:
        """(number, deletes) of what is prepared for transactions. O(departures)."""
        for number, departure in self.departures.items():
            if departure.prepared is not None:
                yield number, departure.prepared

    def has_of_task(self, task: str) -> bool:
        """True if messages of the move task with this id are under way."""
        return any(departure.task == task for departure in self.departures.values())
