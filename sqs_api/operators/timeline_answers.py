"""The answer about a message's timeline: what is stored of it, its redrives, and what the audit log
says of it.

Single receives are not stored: of each stay in a queue the first, the last and their number are.
No body is opened, so no right to read bodies is needed.
"""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import BROWSE_MESSAGES, GET_QUEUE, MESSAGES, READ_AUDIT, Route
from sqs_api.operators.audit_lines import (
    AboutMessage,
    AuditFilter,
    AuditPage,
    Line,
    action_of,
    line_ms,
    time_of,
)
from sqs_api.operators.message_answers import Due, named_message
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.redrive_answers import targets_of, tasks_of
from sqs_api.operators.shown_messages import lost_at_ms
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MoveTask
from visibility.contract.naming import parse_arn
from visibility.contract.origin import earlier_ids
from visibility.contract.outcomes import Browsed
from visibility.contract.stored_message import death_of
from visibility.rules.move_pace import prefix_of
from visibility.rules.move_tasks import READ_MAX

_LINES_MAX = 100
_SAME_MS = 5_000
"""Time after a hold in which its line was written."""
_PAGES_MAX = 2
"""Pages of a queue's redrives, which are all that it keeps."""
_TARGETS_MAX = 3
What = Literal[
    "sent",
    "received",
    "died",
    "redriven",
    "undone",
    "edited",
    "held",
    "released",
    "deleting",
    "undeleted",
    "copied",
    "noted",
    "lost",
]
_KNOWN: dict[str, What] = {
    "holdfast:HoldMessages": "held",
    "holdfast:ReleaseMessages": "released",
    "holdfast:DeleteMessages": "deleting",
    "holdfast:UndeleteMessages": "undeleted",
}
"""Actions of the audit log that change one message."""


class TimelineEntry(TypedDict):
    """Something that happened `at_ms`, 0 if the time is not kept; a loss is still to come.

    Of `count` receives the first was at `first_ms` and the last at `at_ms`, if these are known; the
    message is hidden until `until_ms`. `by` is who did it, null if that is not known. `text` is the
    cause of a death, the reason of a redrive, the reference of a hold, or the action of a line of
    the audit log (`noted`). `queue` is where it came from; `redrive` is the redrive's id.
    """

    at_ms: int
    what: What
    by: str | None
    text: str | None
    queue: str | None
    message_id: str | None
    redrive: str | None
    count: int
    first_ms: int
    until_ms: int


class Timeline(TypedDict):
    """The life of a message, the oldest first. The audit log is left out `without_audit`: the
    caller may not read it. Hosts in `missing` did not answer."""

    entries: list[TimelineEntry]
    without_audit: bool
    missing: list[str]


async def show_timeline(context: OperatorContext, asked: Asked, due: Due) -> Timeline:
    """The timeline of one message; `due_ms` names the end of its delay if it is delayed."""
    queue = asked.queue(asked.parts[0])
    found = await named_message(context, asked, queue, due)
    entries = [*_of_message(queue, found), *await _of_redrives(context, asked, queue, found)]
    lines, missing = list[Line](), list[str]()
    may_audit = asked.may_administer(READ_AUDIT, context.account)
    if may_audit:
        lines, missing = await _lines(context, queue, found)
    entries += _of_lines(lines, found, entries)
    entries.sort(key=lambda each: (each["what"] == "lost", each["at_ms"] or each["first_ms"]))
    return {"entries": entries, "without_audit": not may_audit, "missing": missing}


def _entry(what: What, at_ms: int, **known: object) -> TimelineEntry:
    entry: TimelineEntry = {
        "at_ms": at_ms,
        "what": what,
        "by": None,
        "text": None,
        "queue": None,
        "message_id": None,
        "redrive": None,
        "count": 0,
        "first_ms": 0,
        "until_ms": 0,
    }
    return entry | known  # type: ignore[return-value]


# -- what is stored --------------------------------------------------------------------------------


def _of_message(queue: QueueDefinition, found: Browsed) -> list[TimelineEntry]:
    message, hold = found.message, found.hold
    origin = message.origin
    first_id, sent_ms = message.message_id, message.sent_at_ms
    if origin is not None:
        first_id, sent_ms = origin.message_id, origin.sent_at_ms
    entries = [_entry("sent", sent_ms, message_id=first_id), *_receives(found)]
    if message.death is not None:
        source = _name(message.dead_letter_source_arn) if death_of(message) else None
        entries.append(_entry("died", message.death.at_ms, text=message.death.cause, queue=source))
    if origin is not None and origin.edits:
        entries.append(_entry("edited", origin.edited_at_ms))
    if hold is not None:
        held = _entry("held", hold.since_ms, by=hold.owner, text=hold.reference or None)
        if hold.deleted_at_ms:
            held = _entry("deleting", hold.since_ms, by=hold.owner, until_ms=hold.deleted_at_ms)
        entries.append(held)
    return [*entries, _entry("lost", lost_at_ms(message, queue))]


def _receives(found: Browsed) -> list[TimelineEntry]:
    """Receives before the last redrive or edit, before the message came here, and here."""
    message, lease, origin = found.message, found.lease, found.message.origin
    entries: list[TimelineEntry] = []
    if origin is not None:
        before = origin.before
        known = 0 if before is None else before.receive_count
        if origin.receive_count > known:
            entries.append(_entry("received", 0, count=origin.receive_count - known))
        if before is not None and known:
            first_ms = before.first_received_at_ms
            entries.append(_entry("received", 0, count=known, first_ms=first_ms))
    elsewhere = message.receive_count - message.received_here
    here, first_ms, last_ms = message.received_here, message.first_received_at_ms, 0
    if lease is not None and lease.received_at_ms:
        elsewhere, here = lease.base_count, lease.receive_count - lease.base_count
        first_ms, last_ms = lease.first_received_at_ms, lease.received_at_ms
    if elsewhere:
        entries.append(_entry("received", 0, count=elsewhere, first_ms=first_ms))
    if here:
        until_ms = found.due_ms if found.state == "in flight" else 0
        first_here_ms = 0 if elsewhere else first_ms
        entries.append(
            _entry("received", last_ms, count=here, first_ms=first_here_ms, until_ms=until_ms)
        )
    return entries


