"""Answers about groups of messages that have something in common, from a bounded sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, QUEUE, Route
from sqs_api.operators.browsing import SCANNED_MAX, Position, Scan
from sqs_api.operators.filter_fields import check_reading, may_read
from sqs_api.operators.message_answers import admit_of
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import Opened
from visibility.content.filters import attribute_text, check_filter, field_text
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter

_GROUPS_MAX = 50
_BARS = 24
_VALUE_CHARACTERS_MAX = 200
_KINDS = ("source", "group", "attribute", "json")


class Grouping(msgspec.Struct):
    """The fingerprint by which messages are grouped."""

    by: Annotated[
        str,
        Meta(
            description="`source`: the queue that a dead letter came from; `group`: the message "
            "group; `attribute:NAME`: a message attribute; `json:PATH`: a field of a JSON body."
        ),
    ] = _KINDS[0]


class Group(TypedDict):
    """Messages with the same fingerprint. `filter` chooses them, if it can be given."""

    value: str | None
    is_cut: bool
    count: int
    oldest_ms: int
    newest_ms: int
    bars: list[int]
    filter: dict[str, str] | None


class Groups(TypedDict):
    """Groups of a sample. A bar counts the messages sent in `bar_ms` from `begin_ms` on."""

    groups: list[Group]
    groups_total: int
    begin_ms: int
    bar_ms: int
    scanned: int
    is_whole: bool


async def show_groups(context: OperatorContext, asked: Asked, grouping: Grouping) -> Groups:
    """Groups by a fingerprint, the largest first, with the times at which they were sent."""
    queue = asked.queue(asked.parts[0])
    kind, name = _fingerprint(grouping)
    if kind in ("attribute", "json"):
        search = MessageFilter(attribute=name) if kind == "attribute" else MessageFilter(json=name)
        check_filter(search)
        check_reading(asked, queue, search)
        asked.noted["search"] = {"groups_by": f"{kind}:{name}"}
    admit = admit_of(asked, queue, may_read(asked, queue))
    scan = Scan(context, asked, queue, state="all", search=MessageFilter(), admit=admit)
    sample = await scan.run(Position(), SCANNED_MAX)
    is_whole = sample.position is None or await _is_end(context, asked, queue, sample.position)
    sent = [each.found.message.sent_at_ms for each in sample.messages]
    begin_ms = min(sent, default=0)
    bar_ms = (max(sent, default=0) - begin_ms) // _BARS + 1
    groups = sorted(_grouped(sample.messages, kind, name), key=lambda each: -len(each[1]))
    return {
        "groups": [
            _shown(kind, name, value, times, begin_ms, bar_ms)
            for value, times in groups[:_GROUPS_MAX]
        ],
        "groups_total": len(groups),
        "begin_ms": begin_ms,
        "bar_ms": bar_ms,
        "scanned": sample.scanned,
        "is_whole": is_whole,
    }


async def _is_end(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, at: Position
) -> bool:
    """True if there is no message from here on."""
    scan = Scan(context, asked, queue, state="all", search=MessageFilter(), admit=None)
    return not (await scan.run(at, 1)).scanned


def _fingerprint(grouping: Grouping) -> tuple[str, str]:
    kind, _, name = grouping.by.partition(":")
    if kind not in _KINDS or bool(name) is (kind in ("source", "group")):
        raise InvalidParameterValue("by must be source, group, attribute:NAME or json:PATH.")
    return kind, name


def _grouped(
    messages: Iterable[Opened], kind: str, name: str
) -> Iterable[tuple[str | None, list[int]]]:
    found: dict[str | None, list[int]] = {}
    for message in messages:
        value = _value(message, kind, name)
        found.setdefault(value, []).append(message.found.message.sent_at_ms)
    return found.items()


def _value(message: Opened, kind: str, name: str) -> str | None:
    """The text of a message's fingerprint; None if it has none."""
    if kind == "source":
        source = message.found.message.dead_letter_source_arn
        return source.rpartition(":")[2] if source else None
    if kind == "group":
        return message.extras.group_id if message.extras else None
    if kind == "attribute":
        return attribute_text(message.extras, name)
    return field_text(message.body or "", name)


def _shown(
    kind: str, name: str, value: str | None, times: list[int], begin_ms: int, bar_ms: int
) -> Group:
    bars = [0] * _BARS
    for sent_at_ms in times:
        bars[(sent_at_ms - begin_ms) // bar_ms] += 1
    is_long = value is not None and len(value) > _VALUE_CHARACTERS_MAX
    wanted = None
    if value is not None and not is_long:
        wanted = {kind: f"{name}={value}" if name else value}
    return {
        "value": value[:_VALUE_CHARACTERS_MAX] if value is not None else None,
        "is_cut": is_long,
        "count": len(times),
        "oldest_ms": min(times),
        "newest_ms": max(times),
        "bars": bars,
        "filter": wanted,
    }


ROUTES = (Route("GET", QUEUE + "/groups", BROWSE_MESSAGES, show_groups),)
