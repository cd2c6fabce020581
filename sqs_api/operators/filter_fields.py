"""Filters of the message browser and of redrives, as operators give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict, cast

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import READ_BODIES
from visibility.content.filters import check_filter
from visibility.contract.errors import ResourceNotFound
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter

_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
HIDDEN = "(hidden)"
"""Stands for what only those may see who may read bodies."""
_ON_BODIES = ("text", "attribute", "json")
_Seconds = Annotated[int, Meta(ge=0, le=100_000_000)]


class GivenFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions that must all hold."""

    id: Annotated[
        str | None,
        Meta(description="The beginning of the message's id, or the whole of one it had before."),
    ] = None
    group: Annotated[str | None, Meta(description="The message group.")] = None
    source: Annotated[str | None, Meta(description="Name of a dead letter's source queue.")] = None
    received_min: Annotated[_Count, Meta(description="Received at least this often.")] = 0
    received_max: Annotated[_Count | None, Meta(description="Received this often at most.")] = None
    older_s: Annotated[_Seconds | None, Meta(description="Sent longer ago than this.")] = None
    newer_s: Annotated[_Seconds | None, Meta(description="Sent since then.")] = None
    text: Annotated[str | None, Meta(description="A part of the body, in upper or lower case.")] = (
        None
    )
    attribute: Annotated[
        str | None,
        Meta(
            description="NAME=VALUE of a message attribute, NAME^=VALUE: it begins so, or NAME: it "
            "is there. Several conditions are one a line."
        ),
    ] = None
    json: Annotated[
        str | None,
        Meta(
            description="PATH=VALUE of a field of a JSON body, such as items[0].sku=A1, "
            "PATH^=VALUE: it begins so, or PATH: it is there. Several conditions are one a line."
        ),
    ] = None
    failure: Annotated[
        str | None, Meta(description="The id of a failure, from the failures of the queue.")
    ] = None

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
            failure=self.failure,
        )
        check_filter(wanted)
        return wanted


class ShownFilter(TypedDict, total=False):
    """The conditions of a filter, with absolute times."""

    id: str
    group: str
    source: str
    received_min: int
    received_max: int
    sent_from_ms: int
    sent_until_ms: int
    text: str
    attribute: str
    json: str
    failure: str


def shown_filter(wanted: MessageFilter, *, reads: bool = True) -> ShownFilter:
    """The conditions of a filter as JSON; without `reads` those on bodies are there, but not what
    they look for."""
    names = {"message_id": "id"}
    hidden = () if reads else _ON_BODIES
    shown = {
        names.get(field.name, field.name): HIDDEN if field.name in hidden else value
        for field in msgspec.structs.fields(wanted)
        if (value := getattr(wanted, field.name)) != field.default
    }
    return cast(ShownFilter, shown)


def may_read(asked: Asked, queue: QueueDefinition, sources: Iterable[QueueDefinition] = ()) -> bool:
    """True if the caller may read the bodies of the queue; messages may be under the keys of
    `sources`, too."""
    may_open = asked.may_open
    return asked.may(READ_BODIES, queue.name) and all(map(may_open, (queue, *sources)))


def check_reading(
    asked: Asked,
    queue: QueueDefinition,
    wanted: MessageFilter,
    sources: Iterable[QueueDefinition] = (),
) -> None:
    """Refuse a filter that would tell what the caller may not read; messages may be under the keys
    of `sources`, too. Raises AccessDenied, ResourceNotFound."""
    if wanted.reads_bodies:
        check_bodies(asked, queue, sources)


def check_bodies(asked: Asked, queue: QueueDefinition, sources: Iterable[QueueDefinition]) -> None:
    """Refuse what tells of bodies, or changes them, to who may not read them; see
    `check_reading`."""
    asked.check(READ_BODIES, queue.name)
    if not may_read(asked, queue, sources):
        raise ResourceNotFound("The key of the queue's messages is not yours to use.")
