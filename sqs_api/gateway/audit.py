"""Audit log: administrative changes and refusals with their callers. A JSON object a line, in files
rotated by size.

A thread of its own writes the lines, so that a slow disk delays no request; on a full disk lines
are lost, counted and logged, and requests go on. Refusals beyond a rate are counted instead of
written: an attacker must not fill the disk.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol

import structlog
from typing_extensions import override

from auth.caller import Caller
from visibility.contract.operations import Operation

FILE_NAME = "audit.log"
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 5
_WAITING_MAX = 10_000
_DENIED_PER_S_MAX = 50
_DETAIL_CHARACTERS_MAX = 32 << 10
"""Limit of a line: more than any policy SQS takes. A refused request may hold megabytes."""


def audit_line(wall_s: float, event: str, **fields: Any) -> str:
    """One line without its line end; fields that are None are left out."""
    at = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    line = {"time": at, "event": event} | {k: v for k, v in fields.items() if v is not None}
    return json.dumps(line, default=str)


class AuditUnusable(Exception):
    """The file cannot be opened; the text gives the reason in one line."""


class AuditLines(Protocol):
    """The place of the lines."""

    lost: int
    """Lines that could not be written."""

    def put(self, line: str) -> None:
        """Write a line, soon."""

    def close(self) -> None:
        """Write the waiting lines, and end."""


class _File(RotatingFileHandler):
    def __init__(self, file: Path, on_failed: Callable[[], None]) -> None:
        super().__init__(file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
        self._on_failed = on_failed

    @override
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            if self.stream is not None and not self._is_in_place(self.stream.fileno()):
                moved, self.stream = self.stream, None
                moved.close()
        super().emit(record)  # opens the file if none is open

    def _is_in_place(self, handle: int) -> bool:
        """False once somebody moved or removed the file, as other programs for logs do. Raises
        OSError."""
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(handle))
        except FileNotFoundError:
            return False

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        self._on_failed()


class AuditFile(AuditLines):
    """The file."""

    def __init__(self, file: Path) -> None:
        """Open or create it. Raises AuditUnusable."""
        try:
            self._handler = _File(file, self._write_failed)
        except OSError as error:
            raise AuditUnusable(f"cannot open the audit log: {error.strerror}") from error
        self._log = structlog.get_logger("audit")
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_MAX)
        self.lost = 0
        self._thread = threading.Thread(target=self._write_forever, name="audit", daemon=True)
        self._thread.start()

    @override
    def put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1

    @override
    def close(self) -> None:
        self._lines.put(None)
        self._thread.join()
        with suppress(OSError):  # lines that failed before would fail again
            self._handler.close()

    def _write_forever(self) -> None:
        while (line := self._lines.get()) is not None:
            record = logging.LogRecord("audit", logging.INFO, "", 0, line, None, None)
            self._handler.emit(record)

    def _write_failed(self) -> None:
        """On the thread, in the exception's handler."""
        self.lost += 1
        if self.lost == 1:
            self._log.error("audit_not_written", error=str(sys.exc_info()[1]))


class AuditLog:
    """Makes the lines."""

    def __init__(
        self,
        lines: AuditLines,
        wall_s: Callable[[], float],
        host: str | None,
        *,
        workers: int,
    ) -> None:
        """The lines have the name of this `host` of a cluster, None of a single host. Each of the
        workers of a machine writes its share of the refusals."""
        self.lines = lines
        self._host = host
        self._wall_s = wall_s
        self._denied_max = _DENIED_PER_S_MAX // workers
        self._second = 0
        self._denied = 0
        self._omitted = 0

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self.lines.lost

    def note(self, event: str, **fields: Any) -> None:
        """Write a line; fields that are None are left out."""
        self.lines.put(audit_line(self._wall_s(), event, host=self._host, **fields))

    def action(
        self,
        operation: Operation,
        action: str,
        caller: Caller,
        source_ip: str,
        request_id: str,
        refusal: str,
    ) -> None:
        """Note an administrative action and how it ended; `refusal` is an error code, empty if it
        was done."""
        self.note(
            action,
            request_id=request_id,
            account=caller.account,
            user=caller.user,
            access_key_id=caller.access_key_id,
            region=caller.region,
            source_ip=source_ip,
            outcome=refusal or "ok",
            **_what(operation),
        )

    def denied(
        self, action: str, caller: Caller | None, source_ip: str, request_id: str | None, code: str
    ) -> None:
        """Note a call refused because of its caller; `caller` and `request_id` may be None."""
        second = int(self._wall_s())
        if second != self._second:
            if self._omitted:
                self.note("denied_omitted", count=self._omitted)
            self._second, self._denied, self._omitted = second, 0, 0
        self._denied += 1
        if self._denied > self._denied_max:
            self._omitted += 1
            return
        self.note(
            "denied",
            request_id=request_id,
            action=action,
            account=None if caller is None else caller.account,
            user=None if caller is None else caller.user,
            access_key_id=None if caller is None else caller.access_key_id,
            source_ip=source_ip,
            outcome=code,
        )

    def close(self) -> None:
        """Write the waiting lines, and end."""
        if self._omitted:
            self.note("denied_omitted", count=self._omitted)
        self.lines.close()


def _what(operation: Operation) -> dict[str, Any]:
    """Details of an action: the queue, and the attributes, tags or permissions in question, but no
    bodies."""
    found: dict[str, Any] = {}
    for field, name in (
        ("queue_name", "queue"),
        ("queue_url", "queue"),
        ("source_arn", "source"),
        ("destination_arn", "destination"),
        ("label", "label"),
        ("aws_account_ids", "accounts"),
        ("actions", "actions"),
        ("attributes", "attributes"),
        ("tags", "tags"),
        ("tags_on_create", "tags"),
        ("tag_keys", "tag_keys"),
    ):
        value = getattr(operation, field, None)
        if value:
            found[name] = value
    size = len(json.dumps(found, default=str))
    return found if size <= _DETAIL_CHARACTERS_MAX else {"details_omitted": size}
