"""Answers about the archived messages of a queue, which may be deleted: search and show.

A replay is in `replay_answers.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, GET_QUEUE, READ_BODIES, REDRIVE_MESSAGES, Route
from sqs_api.archiving.archive_search import ArchivedRow, ArchiveSearch, Place, read_place
from sqs_api.operators.filter_fields import GivenFilter, ShownFilter, shown_filter
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import FirstSent, ShownAttribute, first_sent, shown_attributes
from visibility.contract.errors import (
    InvalidParameterValue,
    KmsAccessDenied,
    QueueDoesNotExist,
    ResourceNotFound,
)
from visibility.contract.model import QueueDefinition, QueueSettings
from visibility.contract.move_task import MessageFilter

_PAGE_MAX = 100
_PREVIEW_CHARACTERS = 2_000
_Instant = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]


class ArchiveFilter(GivenFilter, frozen=True):
    """Conditions of archived messages, which must all hold."""

    from_ms: Annotated[_Instant | None, Meta(description="Sent at or after.")] = None
    until_ms: Annotated[_Instant | None, Meta(description="Sent before.")] = None
    reason: Annotated[
        Literal["expired", "deleted", "over-length", "hops"] | None,
        Meta(description="Why it left its queue."),
    ] = None

    def at(self, now_ms: int) -> MessageFilter:
        """The filter, if it is given now. Raises InvalidParameterValue."""
        wanted = super().at(now_ms)
        ends = [end for end in (wanted.sent_until_ms, self.until_ms) if end is not None]
        return msgspec.structs.replace(
            wanted,
            sent_from_ms=max(wanted.sent_from_ms, self.from_ms or 0),
            sent_until_ms=min(ends, default=None),
        )


class ArchiveQuery(ArchiveFilter, frozen=True):
    """A page of archived messages."""

    order: Literal["latest", "oldest"] = "latest"
    limit: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 50
    token: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class ArchivedMessage(TypedDict):
    """A message that left its queue. `place` names it in the archive. A sealed or damaged one
    cannot be read or replayed. `is_cut`: the body or the value of an attribute is longer. `cause`,
    `died_at_ms` and `hops` tell how it became a dead letter. `origin` is null for a message that
    was never redriven or edited."""

    place: str
    message_id: str
    reason: str
    sent_at_ms: int
    removed_at_ms: int
    first_received_at_ms: int
    receive_count: int
    size: int
    source_arn: str | None
    cause: str | None
    died_at_ms: int
    hops: int
    origin: FirstSent | None
    sequence_number: str | None
    group_id: str | None
    deduplication_id: str | None
    sender_id: str | None
    trace_header: str | None
    attributes: dict[str, ShownAttribute]
    body: str | None
    is_cut: bool
    is_masked: bool
    is_sealed: bool
    is_readable: bool


class WholeArchivedMessage(ArchivedMessage):
    """An archived message, and what the caller `may` do to its queue."""

    may: list[str]


class ArchivePage(TypedDict):
    """The messages found among those scanned; with `next` the search goes on. The caller `may` do
    these actions to the queue, of a deleted one only what needs the archive alone."""

    may: list[str]
    messages: list[ArchivedMessage]
    scanned: int
    next: str | None


async def search_archive(
    context: OperatorContext, asked: Asked, query: ArchiveQuery
) -> ArchivePage:
    """A page of the archived messages that match, the latest sent first; long bodies are cut."""
    wanted, reads = query.at(context.now_ms), _may_read(context, asked)
    note_search(context, asked, wanted, query.reason)
    found = await context.archive.search(
        search_of(
            context,
            asked,
            limit=query.limit,
            filter=wanted,
            reason=query.reason,
            oldest_first=query.order == "oldest",
            after=place_of(query.token) if query.token else None,
            body_max=_PREVIEW_CHARACTERS if reads else 0,
        )
    )
    if reads:
        asked.bodies_read = [row.message_id for row in found.rows]
    return {
        "may": _may(asked),
        "messages": [_shown(row, with_body=reads) for row in found.rows],
        "scanned": found.scanned,
        "next": None if found.next is None else str(found.next),
    }


async def show_archived_message(context: OperatorContext, asked: Asked) -> WholeArchivedMessage:
    """One archived message, whole."""
    reads = _may_read(context, asked)
    found = await context.archive.search(
        search_of(
            context,
            asked,
            limit=1,
            places=(place_of(asked.parts[1]),),
            body_max=None if reads else 0,
        )
    )
    if not found.rows:
        raise ResourceNotFound("The message is not in the archive.")
    if reads:
        asked.bodies_read = [found.rows[0].message_id]
        asked.noted["archived"] = True
    return {**_shown(found.rows[0], with_body=reads), "may": _may(asked)}


def search_of(context: OperatorContext, asked: Asked, **given: Any) -> ArchiveSearch:
    """A search of the queue of the path. Raises InvalidParameterValue without an archive."""
    return ArchiveSearch(
        lake=context.archive.lake,
        account=asked.account,
        region=asked.caller.region,
        queue=asked.parts[0],
        **given,
    )


def note_search(
    context: OperatorContext, asked: Asked, wanted: MessageFilter, reason: str | None
) -> None:
    """Note a search for the audit log. Raises AccessDenied, KmsAccessDenied if the caller may not
    know its outcome."""
    if wanted.reads_bodies:
        asked.check(READ_BODIES, asked.parts[0])
        check_key(context, asked)
    asked.noted["archived"] = True
    shown: ShownFilter = shown_filter(wanted)
    if shown or reason:
        asked.noted["search"] = {**shown, **({"reason": reason} if reason else {})}


def place_of(text: str) -> Place:
    """The place in a text. Raises InvalidParameterValue."""
    place = read_place(text)
    if place is None:
        raise InvalidParameterValue(f"{text[:100]} is not a place in the archive.")
    return place


def check_key(context: OperatorContext, asked: Asked) -> None:
    """Raise KmsAccessDenied unless the caller may use the keys that the messages may have had."""
    if not _may_open(context, asked):
        raise KmsAccessDenied("The key of the queue's messages is not yours to use.")


def _may_read(context: OperatorContext, asked: Asked) -> bool:
    return asked.may(READ_BODIES, asked.parts[0]) and _may_open(context, asked)


def _may_open(context: OperatorContext, asked: Asked) -> bool:
    """True if the caller may use the queue's key, and each one of `archive_keys`.

    The archive does not say what sealed a message: the key of its source, or one that the queue had
    before. It has those readable that were sealed under the keys of `archive_keys`.
    """
    if asked.is_trusted:
        return True
    queue = _queue(asked)
    if queue is not None and not asked.may_open(queue):
        return False
    owns_service = asked.caller.user is None and asked.caller.account == context.account
    for reference in context.archive.keys:
        named = context.find_key(reference, context.account)
        if named is None and owns_service:
            continue
        if named is None or not asked.may_use(named, queue or _deleted(asked)):
            return False
    return True


def _deleted(asked: Asked) -> QueueDefinition:
    """Takes the place of a deleted queue in questions about keys."""
    settings = QueueSettings(0, 0, 0, 0, 0, False, None)
    region, name = asked.caller.region, asked.parts[0]
    return QueueDefinition(0, asked.account, region, name, 0, 0, 0, 0, b"", {}, {}, settings)


def _may(asked: Asked) -> list[str]:
    actions = [REDRIVE_MESSAGES] if _queue(asked) is None else [GET_QUEUE, REDRIVE_MESSAGES]
    return [action for action in actions if asked.may(action, asked.parts[0])]


def _queue(asked: Asked) -> QueueDefinition | None:
    """The queue; None if it is deleted."""
    try:
        return asked.queue(asked.parts[0])
    except QueueDoesNotExist:
        return None


def _shown(row: ArchivedRow, *, with_body: bool) -> ArchivedMessage:
    extras = row.extras
    return {
        "place": str(row.place),
        "message_id": row.message_id,
        "reason": row.reason,
        "sent_at_ms": row.sent_at_ms,
        "removed_at_ms": _ms(row.removed_at),
        "first_received_at_ms": _ms(row.first_received_at),
        "receive_count": row.receive_count,
        "size": row.size,
        "source_arn": row.source_arn,
        "cause": row.cause,
        "died_at_ms": _ms(row.died_at),
        "hops": row.hops,
        "origin": None if row.origin is None else first_sent(row.origin),
        "sequence_number": row.sequence_number,
        "group_id": extras.group_id,
        "deduplication_id": extras.deduplication_id if with_body else None,
        "sender_id": extras.sender or None,
        "trace_header": extras.trace_header,
        "attributes": shown_attributes(extras, with_values=with_body),
        "body": row.body if with_body else None,
        "is_cut": row.is_cut and with_body,
        "is_masked": not with_body,
        "is_sealed": row.is_sealed,
        "is_readable": not row.is_sealed and not row.is_damaged,
    }


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)


ROUTES = (
    Route("GET", "api/archive/{queue}/messages", BROWSE_MESSAGES, search_archive, "archive search"),
    Route(
        "GET",
        "api/archive/{queue}/messages/{place}",
        BROWSE_MESSAGES,
        show_archived_message,
        "archive show",
    ),
)
