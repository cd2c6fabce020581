"""Browsing: reading messages without receiving them. An extension of SQS for operators.

Nothing changes, and no count rises. Pages are stable: they are ordered by sequence (delayed
messages by the end of their delay), which a message keeps while it stays in its place.
"""

from __future__ import annotations

from visibility.content.filters import matches_outside
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.decided import Outcome
from visibility.rules.failure_pages import FailureWalk
from visibility.rules.hold_messages import held_leases, needs_release
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.order import Order
from visibility.rules.orders import order_of
from visibility.state.noted_spans import Walked
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

BROWSE_MAX = 100
_PAGE_BYTES = 4 << 20
SEARCHED_MAX = 400
"""Limit of the messages that a page with a filter looks at: about a millisecond."""
_DECODED_AS = 4
"""Cost of a message that is decoded, in messages that are not."""
_OPENED_MAX = SEARCHED_MAX // _DECODED_AS
SEARCHED_BYTES = 1 << 20
"""Limit of their rows, unless the first one is larger."""


class BrowseMessages(Operation, frozen=True):
    """Look at messages without receiving them; answers `outcomes.BrowsedPage`.

    Either the delayed ones or all others, or the `held` ones alone, up to `limit` of them after
    `after`, a page's `next_token`. With `newest`, of the others at most the last `limit` sequences.
    A `filter` leaves out messages that do not fulfil its conditions on what is stored beside their
    content, unless `held` ones are asked for.
    """

    delayed: bool = False
    after: tuple[int, int] | None = None
    limit: int = 100
    held: bool = False
    newest: bool = False
    filter: MessageFilter | None = None


def decide_browse_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """A page of messages after the token."""
    operation = request.operation
    assert isinstance(operation, BrowseMessages)
    queue = shard.queue(request.queue.queue_id)
    limit = max(1, min(operation.limit, BROWSE_MAX))
    after = operation.after or (0, 0)
    if operation.held:
        return _held(shard, queue, after[1], limit), ()
    if operation.delayed:
        return _delayed(shard, queue, after, limit, operation.filter), ()
    first = after[1] + 1
    if operation.newest:
        first = max(first, queue.next_sequence - limit)
    if operation.filter is not None:
        return _searched(shard, request.queue, queue, first, limit, operation.filter), ()
    return _present(shard, request.queue, queue, first, limit), ()


def _delayed(
    shard: ShardState,
    queue: QueueState,
    after: tuple[int, int],
    limit: int,
    wanted: MessageFilter | None,
) -> BrowsedPage:
    page = shard.rows.delayed(queue.queue_id, limit, after=after, quarantined=queue.quarantined)
    found = [
        Browsed(sequence, "delayed", message, None, due_ms) for due_ms, sequence, message in page
    ]
    if wanted is not None:
        found = [each for each in found if is_wanted(wanted, each)]
    return BrowsedPage(found, page[-1][:2] if page else None, looked_at=len(page))


def _held(shard: ShardState, queue: QueueState, after: int, limit: int) -> BrowsedPage:
    """Raises DamagedRecord, MessagesMissing."""
    leases = {mark.sequence: lease for mark, lease in held_leases(queue)}
    waiting = [sequence for sequence in leases if sequence > after]
    page: list[Browsed] = []
    size = 0
    for count, sequence in enumerate(waiting[:limit], 1):
        found = shard.rows.unless_quarantined(queue, [sequence])
        if not found and needs_release(queue, leases[sequence]):
            raise MessagesMissing(queue.queue_id, sequence)
        for _, message in found:
            page.append(_as_held(queue, sequence, message))
            size += len(message.data)
        if size >= _PAGE_BYTES:
            limit = count
            break
    return BrowsedPage(page, (0, waiting[limit - 1]) if len(waiting) > limit else None)


def _as_held(queue: QueueState, sequence: int, message: StoredMessage) -> Browsed:
    mark, lease = queue.holds[sequence], queue.entries[sequence].lease
    state = "deleting" if mark.deleted_at_ms else "held"
    return Browsed(sequence, state, message, lease, mark.deleted_at_ms, mark)


