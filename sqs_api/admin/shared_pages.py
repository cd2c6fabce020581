"""SharedPages: administrative pages whose answer lies on other hosts of the cluster.

    archive, archive/seal, deleted-queues    the leaders of all shards, merged
    archive/archived                         the leader of the batch's shard

A page of the leaders is held while a shard has none or its leader does not answer, for a bounded
time and then answered 503: half of an answer would be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from cluster.peers.leaders import Leaders
from cluster.peers.questions import Question, Questions, Said
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.admin_actions import (
    ACKNOWLEDGE_ARCHIVE,
    LIST_DELETED_QUEUES,
    READ_ARCHIVE,
    SEAL_ARCHIVE,
)
from sqs_api.admin.admin_pages import Answer, error_page

_WAIT_S = 5.0
_SEAL_S = 600.0
"""Time for a leader to bring what waits to the lake."""

_HOLD_S = 5.0
"""Time for another host to lead."""

_PAUSE_S = 0.1
"""Between two attempts."""

Merge = Callable[[Mapping[str, Any]], Any]
"""Merges the answers by host into one."""


class _NoAnswer(Exception):
    """A page for the client instead of an answer."""

    def __init__(self, page: web.Response) -> None:
        super().__init__(page.status)
        self.page = page


class _NoLeader(_NoAnswer):
    """A shard has no leader that answers, which changes when another host leads it."""


class SharedPages:
    """Belongs to the event loop's thread."""

    def __init__(self, questions: Questions, leaders: Leaders, shards: Collection[int]) -> None:
        self._questions = questions
        self._leaders = leaders
        self._shards = shards
        self._own: Mapping[str, Answer] = {}

    def share(self, own: Mapping[str, Answer]) -> dict[str, Answer]:
        """The pages by action; `own` are those of this host alone, which others ask for, too."""
        self._own = own
        shared: dict[str, Answer] = {
            READ_ARCHIVE: self._read_archive,
            SEAL_ARCHIVE: self._seal_archive,
            ACKNOWLEDGE_ARCHIVE: self._acknowledge,
            LIST_DELETED_QUEUES: self._list_deleted,
        }
        shared = {action: page for action, page in shared.items() if action in own}
        for action in shared:
            self._questions.serve(action, partial(_answered, own[action]))
        return {**own, **shared}

    # -- pages -------------------------------------------------------------------------------------

    async def _read_archive(self, sent: AdminRequest) -> web.Response:
        return await self._of_leaders(READ_ARCHIVE, sent, self._merge_shards, _WAIT_S)

    async def _seal_archive(self, sent: AdminRequest) -> web.Response:
        return await self._of_leaders(SEAL_ARCHIVE, sent, self._merge_shards, _SEAL_S)

    async def _list_deleted(self, sent: AdminRequest) -> web.Response:
        return await self._of_leaders(LIST_DELETED_QUEUES, sent, _merge_deleted, _WAIT_S)

    async def _acknowledge(self, sent: AdminRequest) -> web.Response:
        try:
            shard = msgspec.json.decode(sent.body, type=_Shard).shard
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return await self._own[ACKNOWLEDGE_ARCHIVE](sent)  # says what is wrong
        if shard not in self._shards:
            return await self._own[ACKNOWLEDGE_ARCHIVE](sent)

        async def acknowledge() -> web.Response:
            said = await self._asked(self._leader(shard), ACKNOWLEDGE_ARCHIVE, sent, _SEAL_S)
            return _page(said)

        return await self._held(acknowledge)

    # -- asking ------------------------------------------------------------------------------------

    async def _of_leaders(
        self, action: str, sent: AdminRequest, merge: Merge, wait_s: float
    ) -> web.Response:
        async def ask() -> web.Response:
            leaders = {shard: self._leader(shard) for shard in self._shards}
            hosts = sorted(set(leaders.values()))
            answers = await asyncio.gather(
                *(self._asked(host, action, sent, wait_s) for host in hosts)
            )
            for shard, host in leaders.items():
                if self._leader(shard) != host:
                    raise _NoLeader(error_page(503, f"shard {shard} changes its leader; try again"))
            found = [msgspec.json.decode(said.body) for said in answers]
            return web.json_response(merge(dict(zip(hosts, found, strict=True))))

        return await self._held(ask)

    async def _held(self, ask: Callable[[], Awaitable[web.Response]]) -> web.Response:
        """Ask until the leaders answer, or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _HOLD_S
        while True:
            try:
                return await ask()
            except _NoLeader as failed:
                if loop.time() >= until:
                    return failed.page
            except _NoAnswer as failed:
                return failed.page
            await asyncio.sleep(_PAUSE_S)

    async def _asked(self, host: str, action: str, sent: AdminRequest, wait_s: float) -> Said:
        said = await self._questions.ask(host, Question(action, sent.target, sent.body), wait_s)
        if said is None:
            raise _NoLeader(error_page(503, f"host {host} does not answer; try again"))
        if said.status != 200:
            raise _NoAnswer(_page(said))
        return said

    def _leader(self, shard: int) -> str:
        leader = self._leaders.leader_of(shard)
        if leader is None:
            raise _NoLeader(error_page(503, f"no host leads shard {shard} now; try again"))
        return leader

    def _merge_shards(self, answers: Mapping[str, Any]) -> Any:
        """Each shard as its leader sees it."""
        merged = dict(next(iter(answers.values())))
        merged["shards"] = [
            shard
            for host, said in answers.items()
            for shard in said["shards"]
            if self._leaders.leader_of(shard["shard"]) == host
        ]
        merged["shards"].sort(key=_number)
        return merged


async def _answered(answer: Answer, question: Question) -> Said:
    """The answer of this host alone."""
    page = await answer(AdminRequest("", question.target, {}, question.body, "", True))
    assert isinstance(page.body, bytes)
    return Said(page.status, page.body)


class _Shard(msgspec.Struct):
    shard: int


def _number(shard: dict[str, Any]) -> int:
    return int(shard["shard"])


def _merge_deleted(answers: Mapping[str, Any]) -> Any:
    """The queues, which all hosts know, with the counts of those that lead their shards: the
    others count none."""
    messages: dict[int, int] = {}
    listed: list[dict[str, Any]] = []
    for said in answers.values():
        listed = said
        for queue in said:
            queue_id = queue["queue_id"]
            messages[queue_id] = max(queue["messages"], messages.get(queue_id, 0))
    return [queue | {"messages": messages[queue["queue_id"]]} for queue in listed]


def _page(said: Said) -> web.Response:
    return web.Response(status=said.status, body=said.body, content_type="application/json")
