"""Answers about the audit log of all hosts."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import READ_AUDIT, Route
from sqs_api.operators.audit_lines import (
    AuditFilter,
    AuditPage,
    Line,
    action_of,
    is_by_root,
    time_of,
)
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import InvalidParameterValue

_PAGE_MAX = 500
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_TOKEN = re.compile(r"([0-9T:.+-]{29})/([0-9]{1,6})")
_NAMED = ("host", "account", "user", "access_key_id", "login", "source_ip", "queue", "outcome")
_OWN = {"time", "event", "action", *_NAMED}


_Instant = Annotated[int, Meta(ge=0, le=_LATEST_MS)]


class AuditQuery(msgspec.Struct):
    """Wanted lines of the audit log."""

    since_ms: _Instant | None = None
    until_ms: _Instant | None = None
    user: Annotated[
        str, Meta(description="A user, `root`, an access key id, an account, or a login.")
    ] = ""
    action: Annotated[str, Meta(description="A part of the action.")] = ""
    queue: Annotated[str, Meta(description="Name of a queue.")] = ""
    denied: Annotated[bool, Meta(description="Only calls that were refused.")] = False
    limit: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 100
    before: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class AuditEntry(msgspec.Struct):
    """A change, a read of bodies, or a refused call."""

    time: str
    action: str
    denied: bool
    """The call was refused because of its caller."""
    host: str | None
    account: str | None
    user: str | None
    is_root: bool
    """The account itself called, by a key that is of no user."""
    access_key_id: str | None
    login: str | None
    """The user of the machine who ran the command on the data folder, or beside its service."""
    source_ip: str | None
    queue: str | None
    outcome: str | None
    details: dict[str, Any]
    """The other members of the line."""


class AuditAnswer(msgspec.Struct):
    """A page of the audit log, the latest first."""

    entries: list[AuditEntry]
    missing: list[str]
    """Hosts that did not answer; their lines are absent."""
    next: str | None
    """Give it as `before` for the next page."""


async def read_audit(context: OperatorContext, asked: Asked, query: AuditQuery) -> AuditAnswer:
    """Lines of the audit log by time, user, action and queue, or only refused calls."""
    wanted = _filter(query)
    heard = await context.hosts.ask(READ_AUDIT, msgspec.msgpack.encode(wanted))
    pages = [msgspec.msgpack.decode(part, type=AuditPage) for part in heard.parts]
    lines, more = merged(pages, wanted)
    last = lines[-1]["time"] if lines and more else None
    given = wanted.skip if last == wanted.until else 0
    same = given + sum(line["time"] == last for line in lines)
    return AuditAnswer([_entry(line) for line in lines], heard.missing, last and f"{last}/{same}")


def _filter(query: AuditQuery) -> AuditFilter:
    wanted = AuditFilter(
        since=_time(query.since_ms),
        until=_time(query.until_ms),
        user=query.user,
        action=query.action,
        queue=query.queue,
        denied=query.denied,
        limit=query.limit,
    )
    if query.before is not None:
        found = _TOKEN.fullmatch(query.before)
        if found is None:
            raise InvalidParameterValue("before is not the token of a page.")
        wanted.until, wanted.skip = found[1], int(found[2])
    return wanted


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else time_of(at_ms)


def merged(pages: list[AuditPage], wanted: AuditFilter) -> tuple[list[Line], bool]:
    """The lines of a page of all hosts, and True if there may be more.

    It ends where a host omitted lines, since these may come next.
    """
    ordered = [
        (line["time"], line.get("host", ""), -number, page)
        for page in pages
        for number, line in enumerate(page.lines)
    ]
    ordered.sort(key=lambda each: each[:3], reverse=True)
    found, more = list[Line](), False
    for _, _, number, page in ordered:
        found.append(page.lines[-number])
        if not page.is_complete and -number == len(page.lines) - 1:
            more = True
            break
    end = _first_old(found, wanted)
    return list(islice(found, end, end + wanted.limit)), more or len(found) > end + wanted.limit


def _first_old(lines: list[Line], wanted: AuditFilter) -> int:
    """The number of leading lines that an earlier page had."""
    return min(wanted.skip, [line["time"] for line in lines].count(wanted.until))


def _entry(line: Line) -> AuditEntry:
    return AuditEntry(
        time=line["time"],
        action=action_of(line),
        denied=line["event"] == "denied",
        is_root=is_by_root(line),
        details={name: value for name, value in line.items() if name not in _OWN},
        **{name: line.get(name) for name in _NAMED},
    )


ROUTES = (Route("GET", "api/audit", READ_AUDIT, read_audit, command="audit"),)
