"""Answers about all messages that match a filter: count them, hold, delete or export them.

Each request does a bounded step; `next` is the token of the one that goes on. Messages that come or
go meanwhile change no step, and a step that is repeated does what is left. A redrive of all that
match is a task of the shard, see `redrive_answers.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked, Step
from sqs_api.admin.routes import (
    BROWSE_MESSAGES,
    DELETE_MESSAGES,
    HOLD_MESSAGES,
    MESSAGES,
    READ_BODIES,
    Route,
)
from sqs_api.operators.browsing import Scan, Scanned, read_token, write_token
from sqs_api.operators.filter_fields import (
    GivenFilter,
    check_bodies,
    check_reading,
    may_read,
    shown_filter,
)
from sqs_api.operators.hold_answers import change_selected, delete_selected, name_of
from sqs_api.operators.message_answers import FoundMessages, admit_of
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import shown_message
from visibility.contract.limits import DELETE_UNDO_SECONDS_MAX, MOVE_SELECTED_MAX
from visibility.rules.hold_messages import HoldMessages

STEP_MAX = min(1_000, MOVE_SELECTED_MAX)
EXPORTED_MAX = 200
_WAITING = "visible"


class MatchingMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that match a filter, from a step on."""

    filter: GivenFilter
    token: Annotated[str | None, Meta(description="`next` of the step before.")] = None


class MatchingInState(MatchingMessages, forbid_unknown_fields=True):
    """The same, perhaps in one state only."""

    state: Literal["all", "visible", "in flight", "delayed", "held", "deleting"] = "all"


class MatchingToDelete(MatchingMessages, forbid_unknown_fields=True):
    """Messages to delete."""

    undo_s: Annotated[int, Meta(ge=0, le=DELETE_UNDO_SECONDS_MAX)] = 0
    """Time in which the delete can be undone, of the 1,000 messages that a queue can hold; 0
    deletes at once."""


class MatchingToHold(MatchingMessages, forbid_unknown_fields=True):
    """Messages to hold."""

    owner: str | None = None
    """Their owner, by default the caller."""
    reference: str = ""


class MatchingCounts(TypedDict):
    """Numbers of those that match by their state, and of all that were looked at."""

    states: dict[str, int]
    scanned: int
    next: str | None


class MatchingDeleted(TypedDict):
    """Numbers of deleted messages, and of those that left or were received meanwhile. With an undo,
    `sequences` names them."""

    deleted: int
    kept: int
    sequences: list[int]
    scanned: int
    next: str | None


class MatchingHeld(TypedDict):
    """Numbers of held messages, and of those that left or were received meanwhile."""

    held: int
    kept: int
    scanned: int
    next: str | None


async def count_matching(
    context: OperatorContext, asked: Asked, given: MatchingInState
) -> MatchingCounts:
    """Count the messages that match, as a dry run of the others. The steps of a count are one line
    of the audit log."""
    scan = _scan(context, asked, given, given.state)
    found = await scan.count(read_token(given.token, given.state))
    asked.noted["state"] = None if given.state == "all" else given.state
    asked.step = Step(
        msgspec.structs.replace(given, token=None),
        is_first=given.token is None,
        is_last=found.position is None,
        sums={"matching": found.states.total(), "scanned": found.scanned},
    )
    return {
        "states": dict(found.states),
        "scanned": found.scanned,
        "next": write_token(found.position),
    }


async def delete_matching(
    context: OperatorContext, asked: Asked, given: MatchingToDelete
) -> MatchingDeleted:
    """Delete the messages that match and wait; those in flight and held ones stay."""
    asked.noted["undo_s"] = given.undo_s or None
    found = await _step(context, asked, given, _WAITING, STEP_MAX)
    sequences = _sequences(found)
    deleted, kept = await delete_selected(context, asked, sequences, given.undo_s)
    return {
        "deleted": deleted,
        "kept": kept,
        "sequences": sequences if given.undo_s else [],
        "scanned": found.scanned,
        "next": write_token(found.position),
    }


async def hold_matching(
    context: OperatorContext, asked: Asked, given: MatchingToHold
) -> MatchingHeld:
    """Hold the messages that match and wait."""
    owner = name_of(asked) if given.owner is None else given.owner
    asked.noted |= {"owner": owner, "reference": given.reference}
    found = await _step(context, asked, given, _WAITING, STEP_MAX)
    operation = HoldMessages(_sequences(found), owner, given.reference)
    changed = await change_selected(context, asked, operation)
    return {
        "held": changed.changed,
        "kept": changed.kept,
        "scanned": found.scanned,
        "next": write_token(found.position),
    }


async def export_matching(
    context: OperatorContext, asked: Asked, given: MatchingInState
) -> FoundMessages:
    """The messages that match, with all of their bodies."""
    queue = asked.queue(asked.parts[0])
    check_bodies(asked, queue, ())
    found = await _step(context, asked, given, given.state, EXPORTED_MAX)
    asked.bodies_read = [each.found.message.message_id for each in found.messages]
    return {
        "messages": [shown_message(queue, each, with_body=True) for each in found.messages],
        "scanned": found.scanned,
        "next": write_token(found.position),
    }


async def _step(
    context: OperatorContext, asked: Asked, given: MatchingMessages, state: str, limit: int
) -> Scanned:
    """Up to `limit` messages that match. Raises QueueError, AccessDenied."""
    scan = _scan(context, asked, given, state)
    return await scan.run(read_token(given.token, state), limit)


def _scan(context: OperatorContext, asked: Asked, given: MatchingMessages, state: str) -> Scan:
    """Raises QueueError, AccessDenied."""
    queue = asked.queue(asked.parts[0])
    asked.check(BROWSE_MESSAGES, queue.name)
    search = given.filter.at(context.now_ms)
    check_reading(asked, queue, search)
    asked.noted["filter"] = shown_filter(search)
    admit: Any = admit_of(asked, queue, may_read(asked, queue))
    return Scan(context, asked, queue, state=state, search=search, admit=admit)


def _sequences(found: Scanned) -> list[int]:
    return [each.found.sequence for each in found.messages]


_MATCHING = MESSAGES + "/matching"
ROUTES = (
    Route("POST", _MATCHING + "/count", BROWSE_MESSAGES, count_matching),
    Route("POST", _MATCHING + "/delete", DELETE_MESSAGES, delete_matching),
    Route("POST", _MATCHING + "/hold", HOLD_MESSAGES, hold_matching),
    Route("POST", _MATCHING + "/export", READ_BODIES, export_matching, "messages export"),
)
