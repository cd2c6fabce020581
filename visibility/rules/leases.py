"""Leases: of received messages, and placeholders that only locate a message's rows."""

from __future__ import annotations

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.state.queue_state import QueueState


def first_lease(sequence: int, message: StoredMessage, visible_at_ms: int, now_ms: int) -> Lease:
    """The lease of a message not received at this place before; it may have a history."""
    before = message.receive_count
    return Lease(
        sequence,
        visible_at_ms,
        before + 1,
        before - message.received_here,
        message.first_received_at_ms or now_ms,
        now_ms,
        message.group,
        message.clock_ms,
        message.original_sequence,
        message.sent_at_ms,
        0,
        message.expires_ms,
        message.level,
        message.size,
    )


def next_lease(ended: Lease, visible_at_ms: int, now_ms: int) -> Lease:
    """The lease of the next receive, after `ended`."""
    return Lease(
        ended.sequence,
        visible_at_ms,
        ended.receive_count + 1,
        ended.base_count,
        ended.first_received_at_ms or now_ms,
        now_ms,
        ended.group,
        ended.clock_ms,
        ended.original_sequence,
        ended.sent_at_ms,
        0,
        ended.expires_ms,
        ended.level,
        ended.size,
    )


def no_lease(sequence: int, message: StoredMessage) -> Lease:
    """A placeholder for a waiting message: its history and the location of its rows."""
    count = message.receive_count
    return Lease(
        sequence,
        0,
        count,
        count - message.received_here,
        message.first_received_at_ms,
        0,
        message.group,
        message.clock_ms,
        message.original_sequence,
        message.sent_at_ms,
        0,
        message.expires_ms,
        message.level,
        message.size,
    )


def lease_of(queue: QueueState, sequence: int, message: StoredMessage) -> Lease:
    """The message's lease, or a placeholder that locates its rows."""
    entry = queue.entries.get(sequence)
    return no_lease(sequence, message) if entry is None else entry.lease
