"""EtcdClient: requests to an etcd of several members, with failover, deadlines and tokens.

An answer that never came, or whose error does not say that nothing happened, is NoAnswer: the
request may have been carried out. Only errors that etcd gives before it proposes a change, or
instead of it, are Refused. An answer of a member that has not yet heard of the latest election
counts as none, since it may be from before it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from cluster.coordination import etcd_messages
from cluster.coordination.etcd_wire import NoAnswer, Reply, TooLate, Wire

_FAILURES = 2
"""Failures in a row: the first may be that of a single member, which another one replaces."""


class EtcdOutage:
    """One log line when etcd is away, and one when it is back, however many watches of a client see
    it."""

    def __init__(self, *, is_logged: bool) -> None:
        """`is_logged` is False for further clients of the same process, which see the same."""
        self._is_logged = is_logged
        self._failures: dict[object, int] = {}
        """By watch, since it last reported something."""
        self._is_away = False
        self._log = structlog.get_logger("etcd")

    def failed(self, watch: object, reason: str) -> None:
        """A watch ended, and begins anew."""
        count = self._failures[watch] = self._failures.get(watch, 0) + 1
        if count < _FAILURES or self._is_away:
            return
        self._is_away = True
        if not self._is_logged:
            return
        self._log.warning(
            "etcd_away",
            reason=reason,
            means="messages are served on; queues, users and keys cannot be changed, and no other "
            "host can take over a shard",
            action="start etcd's members, or mend the network to them: see `holdfast cluster "
            "status`",
        )

    def answered(self, watch: object) -> None:
        """A watch reports again."""
        if self._failures.pop(watch, 0) and self._is_away and not self._failures:
            self._is_away = False
            if self._is_logged:
                self._log.warning("etcd_back")

    def ended(self, watch: object) -> None:
        """Nobody watches any more."""
        self._failures.pop(watch, None)


A = TypeVar("A", bound=etcd_messages.Answer)

NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE = 5, 6, 11
"""Codes of gRPC: no such lease; a lease with this id; a revision that was compacted."""
_DEFINITE = {3, NOT_FOUND, ALREADY_EXISTS, 7, 8, 9, OUT_OF_RANGE, 12, 16}
"""Codes of errors that change nothing. Unavailable (14) is not one: it includes requests that timed
out on their way to a majority; Unknown (2) was seen for a lost leader."""
_UNAUTHENTICATED = 16
_BAD_TOKEN = ("invalid auth token", "revision of auth store is old")
_NO_LEADER = "no leader"
"""Text of the error that precedes any proposal: the member refuses as the header asks it to."""
_TRY_S = 2.0
"""Limit of a single try: a member whose leader died keeps a request for longer than that."""
_PAUSE_S = 0.1
"""Pause after all endpoints have failed in turn."""
_ANYHOW = {"Content-Type": "application/json"}
"""For a member's own state, which it tells without a leader."""
_PLAIN = {"Accept-Encoding": "identity"}
_QUOTA = re.compile(rb"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_HEADERS = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
"""Without `hasleader` a member that is cut off keeps requests waiting, and a watch for ever."""


class Refused(Exception):
    """etcd refused the request; nothing changed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class TokenRefused(Refused):
    """The token ended, or the member that issued it restarted."""


class Deadline:
    """The time left for all tries at something."""

    def __init__(self, after_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_s = self._loop.time() + after_s

    def left_s(self) -> float:
        """Seconds, 0 when it is over."""
        return max(0.0, self._at_s - self._loop.time())


class Access(NamedTuple):
    """An etcd and its user."""

    endpoints: tuple[str, ...]
    """Client URLs of the members."""
    user: str = ""
    """Empty for an etcd without authentication. Certificates do not name users at the gateway."""
    password: str = ""


class EtcdStatus(msgspec.Struct, frozen=True):
    """A member of etcd, as this host sees it; `alarms` has NOSPACE when its quota is full, which
    makes etcd refuse all changes."""

    endpoint: str
    is_reached: bool = False
    """False if it does not answer: then the rest is not known."""
    version: str = ""
    database_bytes: int = 0
    quota_bytes: int = 0
    """Limit of its database, above which etcd refuses all changes; 0 if it is not known."""
    has_leader: bool = False
    is_leader: bool = False
    alarms: tuple[str, ...] = ()


class EtcdClient:
    """The wire is closed with it."""

    def __init__(self, access: Access, wire: Wire, *, logs_outages: bool = True) -> None:
        self._access = access
        self._wire = wire
        self._endpoints = deque(each.rstrip("/") for each in access.endpoints)
        """The first is asked; one that fails goes to the end."""
        self._token = ""
        self._cluster_id = 0
        self._term = 0
        """The highest raft term seen."""
        self._behind: set[str] = set()
        """Endpoints that answered with a lower term since one did not."""
        self.history = 0
        """Counts the times that etcd was replaced, or restored from a copy: since then revisions
        mean something else."""
        self.outage = EtcdOutage(is_logged=logs_outages)
        self._log = structlog.get_logger("etcd")

    async def close(self) -> None:
        """Close all connections."""
        await self._wire.close()

    # -- requests ----------------------------------------------------------------------------------

    async def ask(
        self, path: str, message: etcd_messages.Message, kind: type[A], deadline: Deadline
    ) -> A:
        """Ask one endpoint after the other; for requests that may be repeated. Raises Refused,
        NoAnswer with the latest reason that is more than silence."""
        failures, count = 0, len(self._endpoints)
        known: NoAnswer | None = None
        while True:
            limit_s = min(_TRY_S, deadline.left_s() / (count - failures % count))
            try:
                return await self.ask_once(path, message, kind, limit_s)
            except NoAnswer as failure:
                failures += 1
                if known is None or not isinstance(failure, TooLate):
                    known = failure
                if deadline.left_s() <= _PAUSE_S:
                    raise known from None
            await self.pause(failures)

    async def pause(self, failures: int) -> None:
        """Wait a little when all endpoints have failed in turn."""
        if failures % len(self._endpoints) == 0:
            await asyncio.sleep(_PAUSE_S)

    def share_of(self, deadline: Deadline) -> float:
        """Limit of a single try that leaves as much time for each of the other endpoints."""
        return min(_TRY_S, deadline.left_s() / len(self._endpoints))

    async def ask_once(
        self, path: str, message: etcd_messages.Message, kind: type[A], limit_s: float
    ) -> A:
        """Ask one endpoint, another one the next time if it fails. Raises Refused, NoAnswer."""
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout(limit_s):
                return await self._authorized(endpoint, path, message, kind, limit_s)
        except TimeoutError:
            self._turn_away_from(endpoint)
            raise TooLate(endpoint, was_sent=True) from None
        except NoAnswer:
            self._turn_away_from(endpoint)
            raise

    async def _authorized(
        self,
        endpoint: str,
        path: str,
        message: etcd_messages.Message,
        kind: type[A],
        limit_s: float,
    ) -> A:
        token = await self._authenticate(endpoint, limit_s)
        try:
            return await self._post(endpoint, path, message, kind, limit_s)
        except TokenRefused:
            self._forget(token)
            await self._authenticate(endpoint, limit_s)
            return await self._post(endpoint, path, message, kind, limit_s)

    async def _post(
        self,
        endpoint: str,
        path: str,
        message: etcd_messages.Message,
        kind: type[A],
        limit_s: float,
    ) -> A:
        headers = _HEADERS | ({"Authorization": self._token} if self._token else {})
        reply = await self._wire.post(
            endpoint, path, etcd_messages.encode(message), headers, limit_s
        )
        answer = _read(kind, reply)
        self._check_origin(endpoint, answer.origin)
        return answer

    async def _authenticate(self, endpoint: str, limit_s: float) -> str:
        """The token of now, a new one if there is none."""
        if not self._token and self._access.user:
            message = etcd_messages.Authenticate(self._access.user, self._access.password)
            answer = await self._post(
                endpoint, etcd_messages.AUTHENTICATE, message, etcd_messages.Authenticated, limit_s
            )
            self._token = answer.token
        return self._token

    def _forget(self, token: str) -> None:
        if self._token == token:
            self._token = ""

    # -- watches -----------------------------------------------------------------------------------

    async def watch(
        self, message: etcd_messages.Watch, limit_s: float
    ) -> AsyncGenerator[etcd_messages.WatchAnswer]:
        """The lines of a watch on one endpoint, another one the next time if it fails. Raises
        Refused, NoAnswer, and NoAnswer when it ends."""
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout(limit_s):
                token = await self._authenticate(endpoint, limit_s)
            headers = _HEADERS | ({"Authorization": token} if token else {})
            lines = self._wire.stream(
                endpoint, etcd_messages.WATCH, etcd_messages.encode(message), headers, limit_s
            )
            async with aclosing(lines):
                async for line in lines:
                    answer = _read_line(line)
                    self._check_origin(endpoint, answer.header)
                    yield answer
            raise NoAnswer(f"{endpoint} ended a watch", was_sent=True)
        except TokenRefused:
            self._forget(token)
            raise
        except (NoAnswer, TimeoutError, GeneratorExit, asyncio.CancelledError) as error:
            self._turn_away_from(endpoint)  # also from a member that the watch gave up
            if isinstance(error, TimeoutError):
                raise TooLate(endpoint, was_sent=True) from None
            raise

    # -- members -----------------------------------------------------------------------------------

    def _turn_away_from(self, endpoint: str) -> None:
        if self._endpoints[0] == endpoint:
            self._endpoints.rotate(-1)

    def _check_origin(self, endpoint: str, header: etcd_messages.Header) -> None:
        """Raises NoAnswer if the member was behind when it answered.

        A term is of a majority. So if all endpoints are behind, etcd was restored.
        """
        if not header.cluster_id:
            return  # some versions answer so to Authenticate
        is_other = header.cluster_id != self._cluster_id
        if not is_other and header.raft_term < self._term:
            self._behind.add(endpoint)
            if self._behind != set(self._endpoints):
                raise NoAnswer(f"{endpoint} has not heard of an election", was_sent=True)
            is_other = True
        if is_other and self._cluster_id:
            self.history += 1
            self._log.warning("etcd_replaced", endpoint=endpoint)
        self._cluster_id = header.cluster_id
        self._term = header.raft_term
        self._behind.clear()

    async def states(self, limit_s: float) -> list[EtcdStatus]:
        """The state of each member, for the status of the cluster."""
        found = [self._state(endpoint, limit_s) for endpoint in sorted(self._access.endpoints)]
        return await asyncio.gather(*found)

    async def _state(self, endpoint: str, limit_s: float) -> EtcdStatus:
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._wire.post(
                    endpoint,
                    etcd_messages.STATUS,
                    etcd_messages.encode(etcd_messages.Empty()),
                    _ANYHOW,
                    limit_s,
                )
                status = _read(etcd_messages.StatusAnswer, reply)
                quota_bytes = status.dbSizeQuota or await self._quota_bytes(endpoint, limit_s)
        except (NoAnswer, Refused, TimeoutError):
            return EtcdStatus(endpoint)
        return EtcdStatus(
            endpoint,
            is_reached=True,
            version=status.version,
            database_bytes=status.dbSize,
            quota_bytes=quota_bytes,
            has_leader=status.leader != 0,
            is_leader=status.leader == status.header.member_id,
            alarms=await self._alarms(endpoint, status.header.member_id, limit_s),
        )

    async def _alarms(self, endpoint: str, member_id: int, limit_s: float) -> tuple[str, ...]:
        """The alarms of a member; none are known without a majority."""
        try:
            async with asyncio.timeout(limit_s):
                raised = await self._authorized(
                    endpoint,
                    etcd_messages.ALARMS,
                    etcd_messages.Empty(),
                    etcd_messages.AlarmsAnswer,
                    limit_s,
                )
        except (NoAnswer, Refused, TimeoutError):
            return ()
        return tuple(_alarms_of(member_id, raised.alarms))

    async def _quota_bytes(self, endpoint: str, limit_s: float) -> int:
        """The quota from the member's metrics: before 3.6 its status lacks it. Raises NoAnswer."""
        page = await self._wire.post(endpoint, etcd_messages.METRICS, b"", _PLAIN, limit_s)
        found = _QUOTA.search(page.body) if page.status == 200 else None
        return int(float(found[1])) if found else 0


def _alarms_of(member_id: int, raised: list[etcd_messages.Alarm]) -> list[str]:
    return sorted(alarm.alarm for alarm in raised if alarm.memberID == member_id)


# -- errors ----------------------------------------------------------------------------------------


def _read(kind: type[A], reply: Reply) -> A:
    try:
        if reply.status == 200:
            answer = etcd_messages.decode(kind, reply.body)
            if not answer.error:
                return answer
        failed = etcd_messages.decode(etcd_messages.Answer, reply.body)
    except etcd_messages.AnswerUnreadable as error:
        raise NoAnswer(str(error), was_sent=True) from error
    raise _failure(failed.code, failed.message or failed.error)


def _read_line(line: bytes) -> etcd_messages.WatchAnswer:
    try:
        read = etcd_messages.decode(etcd_messages.WatchLine, line)
    except etcd_messages.AnswerUnreadable as error:
        raise NoAnswer(str(error), was_sent=True) from error
    if isinstance(read.error, etcd_messages.StreamError):
        raise _failure(read.error.code or read.error.grpc_code, read.error.message)
    if read.result is None:
        raise _failure(read.code, read.message or read.error)
    return read.result


def _failure(code: int, text: str) -> Refused | NoAnswer:
    if code == _UNAUTHENTICATED or any(known in text for known in _BAD_TOKEN):
        return TokenRefused(code, text)
    if code in _DEFINITE:
        return Refused(code, text)
    return NoAnswer(text or f"error {code}", was_sent=_NO_LEADER not in text)
