"""Answers about messages: browse, show, send, resend."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from cluster.parts.part_requests import that_may_have
from sqs_api.admin.asked import Asked, Step
from sqs_api.admin.routes import BROWSE_MESSAGES, DELETE_MESSAGES, MESSAGES, SEND, Route
from sqs_api.gateway.payload import PAYLOADS, Payload
from sqs_api.http.http_limits import BODY_BYTES_MAX
from sqs_api.operators.browsing import Scan, read_token, write_token
from sqs_api.operators.filter_fields import GivenFilter, check_reading, may_read, shown_filter
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import ShownMessage, opened, shown_message
from visibility.content.content import TRACE_HEADER
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.naming import queue_url
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.contract.outcomes import Browsed, BrowsedPage, Deduplicated
from visibility.contract.results import SendMessageResult
from visibility.rules.browse import BrowseMessages
from visibility.rules.resend import ResendMessage

_PAGE_MAX = 100
PREVIEW_CHARACTERS = 2_000


class Search(GivenFilter, frozen=True):
    """A page of the messages that match."""

    state: Literal["all", "visible", "in flight", "delayed", "held", "deleting", "quarantined"] = (
        "all"
    )
    """`quarantined` is the old name of `held`, for one release."""
    limit: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 50
    token: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class FoundMessages(TypedDict):
    """The messages found among those scanned; with `next` the search goes on."""

    messages: list[ShownMessage]
    scanned: int
    next: str | None


async def browse_messages(context: OperatorContext, asked: Asked, given: Search) -> FoundMessages:
    """A page of messages that match, without receiving them; long bodies are cut."""
    if given.state == "quarantined":
        asked.warn_of_old_name("quarantined", "held")
        given = msgspec.structs.replace(given, state="held")
    queue = asked.queue(asked.parts[0])
    search, reads = given.at(context.now_ms), may_read(asked, queue)
    check_reading(asked, queue, search)
    admit = admit_of(asked, queue, reads)
    scan = Scan(context, asked, queue, state=given.state, search=search, admit=admit)
    scanned = await scan.run(read_token(given.token, given.state), given.limit)
    if reads:
        asked.bodies_read = [each.found.message.message_id for each in scanned.messages]
    if shown := shown_filter(search):
        asked.noted["search"] = shown
        asked.step = Step(
            msgspec.structs.replace(given, token=None),
            is_first=given.token is None,
            is_last=bool(scanned.messages) or scanned.position is None,
            sums={"scanned": scanned.scanned},
        )
    return {
        "messages": [
            shown_message(queue, message, with_body=reads, body_max=PREVIEW_CHARACTERS)
            for message in scanned.messages
        ],
        "scanned": scanned.scanned,
        "next": write_token(scanned.position),
    }


class Due(msgspec.Struct):
    """The end of a delayed message's delay, which finds it."""

    due_ms: Annotated[int, Meta(ge=0, le=1 << 52)] = 0


class WholeMessage(ShownMessage):
    """A message, and whether the caller `may_resend` a copy to its queue or its source."""

    may_resend: bool


async def show_message(context: OperatorContext, asked: Asked, due: Due) -> WholeMessage:
    """One message, whole; `due_ms` names the end of its delay if it is delayed."""
    queue = asked.queue(asked.parts[0])
    found = await named_message(context, asked, queue, due)
    reads = may_read(asked, queue)
    message = opened(context.sealer, found, admit_of(asked, queue, reads))
    if reads:
        asked.bodies_read = [message.found.message.message_id]
    shown = shown_message(queue, message, with_body=reads)
    targets = [queue.name, *filter(None, [(shown["source_arn"] or "").rpartition(":")[2]])]
    return {**shown, "may_resend": any(asked.may(SEND, name) for name in targets)}


async def named_message(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, due: Due
) -> Browsed:
    """The message that the path names. Raises ResourceNotFound."""
    sequence = int(asked.parts[1])
    _, browsed = await find_in_parts(context, asked, queue, sequence, due.due_ms)
    if browsed is None:
        raise ResourceNotFound("The message is not in the queue any more.")
    return browsed


async def find_in_parts(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, sequence: int, due_ms: int = 0
) -> tuple[QueueDefinition, Browsed | None]:
    """A message and the part that has it; the last part that may have it, and None, if it is gone.
    See `show_message`."""
    look = BrowseMessages(bool(due_ms), (due_ms, sequence - 1), 1)
    for part in that_may_have(queue, sequence):
        page = await context.ask(asked, look, part)
        assert isinstance(page, BrowsedPage)
        if page.messages and page.messages[0].sequence == sequence:
            return part, page.messages[0]
    return part, None


def admit_of(asked: Asked, queue: QueueDefinition, reads: bool) -> Any:
    """The check of keys other than the queue's own, for those who are shown bodies."""
    if asked.is_trusted or not reads:
        return None
    return partial(asked.access.check_opening, queue, asked.caller, asked.sent)


