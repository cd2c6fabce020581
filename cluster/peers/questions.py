"""Questions: one host asks another for the answer of an administrative page, or of what processes
count together (`Channel.COUNTS`).

    request: `Question`, msgpack    answer: `Said`, msgpack

Hosts trust each other: the one that was asked by a client has checked that the client may ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec

from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_outcomes import Refusal
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport, ask


class Question(msgspec.Struct, frozen=True):
    """A page, by its action, and the request for it."""

    action: str
    target: bytes
    body: bytes
    asker: str = ""
    """The process that asks, by its certificate. Set where the question arrives: what it says of
    itself does not count."""


class Said(msgspec.Struct, frozen=True):
    """An answer, as a client gets it: JSON with its HTTP status."""

    status: int
    body: bytes


Answer = Callable[[Question], Awaitable[Said]]
_UNKNOWN = Said(
    404, b'{"error": "not found on this host; do all hosts have the same version and settings?"}'
)
_decode_question = msgspec.msgpack.Decoder(Question).decode
_decode_said = msgspec.msgpack.Decoder(Said).decode


class Questions:
    """Asks other hosts, and answers them."""

    def __init__(
        self,
        transport: Transport,
        others: Callable[[], Iterable[str]] = lambda: (),
        channel: Channel = Channel.PAGES,
    ) -> None:
        """`others` gives the names of the hosts of other clusters."""
        self.host = transport.host
        self._others = others
        self._answers: dict[str, Answer] = {}
        self._transport = transport
        self._channel = channel
        self._tasks: set[asyncio.Task[None]] = set()
        transport.serve(channel, ChannelService(on_request=self._asked))

    def serve(self, action: str, answer: Answer) -> None:
        """Answer an action on this host. All are to be known once other hosts can ask."""
        self._answers[action] = answer

    @property
    def peers(self) -> list[str]:
        """The other hosts."""
        return self._transport.peers

    async def ask(self, host: str, question: Question, wait_s: float) -> Said | None:
        """The answer of a host, which may be this one; None if it cannot be reached, or does not
        answer in time."""
        if host == self.host:
            return await self._answer_of(msgspec.structs.replace(question, asker=self.host))
        body = msgspec.msgpack.encode(question)
        outcome = await ask(self._transport, host, self._channel, body, wait_s)
        return _decode_said(outcome) if isinstance(outcome, bytes) else None

    def is_connected(self, host: str) -> bool:
        """True if the host can be asked: if it does not answer, it is late rather than away."""
        return self._transport.link(host, self._channel) is not None

    async def _answer_of(self, question: Question) -> Said:
        answer = self._answers.get(question.action)
        return _UNKNOWN if answer is None else await answer(question)

    @property
    def hosts(self) -> list[str]:
        """All hosts of this cluster, this one first."""
        return [self.host, *self.peers]

    @property
    def hosts_of_all_clusters(self) -> list[str]:
        """All hosts of the fleet, this one first."""
        return [*self.hosts, *self._others()]

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
        question = msgspec.structs.replace(question, asker=call.peer)
        task = asyncio.get_running_loop().create_task(self._answer(call, question))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, call))

    async def _answer(self, call: Call, question: Question) -> None:
        call.answer(msgspec.msgpack.encode(await self._answer_of(question)))

    def _ended(self, call: Call, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:
            call.refuse(Refusal.UNREADABLE, "the answer failed")
