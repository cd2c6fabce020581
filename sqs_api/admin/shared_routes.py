"""SharedRoutes: answers that lie on other hosts of the cluster or the fleet.

    merge       of the leaders of all shards, merged: what waits for the archive, deleted queues
    of_shard    of the leader of one shard: an acknowledgement of its batches

They are held while a shard of this cluster has no leader or its leader does not answer, for a
bounded time and then answered 503: half of an answer would be wrong. Another cluster may be away
for hours: its shards are left out then; a line of the log says so, and `left_out` of an answer that
is an object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any

import msgspec
import structlog

from cluster.peers.questions import Question, Questions, Said
from cluster.peers.readiness import Leaders
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.routes import Merge, Refused, Route

_HOLD_S = 5.0
"""Time for another host to lead."""

_PAUSE_S = 0.1
"""Between two attempts."""

AnswerHere = Callable[[Route, AdminRequest], Awaitable[Any]]
"""The answer of this host alone. Raises Refused."""


class _NoLeader(Refused):
    """A shard has no leader that answers, which changes when another host leads it."""


class SharedRoutes:
    """Asks other hosts, and answers them."""

    def __init__(
        self,
        questions: Questions,
        leaders: Leaders,
        shards: Collection[int],
        others: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`shards` are those of this cluster, `others` gives those of the other ones."""
        self._others = others
        self._log = structlog.get_logger("pages")
        self._questions = questions
        self._leaders = leaders
        self._shards = shards

    def serve(self, routes: Iterable[Route], answer: AnswerHere) -> None:
        """Answer for this host alone when others ask."""
        for route in routes:
            if route.action is not None and (route.merge is not None or route.of_shard):
                self._questions.serve(route.action, partial(_answered, answer, route))

    async def ask(self, route: Route, sent: AdminRequest) -> Any:
        """The answer of a route with `merge` or `of_shard`. Raises Refused."""
        merge = route.merge
        if merge is not None:
            return await self._held(partial(self._of_leaders, route, sent, merge))
        return await self._held(partial(self._of_one, route, sent))

    async def _of_one(self, route: Route, sent: AdminRequest) -> Any:
        try:
            shard = msgspec.json.decode(sent.body, type=_Shard).shard
        except (msgspec.MsgspecError, UnicodeDecodeError):
            shard = -1
        if shard not in {*self._shards, *self._others()}:  # this host says what is wrong
            return await self._asked(self._questions.host, route, sent)
        return await self._asked(self._leader(shard), route, sent)

    async def _of_leaders(self, route: Route, sent: AdminRequest, merge: Merge) -> Any:
        leaders = {shard: self._leader(shard) for shard in self._shards}
        hosts = sorted(set(leaders.values()))
        answers = await asyncio.gather(*(self._asked(host, route, sent) for host in hosts))
        for shard, host in leaders.items():
            if self._leader(shard) != host:
                raise _NoLeader(503, f"shard {shard} changes its leader; try again")
        found = dict(zip(hosts, answers, strict=True))
        others, left_out = await self._of_others(route, sent, hosts)
        merged = merge(found | others, self._leaders.leader_of)
        return merged | {"left_out": left_out} if isinstance(merged, dict) else merged

    async def _of_others(
        self, route: Route, sent: AdminRequest, known: Collection[str]
    ) -> tuple[dict[str, Any], list[int]]:
        """The answers of the leaders of other clusters' shards, as far as they come, and the shards
        without one."""
        leaders = {shard: self._leaders.leader_of(shard) for shard in self._others()}
        hosts = sorted({host for host in leaders.values() if host is not None} - {*known})
        answers = await asyncio.gather(
            *(self._asked(host, route, sent) for host in hosts), return_exceptions=True
        )
        found = {
            host: answer
            for host, answer in zip(hosts, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        if left_out := [shard for shard, host in leaders.items() if host not in {*found, *known}]:
            self._log.warning("shards_left_out", page=route.path, shards=left_out)
        return found, left_out

    async def _held(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until the leaders answer, or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _HOLD_S
        while True:
            try:
                return await ask()
            except _NoLeader:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _asked(self, host: str, route: Route, sent: AdminRequest) -> Any:
        assert route.action is not None
        question = Question(route.action, sent.target, sent.body)
        said = await self._questions.ask(host, question, route.wait_s)
        if said is None:
            raise _NoLeader(503, f"host {host} does not answer; try again")
        content = msgspec.json.decode(said.body)
        if said.status != 200:
            raise Refused(said.status, content["error"])
        return content

    def _leader(self, shard: int) -> str:
        leader = self._leaders.leader_of(shard)
        if leader is None:
            raise _NoLeader(503, f"no host leads shard {shard} now; try again")
        return leader


async def _answered(answer: AnswerHere, route: Route, question: Question) -> Said:
    sent = AdminRequest("", question.target, {}, question.body, "", True)
    try:
        return Said(200, msgspec.json.encode(await answer(route, sent)))
    except Refused as refusal:
        return Said(refusal.status, msgspec.json.encode({"error": str(refusal)}))


class _Shard(msgspec.Struct):
    shard: int
