"""Answers about marks: add one, list them."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import ADD_MARK, Route
from sqs_api.operators.marks import Mark
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.redrive_answers import tasks_of
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable
from visibility.contract.model import QueueDefinition

_TEXT_MAX = 200


class NewMark(msgspec.Struct, forbid_unknown_fields=True):
    """Something that happens now."""

    text: Annotated[
        str, Meta(min_length=1, max_length=_TEXT_MAX, description="Such as `deploy 4711`.")
    ]


class ShownMark(TypedDict):
    """Something that happened: `kind` is `mark` for what was marked, such as a deploy, and
    `redrive` for the begin of one."""

    at_ms: int
    kind: str
    text: str
    by: str


async def add_mark(context: OperatorContext, asked: Asked, given: NewMark) -> ShownMark:
    """Mark that something happened now. Raises InvalidParameterValue for a text that is not one
    printable line."""
    text = given.text.strip()
    if not text or not text.isprintable():
        raise InvalidParameterValue("text must be one line of printable characters.")
    asked.noted["text"] = text
    repeated = asked.repeatable
    mark_id = f"{asked.caller.arn} {repeated.key}" if repeated else f"{context.bits128():032x}"
    mark = Mark(context.now_ms, text, asked.caller.user or "root", mark_id)
    await context.marks.add(mark)
    return shown_mark(mark)


async def list_marks(context: OperatorContext, asked: Asked) -> list[ShownMark]:
    """The latest marks, the earliest first."""
    return [shown_mark(each) for each in await context.marks.latest()]


def shown_mark(mark: Mark) -> ShownMark:
    """A mark as JSON."""
    return {"at_ms": mark.at_ms, "kind": "mark", "text": mark.text, "by": mark.by}


async def events_since(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, from_ms: int
) -> list[ShownMark]:
    """Marks, and begins of redrives of a queue, since a time, the earliest first. Marks belong to
    the service's account. What is away is left out."""
    found: list[ShownMark] = []
    with suppress(ServiceUnavailable):
        tasks = await tasks_of(context, asked, queue)
        found += (
            {
                "at_ms": task.started_at_ms,
                "kind": "redrive",
                "text": task.note,
                "by": task.started_by,
            }
            for task in tasks
        )
    is_own = asked.is_trusted or asked.caller.account == context.account
    with suppress(ServiceUnavailable):
        found += map(shown_mark, await context.marks.latest() if is_own else ())
    return sorted(
        (each for each in found if each["at_ms"] >= from_ms), key=lambda each: each["at_ms"]
    )


ROUTES = (
    Route("POST", "api/marks", ADD_MARK, add_mark, "mark"),
    Route("GET", "api/marks", ADD_MARK, list_marks, "mark"),
)