def _present(
    shard: ShardState, definition: QueueDefinition, queue: QueueState, first: int, limit: int
) -> BrowsedPage:
    page = shard.rows.line(
        queue.queue_id,
        max(first, queue.floor),
        max(queue.next_sequence, first, queue.floor),
        messages=limit,
        size=_PAGE_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    order = order_of(definition.settings)
    blocking = _Blocking(order, queue)
    found = [_as_present(shard, blocking, queue, *each) for each in page.messages]
    token = (0, page.next_sequence - 1) if page.next_sequence is not None else None
    return BrowsedPage(found, token, queue.next_sequence - 1, len(found))


def _searched(
    shard: ShardState,
    definition: QueueDefinition,
    queue: QueueState,
    first: int,
    limit: int,
    wanted: MessageFilter,
) -> BrowsedPage:
    """The same, of those that match. An id is in a message's row as it is written, so others need
    not be decoded; of a failure, notes tell where its messages may be."""
    blocking = _Blocking(order_of(definition.settings), queue)
    part = (wanted.message_id or "").encode()
    first, end = max(first, queue.floor), queue.next_sequence - 1
    until = max(end + 1, first)
    if wanted.failure is not None:
        walk = FailureWalk(shard, queue, wanted.failure, Walked())
        page = walk.page(first, until, messages=_OPENED_MAX, size=SEARCHED_BYTES)
        shown = [_as_present(shard, blocking, queue, *each) for each in page.messages]
        matching = [each for each in shown if is_wanted(wanted, each)]
        cursor = page.cursor if len(matching) <= limit else matching[limit].sequence
        token = (0, cursor - 1) if cursor < until else None
        return BrowsedPage(matching[:limit], token, end, page.looked_at(cursor))
    found: list[Browsed] = []
    looked_at = size = cost = 0
    for sequence, row_bytes, message in shard.rows.search_line(queue, first, until, part):
        if cost >= SEARCHED_MAX or size >= SEARCHED_BYTES or len(found) >= limit:
            return BrowsedPage(found, (0, sequence - 1), end, looked_at)
        looked_at += 1
        size += row_bytes
        cost += 1
        if message is not None:
            cost += _DECODED_AS - 1
            each = _as_present(shard, blocking, queue, sequence, message)
            if is_wanted(wanted, each):
                found.append(each)
    return BrowsedPage(found, None, end, looked_at)


def is_wanted(wanted: MessageFilter, found: Browsed) -> bool:
    """True if the message fulfils the conditions on what is stored beside its content."""
    message, lease = found.message, found.lease
    received = message.receive_count if lease is None else lease.receive_count
    return matches_outside(wanted, message, received)


class _Blocking:
    """The messages of their groups behind which those of one page wait."""

    def __init__(self, order: Order, queue: QueueState) -> None:
        self.order = order
        self._queue = queue
        self._first: dict[bytes, int] = {}
        """Of each group, as looked up: the first in flight, or 0."""

    def visible(self, sequence: int, message: StoredMessage, lease: Lease | None) -> Browsed:
        """A message that is neither in flight nor held."""
        group = message.group
        if not self.order.locks_groups:
            return Browsed(sequence, "visible", message, lease, 0)
        if group not in self._first:
            self._first[group] = min(self._queue.in_flight_by_group.get(group, ()), default=0)
        first = self._first[group]
        behind = first if 0 < first < sequence else None
        return Browsed(sequence, "visible", message, lease, 0, waits_behind=behind)


def _as_present(
    shard: ShardState, blocking: _Blocking, queue: QueueState, sequence: int, message: StoredMessage
) -> Browsed:
    entry = queue.entries.get(sequence)
    if entry is None:
        lease = blocking.order.history_of(shard.rows, queue, sequence, message)
        return blocking.visible(sequence, message, lease)
    if entry.lease.is_held and sequence in queue.holds:
        return _as_held(queue, sequence, message)
    if entry.hidden:
        is_endless = entry.lease.is_taken or entry.lease.is_prepared
        due_ms = 0 if is_endless else entry.lease.receivable_at_ms
        return Browsed(sequence, "in flight", message, entry.lease, due_ms)
    return blocking.visible(sequence, message, entry.lease)


OPERATIONS: Operations = {BrowseMessages: OperationKind(decide_browse_messages, BrowsedPage)}