# -- send ------------------------------------------------------------------------------------------


class NewAttribute(msgspec.Struct, forbid_unknown_fields=True):
    """A message attribute; a binary value is base64."""

    type: str
    value: str | None = None
    binary: bytes | None = None


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to send."""

    body: str
    attributes: dict[str, NewAttribute] = {}
    group_id: str | None = None
    deduplication_id: str | None = None
    delay_s: int | None = None
    trace_header: Annotated[str | None, Meta(description="AWSTraceHeader.")] = None


class MessageCopy(NewMessage, forbid_unknown_fields=True):
    """The edited copy of a message."""

    to: Annotated[str | None, Meta(description="By default the message's own queue.")] = None
    replace: bool = False


class SentMessage(TypedDict):
    """A message that was sent, or whose deduplication id was known."""

    message_id: str
    sequence_number: str | None
    is_duplicate: bool


async def send_message(context: OperatorContext, asked: Asked, message: NewMessage) -> SentMessage:
    """Send a message."""
    return await send_to(context, asked, asked.queue(asked.parts[0]), message)


async def resend_message(context: OperatorContext, asked: Asked, copy: MessageCopy) -> SentMessage:
    """Send an edited copy of a message; with `replace` the message leaves in the same step."""
    queue, sequence = asked.queue(asked.parts[0]), int(asked.parts[1])
    target = asked.queue(copy.to or queue.name)
    asked.noted |= {"sequence": sequence, "to": target.arn, "replace": copy.replace}
    asked.check(SEND, target.name)
    if not copy.replace:
        return await send_to(context, asked, target, copy)
    asked.check(DELETE_MESSAGES, queue.name)
    if copy.delay_s:
        raise InvalidParameterValue("A copy that replaces a message cannot be delayed.")
    parts = _contents(context, asked, target, copy)
    (content,) = parts
    if target.settings.fifo and isinstance(content, Content):
        target = target.part_for(content.group)
    operation = ResendMessage(replaces=sequence)
    *earlier, part = that_may_have(queue, sequence)
    if earlier:
        part, _ = await find_in_parts(context, asked, queue, sequence)
    sent = _sent(await context.ask(asked, operation, part, parts=parts, destination=target))
    asked.noted["sent"] = sent["message_id"]
    return sent


async def send_to(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, message: NewMessage
) -> SentMessage:
    """Send a message to a queue. Raises QueueError, AccessDenied."""
    operation = _operation(message, queue)
    parts = _contents(context, asked, queue, message)
    target = context.catalog.dead_letter_queue(queue)
    return _sent(await context.ask(asked, operation, queue, parts=parts, dead_letter_queue=target))


def _contents(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, message: NewMessage
) -> Payload:
    """The content to store. Raises QueueError, AccessDenied."""
    operation = _operation(message, queue)
    ACTIONS["SendMessage"].check(operation)
    if not asked.is_trusted:  # also its key
        url = operation.queue_url or ""
        asked.access.queue(operation, url, asked.caller, asked.sent, asked.sent.headers)
    make_payload = PAYLOADS[SendMessage]
    return make_payload(context.payloads, operation, queue, asked.caller, {})


def _operation(message: NewMessage, queue: QueueDefinition) -> SendMessage:
    attributes = {
        name: MessageAttributeValue(each.type, each.value, each.binary)
        for name, each in message.attributes.items()
    }
    trace = message.trace_header
    system = {TRACE_HEADER: MessageAttributeValue("String", trace)} if trace else None
    return SendMessage(
        queue_url=queue_url("", queue.account, queue.name),
        message_body=message.body,
        delay_seconds=message.delay_s,
        message_attributes=attributes or None,
        message_system_attributes=system,
        message_deduplication_id=message.deduplication_id,
        message_group_id=message.group_id,
    )


def _sent(answer: object) -> SentMessage:
    is_duplicate = isinstance(answer, Deduplicated)
    result = answer.result if isinstance(answer, Deduplicated) else answer
    assert isinstance(result, SendMessageResult)
    return {
        "message_id": result.message_id,
        "sequence_number": result.sequence_number,
        "is_duplicate": is_duplicate,
    }


ROUTES = (
    Route("GET", MESSAGES, BROWSE_MESSAGES, browse_messages, "messages browse"),
    Route("GET", MESSAGES + "/{sequence}", BROWSE_MESSAGES, show_message, "messages show"),
    Route("POST", MESSAGES, SEND, send_message, "messages send", body_bytes_max=BODY_BYTES_MAX),
    Route(
        "POST",
        MESSAGES + "/{sequence}/resend",
        BROWSE_MESSAGES,
        resend_message,
        "messages resend",
        body_bytes_max=BODY_BYTES_MAX,
    ),
)
