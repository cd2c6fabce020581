"""The answer about a message of whatever queue: which queue has it, by its id.

A message's id says nothing of its queue, and no index has ids: all messages are looked at, a queue
after the other, for a second a request.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked, Step
from sqs_api.admin.routes import BROWSE_MESSAGES, LIST_QUEUES, Route
from sqs_api.operators.browsing import Position, Scan
from sqs_api.operators.filter_fields import GivenFilter, may_read
from sqs_api.operators.message_answers import PREVIEW_CHARACTERS, admit_of
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.scan_turns import NoTurn
from sqs_api.operators.shown_messages import ShownMessage, shown_message
from sqs_api.operators.shown_queues import EMPTY
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable
from visibility.contract.model import QueueDefinition

_FOUND_MAX = 10
_STEP_S = 1.0
"""Time after which no further queue is begun."""
_CHECKED = 100
"""Queues that are passed by before other requests come first."""


class WantedMessage(msgspec.Struct, frozen=True):
    """A message of any queue."""

    id: Annotated[
        str,
        Meta(description="The beginning of the message's id, or the whole of one it had before."),
    ]
    token: Annotated[str | None, Meta(description="`next` of the step before.")] = None


class MessageOfQueue(ShownMessage):
    """A message, and its queue."""

    queue: str


class MessagesAnywhere(TypedDict):
    """The messages of the first queue that has some, among the `scanned` messages; `next` goes on.
    `unseen` are queues whose shard did not answer, and which were passed by."""

    messages: list[MessageOfQueue]
    scanned: int
    unseen: list[str]
    next: str | None


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """The search goes on in this queue, or in the first one after it."""

    queue_id: int
    at: Position


async def find_message(
    context: OperatorContext, asked: Asked, given: WantedMessage
) -> MessagesAnywhere:
    """Find a message by its id in all queues that the caller may browse, for a second; a queue
    after the other, by age. Cut bodies, as in a page of a queue."""
    wanted = GivenFilter(id=given.id).at(context.now_ms)
    place = _read(given.token)
    until_s = context.monotonic_s() + _STEP_S
    scanned, unseen, lost = 0, list[str](), set[int]()
    messages: list[MessageOfQueue] = []
    for number, queue in enumerate(await _queues(context, asked, place.queue_id)):
        at = place.at if queue.queue_id == place.queue_id else Position()
        place = _Place(queue.queue_id, at)
        if messages or (number and context.monotonic_s() >= until_s):
            break
        if number % _CHECKED == _CHECKED - 1:
            await asyncio.sleep(0)
        if not asked.may(BROWSE_MESSAGES, queue.name):
            continue
        reads = may_read(asked, queue)
        admit = admit_of(asked, queue, reads)
        scan = Scan(context, asked, queue, state="all", search=wanted, admit=admit)
        try:
            if not queue.parts and queue.shard in lost:
                raise ServiceUnavailable
            found = await scan.run(at, _FOUND_MAX)
        except NoTurn:
            raise
        except ServiceUnavailable:
            if not queue.parts:  # else it may be the shard of any part
                lost.add(queue.shard)
            unseen.append(queue.name)
            continue
        scanned += found.scanned
        for message in found.messages:
            shown = shown_message(queue, message, with_body=reads, body_max=PREVIEW_CHARACTERS)
            messages.append({**shown, "queue": queue.name})
            if reads:
                asked.bodies_read.append(shown["message_id"])
        if found.position is not None:
            place = _Place(queue.queue_id, found.position)
            break
    else:
        place = _Place(0, Position())
    asked.noted["search"] = {"id": given.id}
    asked.step = Step(
        msgspec.structs.replace(given, token=None),
        is_first=given.token is None,
        is_last=bool(messages) or not place.queue_id,
        sums={"scanned": scanned},
    )
    token = _write(place) if place.queue_id else None
    return {"messages": messages, "scanned": scanned, "unseen": unseen, "next": token}


async def _queues(context: OperatorContext, asked: Asked, first: int) -> list[QueueDefinition]:
    """Those from this id on that have messages, or may have some."""
    queues = [queue for queue in context.queues_of(asked) if queue.queue_id >= first]
    readings = await context.readings.of(queues)
    return sorted(
        (
            queue
            for queue in queues
            if (reading := readings.get(queue.queue_id, EMPTY)) is None
            or reading.visible + reading.in_flight + reading.delayed
        ),
        key=lambda queue: queue.queue_id,
    )


def _write(place: _Place) -> str:
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _read(token: str | None) -> _Place:
    """Raises InvalidParameterValue."""
    if token is None:
        return _Place(0, Position())
    try:
        place = msgspec.json.decode(urlsafe_b64decode(token), type=_Place)
    except (ValueError, msgspec.MsgspecError):
        place = _Place(0, Position(-1))
    if place.at.phase not in (0, 1) or min(place.at.due_ms, place.at.sequence, place.at.part) < 0:
        raise InvalidParameterValue("token is not that of a step of this search.")
    return place


ROUTES = (Route("GET", "api/messages", LIST_QUEUES, find_message, "messages find"),)
