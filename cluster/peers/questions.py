"""Questions: one host asks another for the answer of an administrative page.

    request: `Question`, msgpack    answer: `Said`, msgpack

Hosts trust each other: the one that was asked by a client has checked that the client may ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec

from cluster.peers.incoming import Call, Service
from cluster.peers.peer_outcomes import Refusal
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport, ask


class Question(msgspec.Struct, frozen=True):
    """A page, by its action, and the request for it."""

    action: str
    target: bytes
    body: bytes


class Said(msgspec.Struct, frozen=True):
    """An answer, as a client gets it: JSON with its HTTP status."""

    status: int
    body: bytes


Answer = Callable[[Question], Awaitable[Said]]
_decode_question = msgspec.msgpack.Decoder(Question).decode
_decode_said = msgspec.msgpack.Decoder(Said).decode


class Questions:
    """Belongs to the event loop's thread."""

    def __init__(self, transport: Transport) -> None:
        self.host = transport.host
        self.answer: Answer | None = None
        """Answers here, once this host can."""
        self.answers: dict[str, Answer] = {}
        """Answers to single actions, before `answer` is asked."""
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()
        transport.serve(Channel.PAGES, Service(on_request=self._asked))

    @property
    def peers(self) -> list[str]:
        """The other hosts."""
        return self._transport.peers

    async def ask(self, host: str, question: Question, wait_s: float) -> Said | None:
        """The answer of a host, which may be this one; None if it cannot be reached, or does not
        answer in time."""
        if host == self.host:
            answer = self._answer_of(question)
            assert answer is not None
            return await answer(question)
        body = msgspec.msgpack.encode(question)
        outcome = await ask(self._transport, host, Channel.PAGES, body, wait_s)
        return _decode_said(outcome) if isinstance(outcome, bytes) else None

    def _answer_of(self, question: Question) -> Answer | None:
        return self.answers.get(question.action) or self.answer

    @property
    def hosts(self) -> list[str]:
        """All hosts, this one first."""
        return [self.host, *self.peers]

    async def ask_all(
        self, hosts: Iterable[str], question: Question, wait_s: float
    ) -> dict[str, Said | None]:
        """Ask several hosts at once. Returns the results of `ask` by host."""
        asked = {host: self.ask(host, question, wait_s) for host in hosts}
        return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))

    def _asked(self, call: Call) -> None:
        try:
            question = _decode_question(call.body)
        except msgspec.MsgspecError as error:
            call.refuse(Refusal.UNREADABLE, str(error))
            return
        answer = self._answer_of(question)
        if answer is None:
            call.refuse(Refusal.NOT_LEADER, "this host starts")
            return
        task = asyncio.get_running_loop().create_task(self._answer(call, answer, question))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, call))

    async def _answer(self, call: Call, answer: Answer, question: Question) -> None:
        call.answer(msgspec.msgpack.encode(await answer(question)))

    def _ended(self, call: Call, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:
            call.refuse(Refusal.UNREADABLE, "the answer failed")
