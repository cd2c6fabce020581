"""StepLines: one line of the audit log for what a page asks for in many requests, such as a count.

The requests of one caller for the same thing are one, until one of them is the last, or none came
for IDLE_S. The line has their sums, and says if it is not whole.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sqs_api.admin.asked import Step
from sqs_api.gateway.audit import AuditLog

IDLE_S = 60.0
LONGEST_S = 300.0
"""After this time what is done is noted, and what follows gets a line of its own."""
OPEN_MAX = 1_000


class _Open:
    __slots__ = ("begun", "event", "fields", "requests", "sums", "timer", "until_s")

    def __init__(self, event: str, begun: str, until_s: float) -> None:
        self.event = event
        self.begun = begun
        self.until_s = until_s
        self.fields: dict[str, Any] = {}
        self.sums: dict[str, int] = {}
        self.requests = 0
        self.timer: asyncio.TimerHandle | None = None


class StepLines:
    """The lines that are not complete yet."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._open: dict[bytes, _Open] = {}
        """By what they have in common, the oldest first."""

    def note(self, event: str, step: Step, now: str, fields: dict[str, Any]) -> None:
        """Note a request that was answered at `now`, as lines have it."""
        key = msgspec.json.encode((event, step.of, fields["queue"], _caller(fields)))
        if step.is_first:
            self._end(key)
        each, loop = self._open.get(key), asyncio.get_running_loop()
        if each is None:
            if len(self._open) >= OPEN_MAX:
                self._end(next(iter(self._open)))
            each = self._open[key] = _Open(event, now, loop.time() + LONGEST_S)
        each.fields, each.requests = fields, each.requests + 1
        for name, number in step.sums.items():
            each.sums[name] = each.sums.get(name, 0) + number
        if each.timer is not None:
            each.timer.cancel()
        if step.is_last:
            self._end(key, is_whole=True)
        else:
            each.timer = loop.call_at(min(loop.time() + IDLE_S, each.until_s), self._end, key)

    def _end(self, key: bytes, *, is_whole: bool = False) -> None:
        each = self._open.pop(key, None)
        if each is None:
            return
        if each.timer is not None:
            each.timer.cancel()
        more: dict[str, Any] = {} if is_whole else {"is_whole": False}
        if each.requests > 1:
            more |= {"begun": each.begun, "requests": each.requests}
        self._audit.note(each.event, **each.fields, **each.sums, **more)

    def close(self) -> None:
        """Write the lines of those that are not whole."""
        for key in list(self._open):
            self._end(key)


def _caller(fields: dict[str, Any]) -> list[Any]:
    names = ("account", "user", "access_key_id", "login", "source_ip", "session")
    return [fields.get(name) for name in names]
