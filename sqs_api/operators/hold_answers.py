"""Answers about held messages: holds, and deletes that can be undone.

Both hold messages (`visibility/rules/hold_messages.py`). Each is ended with the permission that
began it: who may delete only cannot release what somebody holds.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from cluster.parts.part_requests import by_sequences
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, DELETE_MESSAGES, HOLD_MESSAGES, MESSAGES, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.limits import DELETE_UNDO_SECONDS_MAX
from visibility.contract.outcomes import Answer, SelectedChanged, SelectedDeleted
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.rules.selected import DeleteSelected, selected


class SelectedMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Messages by their sequences."""

    sequences: list[int]


class MessagesToDelete(SelectedMessages, forbid_unknown_fields=True):
    """Messages to delete."""

    undo_s: Annotated[int, msgspec.Meta(ge=0, le=DELETE_UNDO_SECONDS_MAX)] = 0
    """Time in which the delete can be undone; 0 deletes at once."""


class MessagesToHold(SelectedMessages, forbid_unknown_fields=True):
    """Messages to hold."""

    owner: str | None = None
    """Their owner, by default the caller."""
    reference: str = ""


class DeletedMessages(TypedDict):
    """Numbers of deleted messages, and of those that are in flight, delayed, held or gone."""

    deleted: int
    kept: int


class UndeletedMessages(TypedDict):
    """Numbers of messages that are back, and of those that are deleted for good."""

    undeleted: int
    gone: int


class HeldMessages(TypedDict):
    """Numbers of held messages, and of those that are in flight, delayed or gone."""

    held: int
    kept: int


class QuarantinedMessages(TypedDict):
    """`HeldMessages` under its old name."""

    quarantined: int
    kept: int


class ReleasedMessages(TypedDict):
    """Numbers of messages that are visible again, and of those that were not held."""

    released: int
    kept: int


async def delete_messages(
    context: OperatorContext, asked: Asked, given: MessagesToDelete
) -> DeletedMessages:
    """Delete the selected messages that wait; those in flight and held ones stay."""
    asked.noted |= {"sequences": given.sequences, "undo_s": given.undo_s or None}
    deleted, kept = await delete_selected(context, asked, given.sequences, given.undo_s)
    return {"deleted": deleted, "kept": kept}


async def delete_selected(
    context: OperatorContext, asked: Asked, sequences: list[int], undo_s: int
) -> tuple[int, int]:
    """The numbers of deleted messages, and of those that stay; see `MessagesToDelete`."""
    if not undo_s:
        answers = await _ask_parts(context, asked, DeleteSelected(sequences))
        deleted = sum(each.deleted for each in answers if isinstance(each, SelectedDeleted))
        return deleted, len(selected(sequences)) - deleted
    operation = HoldMessages(sequences, owner=name_of(asked), delete_after_ms=undo_s * 1000)
    changed = await change_selected(context, asked, operation)
    return changed.changed, changed.kept


async def undelete_messages(
    context: OperatorContext, asked: Asked, given: SelectedMessages
) -> UndeletedMessages:
    """Bring back deleted messages while their delete can be undone."""
    asked.noted["sequences"] = given.sequences
    changed = await change_selected(context, asked, ReleaseMessages(given.sequences, deleting=True))
    return {"undeleted": changed.changed, "gone": changed.kept}


async def hold_messages(
    context: OperatorContext, asked: Asked, given: MessagesToHold
) -> HeldMessages:
    """Keep the selected messages that wait from everyone, until they are released or expire."""
    owner = name_of(asked) if given.owner is None else given.owner
    asked.noted |= {"sequences": given.sequences, "owner": owner, "reference": given.reference}
    operation = HoldMessages(given.sequences, owner, given.reference)
    changed = await change_selected(context, asked, operation)
    return {"held": changed.changed, "kept": changed.kept}


async def quarantine_messages(
    context: OperatorContext, asked: Asked, given: MessagesToHold
) -> QuarantinedMessages:
    """Hold messages: the old name of that, for one release."""
    answer = await hold_messages(context, asked, given)
    return {"quarantined": answer["held"], "kept": answer["kept"]}


async def release_messages(
    context: OperatorContext, asked: Asked, given: SelectedMessages
) -> ReleasedMessages:
    """Make held messages visible again."""
    asked.noted["sequences"] = given.sequences
    changed = await change_selected(context, asked, ReleaseMessages(given.sequences))
    return {"released": changed.changed, "kept": changed.kept}


def name_of(asked: Asked) -> str:
    """The name of the caller as an owner."""
    return asked.caller.user or "root"


async def change_selected(
    context: OperatorContext, asked: Asked, operation: HoldMessages | ReleaseMessages
) -> SelectedChanged:
    """Have all parts of the queue decide; the sums."""
    answers = await _ask_parts(context, asked, operation)
    changed = sum(each.changed for each in answers if isinstance(each, SelectedChanged))
    return SelectedChanged(changed, len(selected(operation.sequences)) - changed)


async def _ask_parts(
    context: OperatorContext,
    asked: Asked,
    operation: DeleteSelected | HoldMessages | ReleaseMessages,
) -> list[Answer]:
    """Have each part of the queue decide about the messages that it may have. A part that does
    not answer ends it; the same request again does what is left."""
    queue = asked.queue(asked.parts[0])
    asked.check(BROWSE_MESSAGES, queue.name)
    answers = []
    for part, sequences in by_sequences(queue, selected(operation.sequences)):
        cut = msgspec.structs.replace(operation, sequences=sequences)
        answers.append(await context.ask(asked, cut, part))
    return answers


ROUTES = (
    Route("POST", MESSAGES + "/delete", DELETE_MESSAGES, delete_messages, "messages delete"),
    Route("POST", MESSAGES + "/undelete", DELETE_MESSAGES, undelete_messages, "messages undelete"),
    Route("POST", MESSAGES + "/hold", HOLD_MESSAGES, hold_messages, "messages hold"),
    Route(
        "POST",
        MESSAGES + "/quarantine",
        HOLD_MESSAGES,
        quarantine_messages,
        renamed="hold messages",
    ),
    Route("POST", MESSAGES + "/release", HOLD_MESSAGES, release_messages, "messages release"),
)