# -- redrives --------------------------------------------------------------------------------------


async def _of_redrives(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, found: Browsed
) -> list[TimelineEntry]:
    """The last redrive, and the last one that was undone, each with who began it."""
    message, origin = found.message, found.message.origin
    if origin is None:
        return []
    tasks = await _tasks(context, asked, queue)
    entries: list[TimelineEntry] = []
    if origin.before is not None:
        redriven = _redriven(_task_of(tasks, message.message_id), message.message_id)
        entries.append(redriven | {"at_ms": message.sent_at_ms})
    if origin.undone_id:
        task = _task_of(tasks, origin.undone_id)
        entries.append(_redriven(task, origin.undone_id))
        by = None if task is None else await _undone_by(context, asked, task)
        entries.append(_entry("undone", origin.undone_at_ms, by=by))
    return entries


def _redriven(task: MoveTask | None, message_id: str) -> TimelineEntry:
    if task is None:
        return _entry("redriven", 0, message_id=message_id)
    return _entry(
        "redriven",
        task.started_at_ms,
        by=_who(task.started_by),
        text=task.note or None,
        queue=_name(task.source_arn),
        message_id=message_id,
        redrive=task.task_id,
    )


def _task_of(tasks: list[MoveTask], message_id: str) -> MoveTask | None:
    return next((each for each in tasks if message_id.startswith(prefix_of(each.task_id))), None)


async def _tasks(context: OperatorContext, asked: Asked, queue: QueueDefinition) -> list[MoveTask]:
    """Redrives of the queue and of its dead-letter queue, if the caller may see them."""
    tasks: list[MoveTask] = []
    for each in (queue, context.catalog.dead_letter_queue(queue)):
        if each is None or not asked.may(GET_QUEUE, each.name):
            continue
        before = 0
        for _ in range(_PAGES_MAX):
            page = await tasks_of(context, asked, each, before)
            tasks += page
            if len(page) < READ_MAX or page[-1].number <= 1:
                break
            before = page[-1].number
    return tasks


async def _undone_by(context: OperatorContext, asked: Asked, undone: MoveTask) -> str | None:
    """The caller who had messages of a redrive brought back."""
    for arn in targets_of(undone)[:_TARGETS_MAX]:
        target = context.catalog.queue_of_arn(arn)
        if target is None or not asked.may(GET_QUEUE, target.name):
            continue
        for task in await tasks_of(context, asked, target):
            if task.undoes == undone.task_id:
                return _who(task.started_by)
    return None


def _name(arn: str | None) -> str | None:
    found = None if arn is None else parse_arn(arn)
    return None if found is None else found.name


def _who(arn: str) -> str | None:
    """The name of a caller, as the audit log has it."""
    return arn.rpartition(":")[2].removeprefix("user/") or None


# -- the audit log ---------------------------------------------------------------------------------


async def _lines(
    context: OperatorContext, queue: QueueDefinition, found: Browsed
) -> tuple[list[Line], list[str]]:
    """Lines of all hosts about the message, and the hosts that did not answer."""
    message = found.message
    ids = [message.message_id, *earlier_ids(message)]
    since_ms = message.joined_at_ms or message.sent_at_ms
    about = AboutMessage(ids, queue.arn, found.sequence, time_of(since_ms))
    wanted = AuditFilter(about=about, limit=_LINES_MAX)
    heard = await context.hosts.ask(READ_AUDIT, msgspec.msgpack.encode(wanted))
    pages = [msgspec.msgpack.decode(part, type=AuditPage) for part in heard.parts]
    return [line for page in pages for line in page.lines], heard.missing


def _of_lines(
    lines: list[Line], found: Browsed, entries: list[TimelineEntry]
) -> list[TimelineEntry]:
    """The lines as entries. That of the last edit tells who made it instead, and that of the
    present hold nothing new."""
    noted: list[TimelineEntry] = []
    edited = next((each for each in entries if each["what"] == "edited"), None)
    held_ms = 0 if found.hold is None else found.hold.since_ms
    for line in lines:
        by = line.get("user") or line.get("login") or line.get("access_key_id") or "root"
        if edited is not None and line.get("sent") == found.message.message_id:
            edited["by"] = by
            edited["queue"] = _name(line.get("queue"))
            continue
        if (
            _KNOWN.get(action_of(line)) in ("held", "deleting")
            and held_ms <= line_ms(line) < held_ms + _SAME_MS
        ):
            continue
        noted.append(_of_line(line, by))
    return noted


def _of_line(line: Line, by: str) -> TimelineEntry:
    action, at_ms = action_of(line), line_ms(line)
    if "to" in line:
        return _entry("copied", at_ms, by=by, queue=_name(line["to"]))
    if action in _KNOWN:
        return _entry(_KNOWN[action], at_ms, by=by, text=line.get("reference") or None)
    return _entry("noted", at_ms, by=by, text=action.removeprefix("holdfast:"))


ROUTES = (
    Route(
        "GET",
        MESSAGES + "/{sequence}/timeline",
        BROWSE_MESSAGES,
        show_timeline,
        "messages timeline",
    ),
)
