"""Transactions: sends and deletes of several queues, all or none.

One shard decides: that of the deletes, else that of the first send. Its Entry has all that the
transaction does: messages that are gone, messages that are sent here, and those sent to queues of
other shards, which are in the outbox from then on and arrive once (`arrivals.py`). So nothing is
undecided after a crash: the Entry is there or not (rule 46).

Deletes of other shards are prepared before, each shard's under a name (`prepared_deletes.py`). The
Entry accepts these names, or there is none: a name that was refused meanwhile is not accepted.
Shards prepare in order of their number, and the highest decides, so of two transactions that want
the same messages the first one at the lowest shard goes on.

A delete is refused unless its handle is that of the latest receive (rule 47). So "consume and
produce" happens once: a repeat deletes nothing and sends nothing. For transactions that only send,
a token is remembered with the answer for at least ten minutes.

Accepted is not yet visible: a repeat with the token says if sends are still on their way.
"""

from __future__ import annotations

from functools import partial

import msgspec
from typing_extensions import override

from visibility.contract.errors import (
    Departing,
    IdempotentParameterMismatch,
    Moved,
    OverLimit,
    QueueError,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.limits import PREPARED_UNTIL_MS
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Prepared, Transacted
from visibility.contract.stored_message import Lease, PreparedDeletes, SentElsewhere, StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import TRANSACTION, number_of, row_key, table_range, transaction_key
from visibility.rows.row_values import THE_SHARD, Departure, TransactionRow
from visibility.rules.acknowledge import Acknowledging
from visibility.rules.arrivals import ArrivalsAnswered, answer_to, floor_of
from visibility.rules.closing_parts import open_part, shares_out
from visibility.rules.collected_sends import Sending
from visibility.rules.decided import NoAnswer, Outcome
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.leases import no_lease
from visibility.rules.levelling import check_throttled
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.prepared_deletes import DeletesPrepared, MessagesPrepared
from visibility.rules.tables import GROUP_LINE_KEY, ShardTables, Table, keep_all
from visibility.rules.waiting_sends import load_beside_waiting
from visibility.state.outbox import OUTBOX_MESSAGES_MAX
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

BUCKET_MS = 600_000
"""A token is remembered for this time at least."""
REMEMBERED_MS = 2 * BUCKET_MS
"""And no longer than this."""
SETTLING_MS = 2_000
"""A request waits for a transaction to be settled no longer than this: less than hosts wait for
each other's answers."""
NOT_SETTLED = Transacted([], is_settled=False)
"""The answer then."""
_OUTBOX_SHARE = 4
"""Transactions fill up to this part of an outbox, a quarter: the rest is for dead letters. Sends
that wait for a deleted queue have another quarter."""


class TransactedEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry: the queue or, of a delete, the part that the handle names, and its version as the
    gateway knows it. `delay_s` is the DelaySeconds of a send. A delete that `is_prepared` is done
    by another shard."""

    queue_id: int
    version: int
    delay_s: int | None = None
    is_prepared: bool = False


class TransactMessages(Operation, frozen=True):
    """Do all entries or none; answers `outcomes.Transacted`.

    The request's queue is `the_shard`; its parts are a Content for each send and a Receipt for each
    delete. `token` and `digest`, that of the entries, have 16 bytes. `prepared` has the names,
    (origin, number), under which other shards prepared deletes. One of deletes only
    `takes_space` of no disk.
    """

    entries: list[TransactedEntry]
    token: bytes
    digest: bytes
    prepared: list[tuple[bytes, int]] = msgspec.field(default_factory=list)
    takes_space: bool = True


class PrepareDeletes(Operation, frozen=True):
    """Hide the messages that a transaction deletes here until shard `decides` has decided it;
    answers `outcomes.Prepared`. The request is like that of TransactMessages, of deletes only."""

    entries: list[TransactedEntry]
    token: bytes
    digest: bytes
    decides: int


class FindTransaction(Operation, frozen=True):
    """Say how far the transaction with this token is; answers `outcomes.Transacted`, None for one
    that was not accepted here. The request's queue is `the_shard`.

    With `waits`, an accepted one is answered once it is settled, or after SETTLING_MS as
    NOT_SETTLED. A shard that knows `queue_id` in this version only, or in a later one, accepts no
    transaction any more that belongs to the queue's home of then. With `takes_space` it is refused
    where the transaction itself would be, on a short disk.
    """

    token: bytes
    digest: bytes
    queue_id: int = 0
    version: int = 0
    waits: bool = False
    takes_space: bool = False


def decide_find_transaction(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Find an earlier answer. Raises IdempotentParameterMismatch; Moved while an older version of
    the queue is known here."""
    operation = request.operation
    assert isinstance(operation, FindTransaction)
    queue = shard.definitions.queue_of_id(operation.queue_id)
    if queue is not None and queue.version < operation.version:
        raise Moved()
    found = _earlier_answer(shard, operation.token, operation.digest, stamp)
    if operation.waits and found is not None and not found.is_settled:
        return NoAnswer.PARK, ()
    return found, ()


def decide_transact_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Accept or cancel a transaction, or give the earlier answer again.

    Raises IdempotentParameterMismatch, ServiceUnavailable; Moved and Departing if the gateway is
    to look again where its messages are.
    """
    operation = request.operation
    assert isinstance(operation, TransactMessages)
    earlier = _earlier_answer(shard, operation.token, operation.digest, stamp)
    if earlier is not None:
        return earlier, ()
    for origin, number in operation.prepared:
        is_answered = answer_to(shard.rows, origin, number) is not None
        if is_answered or number < floor_of(shard.rows, origin):
            raise Departing()  # it took too long, so the messages may be received again
    transaction = _Transaction(shard, request, stamp)
    transaction.delete_all()
    transaction.send_all()
    if transaction.reasons:
        return Transacted([], transaction.all_reasons()), ()
    return transaction.accepted(operation)


def decide_prepare_deletes(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Prepare all deletes, or say which are refused.

    Raises ServiceUnavailable; Moved if the gateway must find its messages anew, and Departing while
    an earlier try of the same transaction runs, or a backup: it could contain the transaction
    without its prepared deletes (rule 31).
    """
    operation = request.operation
    assert isinstance(operation, PrepareDeletes)
    if not shard.prepares:
        raise Departing()
    outbox = shard.outbox
    for number, prepared in outbox.prepared():
        if prepared.transaction == operation.token:
            departure = outbox.departures[number]
            if number in outbox.unasked and _is_same(departure, prepared, request):
                return Prepared(departure.origin, number), ()
            raise Departing()
    most = OUTBOX_MESSAGES_MAX // _OUTBOX_SHARE
    if len(outbox.departures) >= most and load_beside_waiting(shard).messages >= most:
        raise ServiceUnavailable()
    deleting = _Deleting(shard, request, stamp)
    deleting.delete_all()
    if deleting.reasons:
        return Prepared(b"", 0, deleting.all_reasons()), ()
    number = outbox.next_number
    departure, events = deleting.prepared(operation)
    return Prepared(departure.origin, number), (
        *events,
        DeletesPrepared(THE_SHARD, number, departure),
    )


def _is_same(departure: Departure, prepared: PreparedDeletes, request: Request) -> bool:
    """True if this is prepared for the same try: of the same messages, and for the same shard."""
    operation = request.operation
    assert isinstance(operation, PrepareDeletes)
    known = {
        (queue_id, lease.original_sequence or lease.sequence, lease.receive_count)
        for queue_id, lease in prepared.leases
    }
    asked = {
        (entry.queue_id, part.sequence, part.delivery)
        for entry, part in zip(operation.entries, request.parts, strict=True)
        if isinstance(part, Receipt)
    }
    is_for_it = departure.to_shard == operation.decides and prepared.digest == operation.digest
    return is_for_it and known == asked


def _earlier_answer(
    shard: ShardState, token: bytes, digest: bytes, stamp: Stamp
) -> Transacted | None:
    """The answer to an accepted transaction. Raises IdempotentParameterMismatch, DamagedRecord."""
    known = _remembered(shard, token, stamp.now_ms)
    if known is None:
        return None
    if known.digest != digest:
        raise IdempotentParameterMismatch()
    return Transacted(known.sent, is_settled=not shard.outbox.has_of_transaction(token))


def _remembered(shard: ShardState, token: bytes, now_ms: int) -> TransactionRow | None:
    """The transaction with this token, also of a leader before whose clock was ahead. Raises
    DamagedRecord."""
    bucket_ms, store = _bucket_ms(now_ms), shard.rows.store
    is_empty = partial(_is_empty, store)
    for begin_ms in (bucket_ms - BUCKET_MS, bucket_ms, bucket_ms + BUCKET_MS):
        if shard.tokens.may_have(begin_ms, token, is_empty):
            key = transaction_key(THE_SHARD, TRANSACTION, begin_ms, token)
            value = store.get(key)
            if value is not None:
                return decode_row(TransactionRow, key, value)
    return None


def _is_empty(store: RowReader, begin_ms: int) -> bool:
    begin = row_key(THE_SHARD, TRANSACTION, begin_ms)
    end = row_key(THE_SHARD, TRANSACTION, begin_ms + BUCKET_MS)
    return next(iter(store.scan(begin, end)), None) is None


def _bucket_ms(now_ms: int) -> int:
    return now_ms // BUCKET_MS * BUCKET_MS


class _Deleting:
    """The deletes of one transaction in this shard, before anything is applied."""

    def __init__(self, shard: ShardState, request: Request, stamp: Stamp) -> None:
        operation = request.operation
        assert isinstance(operation, TransactMessages | PrepareDeletes)
        self._shard = shard
        self._request = request
        self._number = request.queue.shard
        self._stamp = stamp
        self._entries = operation.entries
        self.reasons: dict[int, tuple[str, str]] = {}
        """Code and text of the entries that cancel the transaction, by place."""
        self._known: dict[tuple[int, int], QueueDefinition] = {}
        self._deletes: dict[int, Acknowledging] = {}

    def all_reasons(self) -> list[tuple[str, str]]:
        """The same for each entry, empty for one that does not cancel it."""
        return [self.reasons.get(place, ("", "")) for place in range(len(self._entries))]

    def delete_all(self) -> None:
        """Decide on the deletes, which come before the sends. Raises DamagedRecord, Moved,
        Departing."""
        for place, part in enumerate(self._request.parts):
            if isinstance(part, Receipt) and not self._entries[place].is_prepared:
                definition = self._definition(self._entries[place])
                queue_id = definition.queue_id
                if definition.shard != self._number or not self._shard.has_begun(queue_id):
                    raise Moved()
                deletes = self._deletes.get(queue_id)
                if deletes is None:
                    request = msgspec.structs.replace(self._request, queue=definition)
                    deletes = Acknowledging(self._shard, request, self._stamp)
                    self._deletes[queue_id] = deletes
                try:
                    deletes.delete_latest(part)
                except QueueError as error:
                    self._refuse(place, error)

    def prepared(self, operation: PrepareDeletes) -> tuple[Departure, list[Event]]:
        """The question to the shard that decides, and the events that hide the messages."""
        events: list[Event] = []
        leases: list[tuple[int, Lease]] = []
        for queue_id, deletes in self._deletes.items():
            queue = self._shard.queue(queue_id)
            book = order_of(deletes.settings).book(self._shard, queue)
            hidden: list[Lease] = []
            for lease in deletes.deleted.values():
                if lease.group and lease.sequence not in queue.entries:
                    book.leave(lease.group, lease.sequence)
                leases.append((queue_id, lease))
                hidden.append(
                    msgspec.structs.replace(lease, visible_at_ms=PREPARED_UNTIL_MS, retry_ms=0)
                )
            events += book.events()
            events.append(MessagesPrepared(queue_id, self._stamp.now_ms, hidden))
        nothing = StoredMessage("", 0, 0, b"")
        departure = Departure(
            self._shard.outbox.origin or self._stamp.bits128().to_bytes(16),
            THE_SHARD,
            self._stamp.now_ms,
            no_lease(0, nothing),
            nothing,
            operation.decides,
            THE_SHARD,
            "",
            nothing,
            prepared=PreparedDeletes(operation.token, operation.digest, leases),
        )
        return departure, events

    def _refuse(self, place: int, error: QueueError) -> None:
        """Note what refuses an entry. Raises it if the gateway is to look again."""
        if isinstance(error, Moved | Departing):
            raise error
        self.reasons[place] = error.code, error.message

    def _definition(self, entry: TransactedEntry) -> QueueDefinition:
        """The present definition of an entry's queue. Raises Moved if it is gone, or not known here
        yet: then the gateway looks again."""
        name = entry.queue_id, entry.version
        queue = self._known.get(name)
        if queue is None:
            queue = self._shard.definitions.queue_of_id(entry.queue_id)
            if queue is None or queue.version < entry.version:
                raise Moved()
            self._known[name] = queue
        return queue


class _Transaction(_Deleting):
    """The effect of one transaction in the shard that decides, before anything is applied."""

    def __init__(self, shard: ShardState, request: Request, stamp: Stamp) -> None:
        super().__init__(shard, request, stamp)
        operation = request.operation
        assert isinstance(operation, TransactMessages)
        self._token = operation.token
        self._sent: list[tuple[str | None, str | None]] = [(None, None)] * len(operation.entries)
        self._departures: Departures | None = None
        self._sendings: dict[int, Sending] = {}

    def send_all(self) -> None:
        """Decide on the sends. Raises DamagedRecord, Moved, ServiceUnavailable.

        Without deletes, only the first queue's home decides, so a repeated token comes to the shard
        that remembers it.
        """
        if not self._deletes and self._definition(self._entries[0]).shard != self._number:
            raise Moved()
        by_queue: dict[int, tuple[QueueDefinition, list[int]]] = {}
        for place, part in enumerate(self._request.parts):
            if isinstance(part, Content):
                target = self._definition(self._entries[place])
                if target.parts:
                    target = self._part_for(target, part.group)
                known = by_queue.get(target.queue_id)
                if known is None:
                    by_queue[target.queue_id] = target, [place]
                else:
                    known[1].append(place)
        for target, places in by_queue.values():
            if target.shard == self._number:
                behind = [place for place in places if self._is_behind(target, place)]
                if len(behind) < len(places):
                    self._send_here(target, [each for each in places if each not in behind])
                places = behind
            for place in places:
                self._send_elsewhere(target, place)

    def _is_behind(self, target: QueueDefinition, place: int) -> bool:
        """True if earlier sends of the FIFO group are still on their way, from when its part was
        not here."""
        group = self._content(place).group
        is_ordered = order_of(target.settings).locks_groups
        return is_ordered and self._shard.outbox.has_of_group(target.arn, group)

    def _part_for(self, queue: QueueDefinition, group: bytes) -> QueueDefinition:
        """The part of a queue that takes a send: one of this shard, if it may be."""
        if shares_out(queue):
            return queue.part_for(group)
        for part in queue.all_parts():
            is_here = part.shard == self._number and part.part.is_open
            if is_here and not self._shard.is_closed(part.queue_id):
                return part
        other = open_part(self._shard, queue, self._stamp, group)
        if other is None:
            raise Moved()
        return other

    def _send_here(self, target: QueueDefinition, places: list[int]) -> None:
        if not self._shard.is_ready(target.queue_id):
            raise Moved()
        sending = Sending(
            self._shard,
            self._shard.queue(target.queue_id),
            target,
            self._stamp,
            [self._content(place) for place in places],
            makes_room=False,
            sender=self._request.caller.arn,
        )
        self._sendings[target.queue_id] = sending
        deletes = self._deletes.get(target.queue_id)
        for lease in () if deletes is None else deletes.deleted.values():
            sending.free(lease)
        for place in places:
            content, duplicates = self._content(place), sending.duplicates
            try:
                _check(target, content)
                try:
                    self._sent[place] = sending.send(content, self._entries[place].delay_s)
                except OverLimit:
                    self._check_throttled(target)  # worth another try
                    raise
                if target.settings.own_tags and sending.duplicates == duplicates:
                    self._check_throttled(target)
            except QueueError as error:
                self._refuse(place, error)

    def _check_throttled(self, target: QueueDefinition) -> None:
        request = msgspec.structs.replace(self._request, queue=target)
        check_throttled(self._shard, request, self._stamp)

    def _send_elsewhere(self, target: QueueDefinition, place: int) -> None:
        content = self._content(place)
        departures = self._departures
        if departures is None:
            departures = self._departures = Departures(
                self._shard, self._request.queue, self._stamp
            )
        if not departures.has_room_in(_OUTBOX_SHARE, len(content.data)):
            raise ServiceUnavailable()
        try:
            _check(target, content)
        except QueueError as error:
            self._refuse(place, error)
        message = StoredMessage(
            self._stamp.message_id(),
            self._stamp.now_ms,
            content.size,
            content.data,
            content.sealed,
            group=content.group,
            level=content.level,
        )
        self._sent[place] = message.message_id, None
        sent = SentElsewhere(
            self._token,
            self._entries[place].delay_s,
            content.deduplication,
            content.deliver_at_ms,
            content.ttl_ms,
            content.sent_at_ms,
        )
        departures.add(no_lease(0, message), message, target, message, sent=sent)

    def _content(self, place: int) -> Content:
        content = self._request.parts[place]
        assert isinstance(content, Content)
        return content

    def accepted(self, operation: TransactMessages) -> Outcome:
        """The answer of a transaction without a reason against it, and its changes."""
        shard, now_ms = self._shard, self._stamp.now_ms
        deleted: list[Event] = []
        for queue_id, deletes in self._deletes.items():
            sending = self._sendings.get(queue_id)
            deleted += deletes.events(None if sending is None else sending.book_behind())
        events = [event for sending in self._sendings.values() for event in sending.events()]
        if self._departures is not None:
            events += self._departures.events()
        if operation.prepared:
            accepted = [(origin, number, "") for origin, number in operation.prepared]
            events.append(ArrivalsAnswered(THE_SHARD, accepted))
        events += deleted
        row = TransactionRow(now_ms, operation.digest, self._sent)
        forgotten_ms = _bucket_ms(now_ms) - BUCKET_MS
        has_old = shard.transactions_since_ms < forgotten_ms
        events.append(
            TransactionRecorded(THE_SHARD, self._token, row, forgotten_ms if has_old else 0)
        )
        return Transacted(self._sent, is_settled=self._departures is None), tuple(events)


def _check(target: QueueDefinition, content: Content) -> None:
    """Raises UnsupportedOperation."""
    if content.deduplication and target.parts and target.earlier_parts(content.group):
        raise UnsupportedOperation(
            f"The parts of queue {target.name} are being replaced. Until that is over, its "
            "messages cannot be deduplicated in a transaction."
        )


class TransactionRecorded(Event, frozen=True):
    """A transaction was accepted under this token. Those before `forgotten_ms`, if it is not 0, are
    forgotten. The queue is THE_SHARD."""

    token: bytes
    row: TransactionRow
    forgotten_ms: int

    @override
    def apply(self, shard: ShardState) -> None:
        shard.transactions_since_ms = max(shard.transactions_since_ms, self.forgotten_ms)
        shard.tokens.add(_bucket_ms(self.row.at_ms), self.token)

    @override
    def record(self, changes: Changes) -> None:
        key = transaction_key(THE_SHARD, TRANSACTION, _bucket_ms(self.row.at_ms), self.token)
        changes.put(key, encode_row(self.row))
        if self.forgotten_ms:
            begin, _ = table_range(THE_SHARD, TRANSACTION)
            changes.delete_range(begin, row_key(THE_SHARD, TRANSACTION, self.forgotten_ms))


OPERATIONS: Operations = {
    TransactMessages: OperationKind(decide_transact_messages, Transacted),
    FindTransaction: OperationKind(decide_find_transaction, Transacted),
    PrepareDeletes: OperationKind(decide_prepare_deletes, Prepared),
}


# -- rows ------------------------------------------------------------------------------------------


def _load(shard: ShardState, rows: RowReader) -> None:
    """Memory has no transactions."""


def _is_own(key: bytes, row: TransactionRow) -> bool:
    return _bucket_ms(row.at_ms) == number_of(key)


_TABLE = Table(TRANSACTION, "transaction", GROUP_LINE_KEY, TransactionRow, names_itself=_is_own)
TRANSACTIONS = ShardTables((_TABLE,), _load, keep_all(_TABLE))
