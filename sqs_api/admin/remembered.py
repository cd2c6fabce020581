"""RememberedAnswers: a change that a client sends more than once is made once.

    Idempotency-Key    names what the client wants done, such as by a UUID. A repetition with the
                       same key gets the answer of the first request, also while that is under way
    Idempotency-Age    of a repetition that the client knows of: milliseconds since the first one

Keys are those of one caller. Answers are kept for ten minutes and in bounds, in this process only.
A refusal is not kept: the same request may be tried again. A repetition that says its age is
refused where the answer to its first request may have been forgotten, such as by a restart.

A repetition may reach another host of a cluster. If it says its age, the shards tell what they did
(`visibility/rules/retries.py`): sends, deletes, holds and redrives happen once. Everything
else happens again there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from visibility.contract.errors import InvalidParameterValue, QueueError, RequestThrottled

KEY, AGE = "Idempotency-Key", "Idempotency-Age"
KEPT_S = 600.0
KEYS_MAX = 200
"""Keys that are remembered for a caller; the oldest are forgotten first."""
UNDER_WAY_MAX = 50
"""Requests of a caller that may wait for their answers."""
CALLER_BYTES_MAX = 1 << 20
BYTES_MAX = 16 << 20
"""Size of the answers to all callers; each counts some bytes more for its key."""
_ENTRY_BYTES = 500
_SWEEP_S = 60.0
_DONE = 200
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AGE = re.compile(r"[0-9]{1,9}")


class IdempotencyKeyReused(QueueError):
    """The key is that of another request."""

    code = "IdempotentParameterMismatch"
    default_message = "This Idempotency-Key was sent with another request before."


class OutcomeUnknown(QueueError):
    """The first request may have been answered, and the answer is forgotten."""

    code = "OutcomeUnknown"
    default_message = (
        "This may have been done when it was sent before: the service restarted since, or has "
        "forgotten. Look, and send it once more if it was not."
    )


class Said(NamedTuple):
    """An answer: its status, its body as JSON, and perhaps a Set-Cookie header, or a Retry-After
    header in seconds."""

    status: int
    body: bytes
    cookie: str | None = None
    retry_after_s: int | None = None


class Repeatable(NamedTuple):
    """The key of a request, and its age in milliseconds, 0 for one that is not known to be a
    repetition."""

    key: str
    age_ms: int


def read_repeatable(headers: Mapping[bytes, bytes]) -> Repeatable | None:
    """The key in the headers (names in lower case); None without one. Raises
    InvalidParameterValue."""
    key = headers.get(KEY.lower().encode())
    if key is None:
        return None
    name, age = key.decode("latin-1"), headers.get(AGE.lower().encode(), b"0").decode("latin-1")
    if _KEY.fullmatch(name) is None:
        raise InvalidParameterValue(f"{KEY} takes 1 to 64 of A-Z, a-z, 0-9, - and _.")
    if _AGE.fullmatch(age) is None:
        raise InvalidParameterValue(f"{AGE} takes milliseconds.")
    return Repeatable(name, int(age))


_NOTHING = Said(0, b"")


@dataclass(slots=True, eq=False)
class _Request:
    """A request that was sent, and its answer."""

    digest: bytes
    """The digest of all that it asks for."""
    begun_s: float
    task: asyncio.Task[Said] | None = None
    """None once it is answered."""
    said: Said = _NOTHING

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + len(self.said.body)


@dataclass(slots=True, eq=False)
class _Caller:
    """The requests of a caller by key, oldest first."""

    requests: dict[str, _Request] = field(default_factory=dict)
    bytes: int = 0
    forgotten_s: float = 0.0
    """Answers to requests that began after this time are known."""

    @property
    def under_way(self) -> int:
        return sum(each.task is not None for each in self.requests.values())

    def forget(self, key: str) -> int:
        """Returns the bytes that this frees."""
        request = self.requests.pop(key)
        self.forgotten_s = max(self.forgotten_s, request.begun_s)
        self.bytes -= request.size
        return request.size

    def oldest(self) -> tuple[str, float] | None:
        """The oldest answered request and its time; None without one."""
        for key, request in self.requests.items():
            if request.task is None:
                return key, request.begun_s
        return None


class RememberedAnswers:
    """Those of one process."""

    def __init__(self, now_s: Callable[[], float], age_s_max: float) -> None:
        """`now_s` is a monotonic clock. A repetition older than `age_s_max` is refused unless its
        answer is known here."""
        self._now_s = now_s
        self._age_s_max = min(age_s_max, KEPT_S)
        self._begun_s = self._swept_s = now_s()
        self._callers: dict[str, _Caller] = {}
        self._bytes = 0

    async def answer(
        self,
        name: str,
        request: Repeatable,
        digest: bytes,
        decide: Callable[[], Awaitable[Said]],
    ) -> Said:
        """The answer to a request of the caller of that name. For the first one with its key it is
        that of `decide`, which goes on if the client hangs up.

        Raises IdempotencyKeyReused, OutcomeUnknown, RequestThrottled.
        """
        now_s = self._now_s()
        self._sweep(now_s)
        caller = self._callers.get(name) or _Caller(forgotten_s=self._begun_s)
        found = caller.requests.get(request.key)
        if found is None:
            first_s = now_s - request.age_ms / 1000
            if request.age_ms and first_s <= max(caller.forgotten_s, now_s - self._age_s_max):
                raise OutcomeUnknown
            if caller.under_way >= UNDER_WAY_MAX:
                raise RequestThrottled("Too many requests of this caller are under way.")
            self._callers[name] = caller
            found = caller.requests[request.key] = _Request(digest, now_s)
            self._count(caller, found.size)
            deciding = self._decided(caller, request.key, found, decide)
            found.task = asyncio.get_running_loop().create_task(deciding)
        elif found.digest != digest:
            raise IdempotencyKeyReused
        return found.said if found.task is None else await asyncio.shield(found.task)

    async def _decided(
        self, caller: _Caller, key: str, request: _Request, decide: Callable[[], Awaitable[Said]]
    ) -> Said:
        try:
            said = await decide()
        except BaseException:
            self._count(caller, -request.size)
            del caller.requests[key]
            raise
        request.task = None
        if said.status != _DONE:
            self._count(caller, -request.size)
            del caller.requests[key]
        else:
            request.said = said._replace(cookie=None)
            self._count(caller, len(said.body))
            self._bound(caller)
        return said

    # -- bounds ------------------------------------------------------------------------------------

    def _count(self, caller: _Caller, size: int) -> None:
        caller.bytes += size
        self._bytes += size

    def _bound(self, caller: _Caller) -> None:
        while len(caller.requests) > KEYS_MAX or caller.bytes > CALLER_BYTES_MAX:
            if not self._forget_oldest(caller):
                break
        while self._bytes > BYTES_MAX:
            if not self._forget_oldest(max(self._callers.values(), key=lambda each: each.bytes)):
                break

    def _forget_oldest(self, caller: _Caller) -> bool:
        oldest = caller.oldest()
        if oldest is not None:
            self._bytes -= caller.forget(oldest[0])
        return oldest is not None

    def _sweep(self, now_s: float) -> None:
        """Forget what is too old, once a minute."""
        if now_s - self._swept_s < _SWEEP_S:
            return
        self._swept_s = now_s
        for name, caller in list(self._callers.items()):
            while (oldest := caller.oldest()) is not None and oldest[1] <= now_s - KEPT_S:
                self._bytes -= caller.forget(oldest[0])
            if not caller.requests:
                del self._callers[name]
