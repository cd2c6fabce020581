"""Answers about the failures of a dead-letter queue: all its messages, by what they failed for.

`sqs_api/failures` counts them on the hosts that lead; this adds up what they say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, QUEUE, Route
from sqs_api.failures.failure_index import FAILURES, GroupReport, PartReport
from sqs_api.operators.filter_fields import may_read
from sqs_api.operators.mark_answers import ShownMark, events_since
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable
from visibility.contract.model import QueueDefinition

_SHOWN = 50
_SHOWN_MAX = 200
_BARS = 48
_BAR_MS_MIN = 60_000
_HOUR_S = 3_600


class FailureListing(msgspec.Struct):
    """The failures of a queue, in an order."""

    limit: Annotated[int, Meta(ge=1, le=_SHOWN_MAX)] = _SHOWN
    sort: Literal["messages", "first", "last", "lost"] = "messages"


class Sign(TypedDict):
    """A sign of a failure: the name is `attribute:NAME`, `json:PATH`, `fields` or `text`; numbers,
    ids and quoted parts of the value are folded."""

    name: str
    value: str


class ShownFailure(TypedDict):
    """The messages that failed for the same reason. `first_ms` and `last_ms` tell when they came to
    the queue, `last_hour` how many came in the last hour, `lost_ms` when the first is lost: to the
    minute. `bars` are as those of the queue. `id` chooses the messages in a filter. For who may not
    read bodies `id` and `signs` are null. `sources` are by name, "" for no or yet another one."""

    id: str | None
    signs: list[Sign] | None
    messages: int
    sources: dict[str, int]
    first_ms: int
    last_ms: int
    last_hour: int
    lost_ms: int
    bars: list[int]
    sample: int | None


class Failures(TypedDict):
    """The failures of a queue. `messages` are those counted of the `stored` ones; all are if it
    `is_exact`. A bar counts the messages that came in `bar_ms` from `begin_ms` on. `others` are the
    messages of failures that are not listed, of which there are `failures_total` in all."""

    failures: list[ShownFailure]
    failures_total: int
    others: int
    messages: int
    stored: int
    is_exact: bool
    begin_ms: int
    bar_ms: int
    marks: list[ShownMark]


async def show_failures(
    context: OperatorContext, asked: Asked, listing: FailureListing
) -> Failures:
    """The failures of a dead-letter queue, counted over all its messages. Raises
    InvalidParameterValue for another queue, ServiceUnavailable while no host that leads answers."""
    queue = asked.queue(asked.parts[0])
    sources = context.catalog.dead_letter_sources(queue)
    if not sources:
        raise InvalidParameterValue(f"{queue.name} is the dead-letter queue of no queue.")
    reads = may_read(asked, queue, sources)
    parts = [part.queue_id for part in queue.all_parts()]
    heard = await context.hosts.ask(FAILURES, msgspec.msgpack.encode(parts))
    reports = {
        each.queue_id: each
        for said in heard.parts
        for each in msgspec.msgpack.decode(said, type=list[PartReport])
    }
    is_fed = any(context.catalog.dead_letter_queue(each) is not None for each in sources)
    if is_fed and not reports:
        raise ServiceUnavailable(f"No host that leads {queue.name} answers now.")
    groups = _added(each for report in reports.values() for each in report.groups)
    groups.sort(key=lambda each: _order(listing.sort, each))
    shown = groups[: listing.limit]
    if reads:
        asked.noted["search"] = {"failures": len(shown)}
    end_ms = context.now_ms
    begin_ms = min((each.first_s * 1000 for each in shown), default=end_ms)
    bar_ms = max(_BAR_MS_MIN, (end_ms - begin_ms) // _BARS + 1)
    counted = sum(each.counted for each in reports.values())
    return {
        "failures": [
            _shown(queue, each, reads=reads, begin_ms=begin_ms, bar_ms=bar_ms, now_ms=end_ms)
            for each in shown
        ],
        "failures_total": len(groups),
        "others": counted - sum(each.messages for each in shown),
        "messages": counted,
        "stored": sum(each.stored for each in reports.values()),
        "is_exact": len(reports) == len(parts) and all(each.is_exact for each in reports.values()),
        "begin_ms": begin_ms,
        "bar_ms": bar_ms,
        "marks": await events_since(context, asked, queue, begin_ms),
    }


def _order(sort: str, group: GroupReport) -> tuple[int, str]:
    keys = {
        "messages": -group.messages,
        "first": -group.first_s,
        "last": -group.last_s,
        "lost": group.retained_from_s,
    }
    return keys[sort], group.failure_id


def _added(groups: Iterable[GroupReport]) -> list[GroupReport]:
    """The groups of all parts; those of one failure are one."""
    found: dict[str, GroupReport] = {}
    for group in groups:
        known = found.get(group.failure_id)
        found[group.failure_id] = group if known is None else _sum(known, group)
    return list(found.values())


def _sum(one: GroupReport, other: GroupReport) -> GroupReport:
    names = one.sources | other.sources
    return msgspec.structs.replace(
        one,
        messages=one.messages + other.messages,
        sources={name: one.sources.get(name, 0) + other.sources.get(name, 0) for name in names},
        first_s=min(one.first_s, other.first_s),
        last_s=max(one.last_s, other.last_s),
        retained_from_s=min(one.retained_from_s, other.retained_from_s),
        span_s=max(one.span_s, other.span_s),
        spans=[*one.spans, *other.spans],
        samples=one.samples or other.samples,
    )


def _shown(
    queue: QueueDefinition,
    group: GroupReport,
    *,
    reads: bool,
    begin_ms: int,
    bar_ms: int,
    now_ms: int,
) -> ShownFailure:
    bars = [0] * _BARS
    last_hour = 0
    for at_s, messages in group.spans:
        bars[max(0, min(_BARS - 1, (at_s * 1000 - begin_ms) // bar_ms))] += messages
        if at_s + group.span_s > now_ms // 1000 - _HOUR_S:
            last_hour += messages
    return {
        "id": group.failure_id if reads else None,
        "signs": [{"name": name, "value": value} for name, value in group.signs] if reads else None,
        "messages": group.messages,
        "sources": group.sources,
        "first_ms": group.first_s * 1000,
        "last_ms": group.last_s * 1000,
        "last_hour": last_hour,
        "lost_ms": group.retained_from_s * 1000 + queue.settings.retention_ms,
        "bars": bars,
        "sample": group.samples[0] if group.samples else None,
    }


ROUTES = (Route("GET", QUEUE + "/failures", BROWSE_MESSAGES, show_failures, "queues failures"),)
