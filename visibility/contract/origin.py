"""Origin: the ids, times and receives of a message before operators gave it another try. Pure.

A redrive, its undo, and an edit that replaces a message make new ones, as AWS's move tasks do. The
origin goes with them, so that the first id still finds the message, and an undo gives back what
was.
"""

from __future__ import annotations

import msgspec

from visibility.contract.death import Death, redriven
from visibility.contract.stored_message import Lease, Origin, StoredMessage, Tried


def after_redrive(message: StoredMessage, lease: Lease, *, edited_at_ms: int = 0) -> Origin:
    """The origin of what a redrive makes of a message, whose body it may edit."""
    first = _first(message)
    before = Tried(
        "" if message.message_id == first.message_id else message.message_id,
        0 if message.sent_at_ms == first.sent_at_ms else message.sent_at_ms,
        lease.receive_count,
        lease.first_received_at_ms,
        message.death.hops if message.death else 0,
    )
    return msgspec.structs.replace(
        first,
        receive_count=first.receive_count + lease.receive_count,
        redrives=first.redrives + 1,
        edits=first.edits + (edited_at_ms > 0),
        edited_at_ms=edited_at_ms or first.edited_at_ms,
        before=before,
    )


def after_edit(message: StoredMessage, lease: Lease, now_ms: int) -> StoredMessage:
    """The message, with the origin and the death that the edited copy in its place has."""
    first = _first(message)
    origin = msgspec.structs.replace(
        first,
        receive_count=first.receive_count + lease.receive_count,
        edits=first.edits + 1,
        edited_at_ms=now_ms,
        before=None,
    )
    return msgspec.structs.replace(message, origin=origin, death=redriven(message.death))


def before_redrive(message: StoredMessage, lease: Lease) -> StoredMessage:
    """The message with the id, times and hops from before its last redrive, and all its receives.
    One that a version before 0.2 moved keeps its new id."""
    origin, first_ms = message.origin, lease.first_received_at_ms
    if origin is None or origin.before is None:
        return msgspec.structs.replace(
            message, receive_count=lease.receive_count, first_received_at_ms=first_ms
        )
    before, death = origin.before, message.death
    return msgspec.structs.replace(
        message,
        message_id=before.message_id or origin.message_id,
        sent_at_ms=before.sent_at_ms or origin.sent_at_ms,
        receive_count=before.receive_count + lease.receive_count,
        first_received_at_ms=before.first_received_at_ms or first_ms,
        death=None if death is None else Death(death.cause, death.at_ms, before.hops),
        origin=_unless_plain(origin, before),
    )


def had_id(message: StoredMessage, message_id: str) -> bool:
    """True if the message had this id at first, or before its last redrive."""
    origin = message.origin
    if origin is None:
        return False
    before = origin.before
    return message_id == origin.message_id or (
        before is not None and message_id == before.message_id != ""
    )


def _first(message: StoredMessage) -> Origin:
    return message.origin or Origin(message.message_id, message.sent_at_ms)


def _unless_plain(origin: Origin, before: Tried) -> Origin | None:
    """The origin of a message that is what it was before its last redrive; None if that was the
    first one, and changed nothing else."""
    redrives, edits = origin.redrives - 1, origin.edits
    if not redrives and not edits:
        return None
    received = origin.receive_count - before.receive_count
    return msgspec.structs.replace(origin, redrives=redrives, receive_count=received, before=None)
