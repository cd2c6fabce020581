"""Questions to the closed parts of a FIFO queue, and what follows at the open ones.

    has it messages of these groups?   if no earlier part has, an open part unlocks them
    does it know these ids?            the gateway asks before a send, for five minutes
    does it know this attempt?         the gateway asks before a receive that repeats one

A part answers behind its own closing: a question closes it. So "none" holds for ever, since a
closed part takes no message and remembers no id. Nobody remembers who asked.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import AttemptKnown, GroupsHeld, IdsKnown, LockedGroups
from visibility.rules.closing_parts import closing
from visibility.rules.decided import Outcome
from visibility.rules.group_locks import WAITS, waiting_groups
from visibility.rules.groups import FifoBook
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.remembered_ids import REMEMBERED_MS, known_ids
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

PAGE_GROUPS = 500
"""Groups of one question."""


class FindGroups(Operation, frozen=True):
    """Say of which groups a closed part still has messages; answers `outcomes.GroupsHeld`."""

    groups: list[bytes] = msgspec.field(default_factory=list)


class FindIds(Operation, frozen=True):
    """Say which deduplication ids a closed part knows; answers `outcomes.IdsKnown`."""

    digests: list[bytes] = msgspec.field(default_factory=list)


class FindAttempt(Operation, frozen=True):
    """Say whether a part knows a receive attempt; answers `outcomes.AttemptKnown`."""

    digest: bytes = b""


class ReadLockedGroups(Operation, frozen=True):
    """Read a page of locked groups, from the one at `place` on; answers
    `outcomes.LockedGroups`."""

    place: int = 0


class UnlockGroups(Operation, frozen=True):
    """Unlock groups of which each earlier part has said that it has none; answers None."""

    groups: list[bytes] = msgspec.field(default_factory=list)


def decide_find_groups(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Look for messages in any state: those that wait, are delayed, in flight, held, on their way
    to another queue, or lost."""
    operation = request.operation
    assert isinstance(operation, FindGroups)
    events = closing(shard, request.queue, stamp.now_ms)
    queue = shard.queue(request.queue.queue_id)
    return GroupsHeld([each for each in operation.groups if _has(shard, queue, each)]), events


def _has(shard: ShardState, queue: QueueState, group: bytes) -> bool:
    if group in queue.in_flight_by_group or group in queue.quarantined.groups:
        return True
    if queue.locked.get(group) == WAITS:
        return True
    row = queue.groups.get(group) or shard.rows.group(queue.queue_id, group)
    return row is not None and bool(row.count or row.delayed)


def decide_find_ids(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Look for ids of sends before the closing."""
    operation = request.operation
    assert isinstance(operation, FindIds)
    queue = shard.queue(request.queue.queue_id)
    events = closing(shard, request.queue, stamp.now_ms)
    row = shard.parts.get(queue.queue_id)
    if row is not None and row.closed_version and stamp.now_ms - row.closed_at_ms >= REMEMBERED_MS:
        return IdsKnown([], are_over=True), events
    known = known_ids(shard, queue, operation.digests, stamp.now_ms)
    ids = [(digest, each.message_id, each.sequence) for digest, each in known.items()]
    return IdsKnown(ids), events


def decide_find_attempt(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Look for a receive attempt; the part may be open."""
    operation = request.operation
    assert isinstance(operation, FindAttempt)
    digests = [operation.digest]
    known = shard.rows.remembered(request.queue.queue_id, digests, stamp.now_ms)
    return AttemptKnown(bool(known)), ()


def decide_read_locked_groups(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """A page of them, in the order of their locks."""
    operation = request.operation
    assert isinstance(operation, ReadLockedGroups)
    waiting = waiting_groups(shard.queue(request.queue.queue_id))
    begin = operation.place
    return LockedGroups(list(islice(waiting, begin, begin + PAGE_GROUPS))), ()


def decide_unlock_groups(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Let the groups go on that are locked."""
    operation = request.operation
    assert isinstance(operation, UnlockGroups)
    queue = shard.queue(request.queue.queue_id)
    locked = queue.locked
    groups = [each for each in dict.fromkeys(operation.groups) if locked.get(each) == WAITS]
    book = FifoBook(shard, queue)
    book.unlock(groups)
    return None, book.events()


OPERATIONS: Operations = {
    FindGroups: OperationKind(decide_find_groups, GroupsHeld),
    FindIds: OperationKind(decide_find_ids, IdsKnown),
    FindAttempt: OperationKind(decide_find_attempt, AttemptKnown),
    ReadLockedGroups: OperationKind(decide_read_locked_groups, LockedGroups),
    UnlockGroups: OperationKind(decide_unlock_groups, None),
}
