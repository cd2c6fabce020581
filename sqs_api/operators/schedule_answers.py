"""Answers that change when delayed messages are delivered, or cancel them."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from cluster.parts.part_requests import by_sequences
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, DELETE_MESSAGES, MESSAGES, SEND, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.outcomes import SelectedChanged
from visibility.rules.schedules import ChangeSchedule


class DelayedPlace(msgspec.Struct, forbid_unknown_fields=True):
    """A delayed message, by its sequence and the end of its delay."""

    sequence: int
    due_ms: int


class DelayedMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Delayed messages."""

    messages: list[DelayedPlace]


class MessagesToReschedule(DelayedMessages, forbid_unknown_fields=True):
    """Delayed messages, and the instant at which they are to be delivered."""

    at_ms: Annotated[int, msgspec.Meta(ge=1, le=1 << 52)]
    """An instant that is over delivers them now."""


class CanceledMessages(TypedDict):
    """Numbers of canceled messages, and of those that are not delayed any more."""

    canceled: int
    kept: int


class RescheduledMessages(TypedDict):
    """Numbers of rescheduled messages, and of those that are not delayed any more."""

    rescheduled: int
    kept: int


async def cancel_messages(
    context: OperatorContext, asked: Asked, given: DelayedMessages
) -> CanceledMessages:
    """Delete delayed messages before they are delivered."""
    changed = await _change(context, asked, given, 0)
    return {"canceled": changed.changed, "kept": changed.kept}


async def reschedule_messages(
    context: OperatorContext, asked: Asked, given: MessagesToReschedule
) -> RescheduledMessages:
    """Deliver delayed messages at another time, at most a year ahead."""
    asked.noted["at_ms"] = given.at_ms
    asked.check(SEND, asked.queue(asked.parts[0]).name)
    changed = await _change(context, asked, given, given.at_ms)
    return {"rescheduled": changed.changed, "kept": changed.kept}


async def _change(
    context: OperatorContext, asked: Asked, given: DelayedMessages, at_ms: int
) -> SelectedChanged:
    """Have each part of the queue decide about its messages. A part that does not answer ends it;
    the same request again does what is left."""
    due_ms = {each.sequence: each.due_ms for each in given.messages}
    asked.noted["sequences"] = list(due_ms)
    queue = asked.queue(asked.parts[0])
    asked.check(BROWSE_MESSAGES, queue.name)
    changed = 0
    for part, sequences in by_sequences(queue, list(due_ms)):
        places = [(due_ms[sequence], sequence) for sequence in sequences]
        answer = await context.ask(asked, ChangeSchedule(places, at_ms), part)
        assert isinstance(answer, SelectedChanged)
        changed += answer.changed
    return SelectedChanged(changed, len(due_ms) - changed)


ROUTES = (
    Route("POST", MESSAGES + "/cancel", DELETE_MESSAGES, cancel_messages, "messages cancel"),
    Route(
        "POST",
        MESSAGES + "/reschedule",
        DELETE_MESSAGES,
        reschedule_messages,
        "messages reschedule",
    ),
)
