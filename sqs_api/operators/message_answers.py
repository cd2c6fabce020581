"""Answers about messages: browse, show, send, resend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from sqs_api.gateway.payload import PAYLOADS, Payload
from sqs_api.operators.asked import Asked
from sqs_api.operators.browsing import PHASES, Scan, read_token, write_token
from sqs_api.operators.desk import Desk
from sqs_api.operators.filters import check_reading, filter_of, may_read, shown_filter
from sqs_api.operators.routes import DELETE_MESSAGES, SEND
from sqs_api.operators.shown_messages import opened, shown_message
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound
from visibility.contract.model import QueueDefinition
from visibility.contract.naming import queue_url
from visibility.contract.operations import (
    BrowseMessages,
    MessageAttributeValue,
    ResendMessage,
    SendMessage,
)
from visibility.contract.outcomes import BrowsedPage, Deduplicated
from visibility.contract.results import SendMessageResult

_PAGE_MAX = 100
_PREVIEW_CHARACTERS = 2_000


async def browse_messages(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """A page of messages that match, without receiving them; long bodies are cut."""
    queue = asked.queue(asked.parts[0])
    state = asked.one_of("state", tuple(PHASES))
    search, reads = filter_of(asked, desk.now_ms), may_read(asked, queue)
    check_reading(asked, queue, search)
    limit = asked.number("limit", 50, 1, _PAGE_MAX)
    scan = Scan(desk, asked, queue, state=state, search=search, admit=admit_of(asked, queue, reads))
    scanned = await scan.run(read_token(asked.text("token"), state), limit)
    if reads:
        asked.bodies_read = [each.found.message.message_id for each in scanned.messages]
    if shown := shown_filter(search):
        asked.noted["search"] = shown
    return {
        "messages": [
            shown_message(queue, message, with_body=reads, body_max=_PREVIEW_CHARACTERS)
            for message in scanned.messages
        ],
        "scanned": scanned.scanned,
        "next": write_token(scanned.position),
    }


async def show_message(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """One message, whole; `due_ms` names the end of its delay if it is delayed."""
    queue, sequence = asked.queue(asked.parts[0]), int(asked.parts[1])
    due_ms = asked.number("due_ms", 0, 0, 1 << 52)
    page = await desk.ask(asked, BrowseMessages(bool(due_ms), (due_ms, sequence - 1), 1), queue)
    assert isinstance(page, BrowsedPage)
    if not page.messages or page.messages[0].sequence != sequence:
        raise ResourceNotFound("The message is not in the queue any more.")
    reads = may_read(asked, queue)
    message = opened(desk.sealer, page.messages[0], admit_of(asked, queue, reads))
    if reads:
        asked.bodies_read = [message.found.message.message_id]
    return shown_message(queue, message, with_body=reads)


def admit_of(asked: Asked, queue: QueueDefinition, reads: bool) -> Any:
    """The check of keys other than the queue's own, for those who are shown bodies."""
    if asked.is_trusted or not reads:
        return None
    return partial(asked.access.check_opening, queue, asked.caller, asked.sent)


# -- send ------------------------------------------------------------------------------------------


class _Attribute(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    value: str | None = None
    binary: bytes | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    body: str
    attributes: dict[str, _Attribute] = {}
    group_id: str | None = None
    deduplication_id: str | None = None
    delay_s: int | None = None


class _Copy(_Message, forbid_unknown_fields=True):
    to: str | None = None
    """Name of the queue that gets the copy, by default that of the message."""
    replace: bool = False


async def send_message(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Send a message."""
    return await _send(desk, asked, asked.queue(asked.parts[0]), asked.content(_Message))


async def resend_message(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Send an edited copy of a message; with `replace` the message leaves in the same step."""
    queue, sequence = asked.queue(asked.parts[0]), int(asked.parts[1])
    copy = asked.content(_Copy)
    target = asked.queue(copy.to or queue.name)
    asked.noted |= {"sequence": sequence, "to": target.arn, "replace": copy.replace}
    asked.check(SEND, target.name)
    if not copy.replace:
        return await _send(desk, asked, target, copy)
    asked.check(DELETE_MESSAGES, queue.name)
    if copy.delay_s:
        raise InvalidParameterValue("A copy that replaces a message cannot be delayed.")
    parts = _contents(desk, asked, target, copy)
    operation = ResendMessage(replaces=sequence)
    return _sent(await desk.ask(asked, operation, queue, parts=parts, destination=target))


async def _send(
    desk: Desk, asked: Asked, queue: QueueDefinition, message: _Message
) -> Mapping[str, Any]:
    operation = _operation(message, queue)
    parts = _contents(desk, asked, queue, message)
    target = desk.catalog.dead_letter_queue(queue)
    return _sent(await desk.ask(asked, operation, queue, parts=parts, dead_letter_queue=target))


def _contents(desk: Desk, asked: Asked, queue: QueueDefinition, message: _Message) -> Payload:
    """The content to store. Raises QueueError, AccessDenied."""
    operation = _operation(message, queue)
    ACTIONS["SendMessage"].check(operation)
    if not asked.is_trusted:  # also its key
        url = operation.queue_url or ""
        asked.access.queue(operation, url, asked.caller, asked.sent, asked.sent.headers)
    make_payload = PAYLOADS[SendMessage]
    return make_payload(desk.payloads, operation, queue, asked.caller, {})


def _operation(message: _Message, queue: QueueDefinition) -> SendMessage:
    attributes = {
        name: MessageAttributeValue(each.type, each.value, each.binary)
        for name, each in message.attributes.items()
    }
    return SendMessage(
        queue_url=queue_url("", queue.account, queue.name),
        message_body=message.body,
        delay_seconds=message.delay_s,
        message_attributes=attributes or None,
        message_deduplication_id=message.deduplication_id,
        message_group_id=message.group_id,
    )


def _sent(answer: object) -> Mapping[str, Any]:
    is_duplicate = isinstance(answer, Deduplicated)
    result = answer.result if isinstance(answer, Deduplicated) else answer
    assert isinstance(result, SendMessageResult)
    return {
        "message_id": result.message_id,
        "sequence_number": result.sequence_number,
        "is_duplicate": is_duplicate,
    }
