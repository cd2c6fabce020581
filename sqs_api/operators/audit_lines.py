"""Lines of one host's audit log that match a filter, the latest first.

A page ends early at a number of bytes. What it omits begins after its last line, so that pages of
several hosts can be merged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sqs_api.gateway.audit import FILE_NAME, FILES_KEPT

_PAGE_BYTES = 1 << 20
_DENIED = ("denied", "denied_omitted")
_CALLERS = ("user", "access_key_id", "account", "login")
ROOT = "root"
"""The account itself, called by a key that is of no user."""
_QUEUES = ("queue", "source", "destination", "to")
"""Fields that name a queue, by name, URL or ARN."""
Line = dict[str, Any]


class AboutMessage(msgspec.Struct):
    """A message: the ids that it had, and its place in the queue with this ARN since a time, as the
    lines have it."""

    ids: list[str]
    queue: str
    sequence: int
    since: str

    def may_be_in(self, text: bytes) -> bool:
        """False for a line that need not be decoded."""
        return self.queue.encode() in text or any(each.encode() in text for each in self.ids)

    def is_in(self, line: Line) -> bool:
        """True for the line of a change of the message that was made; reads are none."""
        if line.get("outcome") != "ok":
            return False
        if line.get("sent") in self.ids:
            return True
        is_here = line.get("queue") == self.queue and line.get("time", "") >= self.since
        return is_here and self.sequence in (line.get("sequences") or [line.get("sequence")])


class AuditFilter(msgspec.Struct):
    """The wanted lines; empty texts match all."""

    since: str = ""
    """The earliest time, as the lines have it."""
    until: str = ""
    """The latest time."""
    user: str = ""
    """The name of a user, ROOT, an access key id, an account, or the login of a command's user."""
    action: str = ""
    """A part of the action."""
    queue: str = ""
    denied: bool = False
    """Only calls that were refused because of their caller."""
    about: AboutMessage | None = None
    """Only lines that name this message."""
    skip: int = 0
    """Lines at `until` that earlier pages had, on all hosts together."""
    limit: int = 100

    def matches(self, line: Line) -> bool:
        """True for a wanted line."""
        at = line.get("time", "")
        return (
            (not self.until or at <= self.until)
            and at >= self.since
            and (not self.denied or line["event"] in _DENIED)
            and self.action.lower() in action_of(line).lower()
            and (not self.user or self._is_by(line))
            and (self.about is None or self.about.is_in(line))
            and (not self.queue or any(_names(line.get(field), self.queue) for field in _QUEUES))
        )

    def _is_by(self, line: Line) -> bool:
        return self.user in map(line.get, _CALLERS) or (self.user == ROOT and is_by_root(line))


class AuditPage(msgspec.Struct):
    """The latest lines of one host that match."""

    lines: list[Line]
    is_complete: bool
    """False if there may be more."""


def action_of(line: Line) -> str:
    """The action of a line; of a refusal the one that was refused."""
    return str(line.get("action") or line["event"])


def is_by_root(line: Line) -> bool:
    """True for a call of the account itself."""
    return "access_key_id" in line and "account" in line and line.get("user") is None


def time_of(at_ms: int) -> str:
    """An instant as the lines have it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def line_ms(line: Line) -> int:
    """The instant of a line; 0 if it cannot be read."""
    try:
        return int(datetime.fromisoformat(line["time"]).timestamp() * 1000)
    except ValueError:
        return 0


def _names(field: object, queue: str) -> bool:
    return isinstance(field, str) and field.replace("/", ":").rpartition(":")[2] == queue


class AuditReader:
    """Reads the files of one data folder."""

    def __init__(self, data: Path, host: str | None) -> None:
        """`host`: name of this host of a cluster, for lines of commands, which have none."""
        self._file = data / FILE_NAME
        self._host = host
        self._one = asyncio.Lock()

    async def answer(self, body: bytes) -> bytes:
        """An AuditPage for an AuditFilter, both as msgpack."""
        wanted = msgspec.msgpack.decode(body, type=AuditFilter)
        async with self._one:  # one thread at a time
            page = await asyncio.to_thread(read_lines, self._file, wanted, self._host)
        return msgspec.msgpack.encode(page)


def read_lines(file: Path, wanted: AuditFilter, host: str | None = None) -> AuditPage:
    """The latest lines that match, of the file and those that it was rotated to."""
    found, size = list[Line](), 0
    words = [word.encode() for word in (wanted.user, wanted.queue) if word not in ("", ROOT)]
    about = wanted.about
    with ExitStack() as opened:
        for text in _latest_first(_open_all(file, opened)):
            if not all(word in text for word in words):
                continue  # to decode it would take longer
            if about is not None and not about.may_be_in(text):
                continue
            line = _decoded(text)
            if line is None or not wanted.matches(line):
                continue
            if host is not None:
                line.setdefault("host", host)
            found.append(line)
            size += len(text)
            is_full = size >= _PAGE_BYTES and len(found) > wanted.skip
            if is_full or len(found) > wanted.skip + wanted.limit:
                return AuditPage(found, is_complete=False)
    return AuditPage(found, is_complete=True)


def _open_all(file: Path, opened: ExitStack) -> list[BinaryIO]:
    """The files, the latest first. One that is rotated meanwhile is opened once."""
    files: dict[int, BinaryIO] = {}
    for number in range(FILES_KEPT + 1):
        with suppress(FileNotFoundError):
            path = file.with_name(f"{file.name}.{number}") if number else file
            stream = opened.enter_context(path.open("rb"))
            files.setdefault(os.fstat(stream.fileno()).st_ino, stream)
    return list(files.values())


def _latest_first(files: list[BinaryIO]) -> Iterator[bytes]:
    for file in files:
        yield from reversed(file.read().splitlines())


def _decoded(text: bytes) -> Line | None:
    """None for a line that a crash cut off."""
    try:
        line = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return line if isinstance(line, dict) and {"time", "event"} <= line.keys() else None
