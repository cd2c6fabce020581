"""Answers about replays of archived messages: the plan, and a step.

A replay sends copies, oldest first, by requests of a hundred messages each: the client goes on by
`next`. The audit log has the id of each copy with that of its original.
"""

from __future__ import annotations

import re
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import REDRIVE_MESSAGES, SEND, Route
from sqs_api.archiving.archive_search import ArchivedRow, FoundRows, Place
from sqs_api.operators.archive_answers import (
    ArchiveFilter,
    check_key,
    note_search,
    place_of,
    search_of,
)
from sqs_api.operators.message_answers import NewAttribute, NewMessage, send_to
from sqs_api.operators.operator_context import OperatorContext
from storage.lake.near_names import did_you_mean
from visibility.contract.errors import (
    InvalidParameterValue,
    QueueDoesNotExist,
    QueueError,
    ResourceNotFound,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition

_STEP = 100
_PLAN_STEP = 1_000
_Places = Annotated[list[str], Meta(max_length=_STEP)]
_SEALED = "It is sealed: the archive has it encrypted only."
_DAMAGED = "Its checksum in the archive is wrong."
_EMPTY = "It has no body."


class GivenReplay(msgspec.Struct, forbid_unknown_fields=True):
    """Archived messages to send again, chosen by their places or a filter."""

    places: Annotated[_Places | None, Meta(description="The selected messages.")] = None
    filter: Annotated[ArchiveFilter | None, Meta(description="Without any condition: all.")] = None
    to: Annotated[str | None, Meta(description="By default the messages' own queue.")] = None
    token: Annotated[str | None, Meta(description="`next` of the step before.")] = None


class ReplayPlan(TypedDict):
    """Copies that a step would send and their bytes, and messages that would be left out: sealed,
    damaged, or too large for the queue."""

    to: str
    messages: int
    bytes: int
    sealed: int
    damaged: int
    too_large: int
    oldest_ms: int
    newest_ms: int
    scanned: int
    next: str | None


class Copy(TypedDict):
    """A copy and its original. A duplicate was sent within the last minutes and is not stored."""

    place: str
    original_id: str
    message_id: str
    is_duplicate: bool


class LeftOut(TypedDict):
    """A message of which no copy was sent."""

    place: str
    original_id: str
    reason: str


class ReplayStep(TypedDict):
    """The outcome of a step. `stopped` is the reason why it ended early: go on later."""

    to: str
    copies: list[Copy]
    left_out: list[LeftOut]
    scanned: int
    next: str | None
    stopped: str | None


async def plan_replay(context: OperatorContext, asked: Asked, given: GivenReplay) -> ReplayPlan:
    """The numbers of a replay, without sending; `next` goes on."""
    target = _target(context, asked, given)
    found, begun_ms = await _find(context, asked, given, _PLAN_STEP, body_max=0)
    size_max = target.settings.maximum_message_size
    sound = [row for row in found.rows if not row.is_sealed and not row.is_damaged]
    sent = [row for row in sound if row.size <= size_max]
    return {
        "to": target.name,
        "messages": len(sent),
        "bytes": sum(row.size for row in sent),
        "sealed": sum(row.is_sealed for row in found.rows),
        "damaged": sum(row.is_damaged and not row.is_sealed for row in found.rows),
        "too_large": len(sound) - len(sent),
        "oldest_ms": min((row.sent_at_ms for row in sent), default=0),
        "newest_ms": max((row.sent_at_ms for row in sent), default=0),
        "scanned": found.scanned,
        "next": _token(begun_ms, found.next),
    }


async def replay_archive(context: OperatorContext, asked: Asked, given: GivenReplay) -> ReplayStep:
    """Send copies of up to 100 archived messages, the oldest first; `next` goes on."""
    target = _target(context, asked, given)
    found, begun_ms = await _find(context, asked, given, _STEP, body_max=None)
    step: ReplayStep = {
        "to": target.name,
        "copies": [],
        "left_out": [],
        "scanned": found.scanned,
        "next": _token(begun_ms, found.next),
        "stopped": None,
    }
    asked.noted["copies"] = {}
    for number, row in enumerate(found.rows):
        try:
            await _copy(context, asked, target, row, step)
        except ServiceUnavailable as error:
            if number == 0:
                raise
            step["next"] = _token(begun_ms, found.rows[number - 1].place)
            step["stopped"] = error.message
            break
    return step


def _target(context: OperatorContext, asked: Asked, given: GivenReplay) -> QueueDefinition:
    """The queue that gets the copies. Raises QueueError, AccessDenied."""
    if (given.places is None) is (given.filter is None):
        raise InvalidParameterValue("Give places or a filter.")
    name = given.to or asked.parts[0]
    asked.check(SEND, name)
    check_key(context, asked)
    target = asked.queue(name)
    asked.noted["to"] = target.arn
    return target


async def _find(
    context: OperatorContext, asked: Asked, given: GivenReplay, limit: int, *, body_max: int | None
) -> tuple[FoundRows, int]:
    """The rows of a step, and the time of the first one."""
    chosen = given.filter or ArchiveFilter()
    begun_ms, after = _read_token(given.token, context.now_ms)
    wanted = chosen.at(begun_ms)
    note_search(context, asked, wanted, chosen.reason)
    if given.places is None:
        end = wanted.sent_until_ms
        until = begun_ms if end is None else min(end, begun_ms)
        wanted = msgspec.structs.replace(wanted, sent_until_ms=until)
    places = None if given.places is None else tuple(map(place_of, given.places))
    if given.places is not None:
        asked.noted["places"] = given.places
    found = await context.archive.search(
        search_of(
            context,
            asked,
            limit=limit,
            filter=wanted,
            reason=chosen.reason,
            oldest_first=True,
            after=after,
            places=places,
            body_max=body_max,
        )
    )
    if found.near is not None:
        _check_known(asked, found.near)
    return found, begun_ms


def _check_known(asked: Asked, near: list[str]) -> None:
    """Raise ResourceNotFound unless the service has the queue, of which nothing is archived."""
    name = asked.parts[0]
    try:
        asked.queue(name)
    except QueueDoesNotExist as error:
        shown = [each for each in near if asked.may(REDRIVE_MESSAGES, each)]
        raise ResourceNotFound(
            f"Neither the archive nor the service has a queue {name}{did_you_mean(shown)}"
        ) from error


def _read_token(token: str | None, now_ms: int) -> tuple[int, Place | None]:
    """The time of the first step, and the place to go on from.

    Copies that are archived meanwhile are sent later than that, so a replay does not replay them.
    Raises InvalidParameterValue.
    """
    if not token:
        return now_ms, None
    begun, _, place = token.partition(":")
    if not re.fullmatch(r"[0-9]{1,15}", begun):
        raise InvalidParameterValue("token is not that of a step.")
    return min(int(begun), now_ms), place_of(place)


def _token(begun_ms: int, place: Place | None) -> str | None:
    return None if place is None else f"{begun_ms}:{place}"


async def _copy(
    context: OperatorContext,
    asked: Asked,
    target: QueueDefinition,
    row: ArchivedRow,
    step: ReplayStep,
) -> None:
    """Send a copy, or say why not. Raises ServiceUnavailable."""
    place, reason = str(row.place), _unreadable(row)
    if reason is None:
        try:
            sent = await send_to(context, asked, target, _message(row, target))
        except ServiceUnavailable:
            raise
        except QueueError as refusal:
            reason = refusal.message
        else:
            asked.noted["copies"][row.message_id] = sent["message_id"]
            step["copies"].append(
                {
                    "place": place,
                    "original_id": row.message_id,
                    "message_id": sent["message_id"],
                    "is_duplicate": sent["is_duplicate"],
                }
            )
            return
    step["left_out"].append({"place": place, "original_id": row.message_id, "reason": reason})


def _unreadable(row: ArchivedRow) -> str | None:
    if row.is_sealed:
        return _SEALED
    if row.is_damaged:
        return _DAMAGED
    return None if row.body else _EMPTY


def _message(row: ArchivedRow, target: QueueDefinition) -> NewMessage:
    """The copy. In a FIFO queue its deduplication id is that of its place, so that a step which is
    repeated within five minutes sends nothing twice."""
    place, attributes = row.place, row.extras.attributes or {}
    is_fifo = target.settings.fifo
    return NewMessage(
        body=row.body or "",
        attributes={name: _attribute(*each) for name, each in attributes.items()},
        group_id=(row.extras.group_id or row.message_id) if is_fifo else None,
        deduplication_id=(
            f"replay-{place.source}-{place.shard}-{place.position}" if is_fifo else None
        ),
    )


def _attribute(kind: str, value: bytes) -> NewAttribute:
    if kind.startswith("Binary"):
        return NewAttribute(kind, binary=value)
    return NewAttribute(kind, value=value.decode())


ROUTES = (
    Route(
        "POST", "api/archive/{queue}/replays/plan", REDRIVE_MESSAGES, plan_replay, "archive replay"
    ),
    Route(
        "POST", "api/archive/{queue}/replays", REDRIVE_MESSAGES, replay_archive, "archive replay"
    ),
)
