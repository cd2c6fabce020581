"""Filters of the message browser and of redrives, as operators give them.

id=TEXT               the beginning of the message's id
group=TEXT  source=QUEUE  received_min=N  received_max=N
older_s=N  newer_s=N  sent longer ago than this, or since then
text=TEXT             a part of the body, in upper or lower case
attribute=NAME=VALUE  a message attribute; NAME alone: it is there
json=PATH=VALUE       a field of a JSON body, such as items[0].sku=A1; PATH alone: it is there
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from sqs_api.operators.asked import Asked
from sqs_api.operators.routes import READ_BODIES
from visibility.content.filters import check_filter
from visibility.contract.errors import InvalidParameterValue, ResourceNotFound
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


class GivenFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions that must all hold."""

    id: str | None = None
    group: str | None = None
    source: str | None = None
    received_min: _Count = 0
    received_max: _Count | None = None
    older_s: _Seconds | None = None
    newer_s: _Seconds | None = None
    text: str | None = None
    attribute: str | None = None
    json: str | None = None

    def at(self, now_ms: int) -> MessageFilter:
        """The filter, if it is given now. Raises InvalidParameterValue."""
        wanted = MessageFilter(
            message_id=self.id,
            group=self.group,
            source=self.source,
            received_min=self.received_min,
            received_max=self.received_max,
            sent_from_ms=0 if self.newer_s is None else now_ms - self.newer_s * 1000,
            sent_until_ms=None if self.older_s is None else now_ms - self.older_s * 1000,
            text=self.text,
            attribute=self.attribute,
            json=self.json,
        )
        check_filter(wanted)
        return wanted


def filter_of(asked: Asked, now_ms: int) -> MessageFilter:
    """The filter in the parameters of a query. Raises InvalidParameterValue."""
    given = {name: asked.text(name) for name in GivenFilter.__struct_fields__}
    present = {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(present, GivenFilter, strict=False).at(now_ms)
    except msgspec.ValidationError as error:
        raise InvalidParameterValue(f"The filter cannot be read: {error}") from error


def shown_filter(wanted: MessageFilter) -> dict[str, Any]:
    """The conditions of a filter as JSON; times are absolute."""
    names = {"message_id": "id"}
    return {
        names.get(field.name, field.name): value
        for field in msgspec.structs.fields(wanted)
        if (value := getattr(wanted, field.name)) != field.default
    }


def may_read(asked: Asked, queue: QueueDefinition) -> bool:
    """True if the caller may read the bodies of the queue."""
    return asked.may(READ_BODIES, queue.name) and asked.may_open(queue)


def check_reading(
    asked: Asked,
    queue: QueueDefinition,
    wanted: MessageFilter,
    sources: Iterable[QueueDefinition] = (),
) -> None:
    """Refuse a filter that would tell what the caller may not read; messages may be under the keys
    of `sources`, too. Raises AccessDenied, ResourceNotFound."""
    if not wanted.reads_bodies:
        return
    asked.check(READ_BODIES, queue.name)
    if not all(asked.may_open(each) for each in (queue, *sources)):
        raise ResourceNotFound("The key of the queue's messages is not yours to use.")
