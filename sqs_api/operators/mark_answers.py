"""Answers about marks: add one, list them."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import ADD_MARK, Route
from sqs_api.operators.marks import Mark
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import InvalidParameterValue

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


ROUTES = (
    Route("POST", "api/marks", ADD_MARK, add_mark, "mark"),
    Route("GET", "api/marks", ADD_MARK, list_marks, "mark"),
)
