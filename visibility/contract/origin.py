"""Origin: the ids, times and receives of a message before operators gave it another try. Pure.

A redrive, its undo, and an edit that replaces a message make new ones, as AWS's move tasks do. The
origin goes with them, so that the first id still finds the message, and an undo gives back what
was.
"""

from __future__ import annotations

import msgspec

from visibility.contract.death import Death, redriven
from visibility.contract.stored_message import Lease, Origin, StoredMessage, Tried


def after_redrive(message: StoredMessage, lease: Lease, *, edited_at_ms: int) -> Origin:
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


def before_redrive(message: StoredMessage, lease: Lease, now_ms: int) -> StoredMessage:
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
        origin=msgspec.structs.replace(
            origin,
            receive_count=origin.receive_count - before.receive_count,
            before=None,
            undone_id=message.message_id,
            undone_at_ms=now_ms,
        ),
    )


def earlier_ids(message: StoredMessage) -> list[str]:
    """The ids that the message had at first, before its last redrive, and before its last undo."""
    origin = message.origin
    if origin is None:
        return []
    before = "" if origin.before is None else origin.before.message_id
    ids = dict.fromkeys((origin.message_id, before, origin.undone_id))
    return [each for each in ids if each and each != message.message_id]


def _first(message: StoredMessage) -> Origin:
    return message.origin or Origin(message.message_id, message.sent_at_ms)
