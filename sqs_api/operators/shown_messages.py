"""Messages as operators see them: unpacked, and masked for those who may not read bodies."""

from __future__ import annotations

import base64
from typing import NotRequired, TypedDict

import msgspec

from sqs_api.gateway.sealer import Admit, Sealer
from visibility.content.content import Extras, unpack
from visibility.content.receipts import sequence_number
from visibility.contract.model import QueueDefinition
from visibility.contract.origin import earlier_ids
from visibility.contract.outcomes import Browsed
from visibility.contract.priority import priority_of
from visibility.contract.stored_message import Hold, Origin, StoredMessage, death_of


class Opened(msgspec.Struct, frozen=True):
    """A message with its content; `body` and `extras` are None if it cannot be opened."""

    found: Browsed
    body: str | None
    extras: Extras | None


def opened(sealer: Sealer, found: Browsed, admit: Admit | None) -> Opened:
    """Open and unpack a message. Raises KmsDisabled, KmsAccessDenied, ServiceUnavailable."""
    data = sealer.open(found.message, admit)
    if data is None:
        return Opened(found, None, None)
    _, body, extras = unpack(data)
    return Opened(found, body, extras)


class ShownAttribute(TypedDict):
    """A message attribute; its value is absent for those who may not read bodies."""

    type: str
    value: NotRequired[str]
    binary: NotRequired[str]


class ShownHold(TypedDict):
    """The reason why a message is held; `deleted_at_ms` is null unless it is being deleted."""

    owner: str
    reference: str
    since_ms: int
    deleted_at_ms: int | None


class FirstSent(TypedDict):
    """The first id and time of a message that was redriven or edited, and its `receive_count` from
    before, which its own does not include."""

    message_id: str
    sent_at_ms: int
    receive_count: int


class ShownOrigin(FirstSent):
    """The same with the numbers of redrives, and of edits in its place. `earlier_ids` find the
    message too."""

    redrives: int
    edits: int
    edited_at_ms: int
    undone_at_ms: int
    earlier_ids: list[str]


class ShownMessage(TypedDict):
    """A message. A body is cut in lists, and null if it is masked or cannot be read; `priority` is
    null for a message without one. `cause`, `died_at_ms` and `hops` tell how it became a dead
    letter. `origin` is null for a message that was never redriven or edited. `waits_behind` is the
    sequence of the message of its group, in flight or held, before whose end no receive gets this
    one, which is visible; null if there is none."""

    sequence: int
    message_id: str
    state: str
    due_ms: int
    waits_behind: int | None
    hold: ShownHold | None
    sent_at_ms: int
    expires_at_ms: int
    priority: int | None
    size: int
    receive_count: int
    first_received_at_ms: int
    last_received_at_ms: int
    sequence_number: str | None
    source_arn: str | None
    cause: str | None
    died_at_ms: int
    hops: int
    origin: ShownOrigin | None
    group_id: str | None
    deduplication_id: str | None
    sender_id: str | None
    trace_header: str | None
    attributes: dict[str, ShownAttribute]
    body: str | None
    is_cut: bool
    is_masked: bool
    is_readable: bool


def shown_message(
    queue: QueueDefinition, message: Opened, *, with_body: bool, body_max: int | None = None
) -> ShownMessage:
    """A message as JSON; without its body, attributes have names and types only."""
    found, stored, lease = message.found, message.found.message, message.found.lease
    extras = message.extras
    body = message.body if with_body else None
    death = death_of(stored)
    is_cut = body is not None and body_max is not None and len(body) > body_max
    return {
        "sequence": found.sequence,
        "message_id": stored.message_id,
        "state": found.state,
        "due_ms": found.due_ms,
        "waits_behind": found.waits_behind,
        "hold": _hold(found.hold),
        "sent_at_ms": stored.sent_at_ms,
        "expires_at_ms": lost_at_ms(stored, queue),
        "priority": priority_of(stored.level) if stored.level else None,
        "size": stored.size,
        "receive_count": stored.receive_count if lease is None else lease.receive_count,
        "first_received_at_ms": (
            stored.first_received_at_ms if lease is None else lease.first_received_at_ms
        ),
        "last_received_at_ms": 0 if lease is None else lease.received_at_ms,
        "sequence_number": sequence_number(found.sequence) if queue.settings.fifo else None,
        "source_arn": stored.dead_letter_source_arn,
        "cause": death.cause if death else None,
        "died_at_ms": death.at_ms if death else 0,
        "hops": death.hops if death else 0,
        "origin": shown_origin(stored),
        "group_id": extras.group_id if extras else None,
        "deduplication_id": extras.deduplication_id if extras and with_body else None,
        "sender_id": extras.sender if extras else None,
        "trace_header": extras.trace_header if extras else None,
        "attributes": shown_attributes(extras, with_values=with_body),
        "body": body[:body_max] if is_cut and body is not None else body,
        "is_cut": is_cut,
        "is_masked": not with_body,
        "is_readable": message.body is not None or not with_body,
    }


def first_sent(origin: Origin) -> FirstSent:
    """The part of an origin that the archive keeps, as JSON."""
    return {
        "message_id": origin.message_id,
        "sent_at_ms": origin.sent_at_ms,
        "receive_count": origin.receive_count,
    }


def shown_origin(stored: StoredMessage) -> ShownOrigin | None:
    """A message's origin as JSON."""
    origin = stored.origin
    if origin is None:
        return None
    return {
        **first_sent(origin),
        "redrives": origin.redrives,
        "edits": origin.edits,
        "edited_at_ms": origin.edited_at_ms,
        "undone_at_ms": origin.undone_at_ms,
        "earlier_ids": earlier_ids(stored),
    }


def _hold(mark: Hold | None) -> ShownHold | None:
    if mark is None:
        return None
    return {
        "owner": mark.owner,
        "reference": mark.reference,
        "since_ms": mark.since_ms,
        "deleted_at_ms": mark.deleted_at_ms or None,
    }


def shown_attributes(extras: Extras | None, *, with_values: bool) -> dict[str, ShownAttribute]:
    """Attributes as JSON, by name."""
    if extras is None or extras.attributes is None:
        return {}
    return {
        name: _shown_attribute(kind, value) if with_values else {"type": kind}
        for name, (kind, value) in extras.attributes.items()
    }


def _shown_attribute(kind: str, value: bytes) -> ShownAttribute:
    if kind.startswith("Binary"):
        return {"type": kind, "binary": base64.b64encode(value).decode()}
    return {"type": kind, "value": value.decode()}


def lost_at_ms(stored: StoredMessage, queue: QueueDefinition) -> int:
    """The end of its retention or of its time to live, whichever comes first."""
    retained_ms = stored.retained_from_ms + queue.settings.retention_ms
    return min(retained_ms, stored.expires_ms or retained_ms)
