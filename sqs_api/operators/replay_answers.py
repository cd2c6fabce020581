"""Answers about replays of archived messages: the plan, and a step.

A replay sends copies, oldest first, by requests of a hundred messages each: the client goes on by
`next`. The audit log has the id of each copy with that of its original.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
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

STEP = 100
PLAN_STEP = 1_000
_Places = Annotated[list[str], Meta(max_length=STEP)]
_SEALED = "It is sealed: the archive has it encrypted only."
_DAMAGED = "Its checksum in the archive is wrong."
_EMPTY = "It has no body."
_HELD = "An earlier message of its group was left out."
_HELD_MAX = 1_000
_DIGEST_BYTES = 8


class GivenReplay(msgspec.Struct, forbid_unknown_fields=True):
    """Archived messages to send again, chosen by their places or a filter."""

    places: Annotated[_Places | None, Meta(description="The selected messages.")] = None
    filter: Annotated[ArchiveFilter | None, Meta(description="Without any condition: all.")] = None
    to: Annotated[str | None, Meta(description="By default the messages' own queue.")] = None
    token: Annotated[str | None, Meta(description="`next` of the step before.")] = None


class _Progress:
    """A replay so far: the time of its first step, the place to go on from, and the groups of a
    FIFO queue of which a message was left out, by their digests."""

    def __init__(self, begun_ms: int, after: Place | None = None, held: bytes = b"") -> None:
        self.begun_ms = begun_ms
        self.after = after
        starts = range(0, len(held), _DIGEST_BYTES)
        self._held = {held[start : start + _DIGEST_BYTES] for start in starts}

    def holds(self, group: str) -> bool:
        """True if the messages of this group wait for one that was left out. Of too many groups
        none goes on."""
        return len(self._held) >= _HELD_MAX or _digest(group) in self._held

    def hold(self, group: str) -> None:
        """Leave out the later messages of this group."""
        if len(self._held) < _HELD_MAX:
            self._held.add(_digest(group))

    def token(self, place: Place | None) -> str | None:
        """The token of the next step, which goes on from there; None at the end."""
        if place is None:
            return None
        held = urlsafe_b64encode(b"".join(sorted(self._held))).decode()
        return f"{self.begun_ms}:{place}:{held}" if held else f"{self.begun_ms}:{place}"


def _digest(group: str) -> bytes:
    return blake2b(group.encode(), digest_size=_DIGEST_BYTES).digest()


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
    found, progress = await _find(context, asked, given, PLAN_STEP, body_max=0)
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
        "next": progress.token(found.next),
    }


async def replay_archive(context: OperatorContext, asked: Asked, given: GivenReplay) -> ReplayStep:
    """Send copies of up to 100 archived messages, the oldest first; `next` goes on."""
    target = _target(context, asked, given)
    found, progress = await _find(context, asked, given, STEP, body_max=None)
    step: ReplayStep = {
        "to": target.name,
        "copies": [],
        "left_out": [],
        "scanned": found.scanned,
        "next": None,
        "stopped": None,
    }
    asked.noted["copies"] = {}
    for number, row in enumerate(found.rows):
        try:
            await _copy(context, asked, target, row, step, progress)
        except ServiceUnavailable as error:
            if number == 0:
                raise
            step["next"] = progress.token(found.rows[number - 1].place)
            step["stopped"] = error.message
            return step
    step["next"] = progress.token(found.next)
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
) -> tuple[FoundRows, _Progress]:
    """The rows of a step, and the progress until then."""
    chosen = given.filter or ArchiveFilter()
    progress = _read_token(given.token, context.now_ms)
    wanted = chosen.at(progress.begun_ms)
    note_search(context, asked, wanted, chosen.reason)
    if given.places is None:
        end = wanted.sent_until_ms
        until = progress.begun_ms if end is None else min(end, progress.begun_ms)
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
            after=progress.after,
            places=places,
            body_max=body_max,
        )
    )
    if found.near is not None:
        _check_known(asked, found.near)
    return found, progress


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


def _read_token(token: str | None, now_ms: int) -> _Progress:
    """The progress so far.

    Copies that are archived meanwhile are sent after the first step, so a replay does not replay
    them. Raises InvalidParameterValue.
    """
    if not token:
        return _Progress(now_ms)
    begun, _, rest = token.partition(":")
    place, _, held = rest.partition(":")
    try:
        digests = urlsafe_b64decode(held)
    except ValueError:
        digests = b"?"
    is_whole = len(digests) % _DIGEST_BYTES == 0
    if not re.fullmatch(r"[0-9]{1,15}", begun) or not is_whole:
        raise InvalidParameterValue("token is not that of a step.")
    return _Progress(min(int(begun), now_ms), place_of(place), digests)


async def _copy(
    context: OperatorContext,
    asked: Asked,
    target: QueueDefinition,
    row: ArchivedRow,
    step: ReplayStep,
    progress: _Progress,
) -> None:
    """Send a copy, or say why not. Raises ServiceUnavailable.

    In a FIFO queue, a damaged or refused message holds back the later ones of its group, as in the
    job `replay`.
    """
    place, reason = str(row.place), _unreadable(row)
    is_fifo, group = target.settings.fifo, row.extras.group_id or row.message_id
    if is_fifo and not row.is_sealed and progress.holds(group):
        reason = _HELD
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
    if is_fifo and not row.is_sealed:
        progress.hold(group)
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
        group_id=row.extras.group_id or (row.message_id if is_fifo else None),
        deduplication_id=(
            f"replay-{place.source}-{place.shard}-{place.position}" if is_fifo else None
        ),
        trace_header=row.extras.trace_header,
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
