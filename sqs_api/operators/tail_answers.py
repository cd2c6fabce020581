"""The live tail of a queue: the messages that came since a token, without receiving them.

A message that came and went between two questions is not seen, and one that is delayed is seen once
it is due.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, QUEUE, Route
from sqs_api.operators.filter_fields import may_read
from sqs_api.operators.message_answers import PREVIEW_CHARACTERS, admit_of
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import ShownMessage, opened, shown_message
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.rules.browse import BROWSE_MAX, BrowseMessages

_SEQUENCE_MAX = 1 << 62
_Sequence = Annotated[int, Meta(ge=0, le=_SEQUENCE_MAX)]


class Tail(msgspec.Struct):
    """A step of the tail."""

    token: Annotated[
        str | None, Meta(description="`next` of the answer before; without it the newest few.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=BROWSE_MAX)] = 20


class Tailed(TypedDict):
    """Messages that came, the newest last. `left_out` is how many more places came than `limit`
    shows: the older ones are passed over."""

    messages: list[ShownMessage]
    left_out: int
    next: str


async def tail_queue(context: OperatorContext, asked: Asked, given: Tail) -> Tailed:
    """The messages that came since the token, the newest `limit` of each part. Raises
    InvalidParameterValue."""
    queue, known = asked.queue(asked.parts[0]), _read_token(given.token)
    reads = may_read(asked, queue)
    found: list[Browsed] = []
    left_out = 0
    for part in queue.all_parts():
        after = known.get(part.part_number, 0)
        look = BrowseMessages(after=(0, after), limit=given.limit, newest=True)
        page = await context.ask(asked, look, part)
        assert isinstance(page, BrowsedPage)
        known[part.part_number] = max(after, page.end)
        if after:
            left_out += max(0, page.end - after - given.limit)
        found += page.messages
    found.sort(key=lambda each: (each.message.sent_at_ms, each.sequence))
    admit = admit_of(asked, queue, reads)
    messages = [opened(context.sealer, each, admit) for each in found]
    if reads:
        asked.bodies_read = [each.message.message_id for each in found]
    return {
        "messages": [
            shown_message(queue, each, with_body=reads, body_max=PREVIEW_CHARACTERS)
            for each in messages
        ],
        "left_out": left_out,
        "next": urlsafe_b64encode(msgspec.msgpack.encode(known)).decode(),
    }


def _read_token(token: str | None) -> dict[int, int]:
    """The last sequence that was seen of each part. Raises InvalidParameterValue."""
    if token is None:
        return {}
    try:
        return msgspec.msgpack.decode(urlsafe_b64decode(token), type=dict[int, _Sequence])
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidParameterValue("token is not that of a tail.") from error


ROUTES = (Route("GET", QUEUE + "/tail", BROWSE_MESSAGES, tail_queue, "messages tail"),)
