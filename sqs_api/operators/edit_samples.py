"""Messages before and after an edit, which a plan shows. They are opened here, where the caller's
rights are known."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from sqs_api.admin.asked import Asked
from sqs_api.operators.message_answers import admit_of, find_in_parts
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import opened
from visibility.content.edits import edited_body
from visibility.contract.model import QueueDefinition

_BODY_MAX = 65_536
"""Characters of a body that is shown; a longer one is in no sample."""


class EditedSample(TypedDict):
    """The body of one message before and after the edit."""

    sequence: int
    message_id: str
    before: str
    after: str


async def edited_samples(
    context: OperatorContext,
    asked: Asked,
    queue: QueueDefinition,
    edit: str,
    sequences: list[int],
) -> list[EditedSample]:
    """These messages, as far as they are there; the caller may read bodies. Raises QueueError."""
    found = await asyncio.gather(*(_sample(context, asked, queue, edit, at) for at in sequences))
    samples = [each for each in found if each is not None]
    asked.bodies_read += [each["message_id"] for each in samples]
    return samples


async def _sample(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, edit: str, sequence: int
) -> EditedSample | None:
    """None if the message is gone, long, or cannot be edited any more."""
    _, browsed = await find_in_parts(context, asked, queue, sequence)
    if browsed is None:
        return None
    message = opened(context.sealer, browsed, admit_of(asked, queue, reads=True))
    after = None if message.body is None else edited_body(message.body, edit)
    if message.body is None or after is None or max(len(message.body), len(after)) > _BODY_MAX:
        return None
    message_id = message.found.message.message_id
    return {
        "sequence": sequence,
        "message_id": message_id,
        "before": message.body,
        "after": after,
    }
