"""QueueNews: a process that missed changes of queues asks the host that noticed it for them.

    request: names of queues, msgpack (on Channel.CATALOG, where revisions of 8 bytes come, too)
    answer: the revision of the host's view, and the records of the queues in it

A host refuses a request that was made with an older version of its queue, or for a part that is
gone. A gateway cannot know the later one while its etcd is away, perhaps for hours, though the
clusters serve. It asks with names: ids of parts that are gone mean nothing to anybody. The host is
a peer with a certificate of the fleet, and had to lead a shard to refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import structlog

from cluster.catalog.catalog_records import QueueName, name_of
from cluster.peers.link import Call
from cluster.peers.peer_outcomes import Refusal
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport, ask
from visibility.contract.model import Request

_NAMES_MAX = 8
"""A request names at most three queues."""
_WAIT_S = 2.0


class _Told(msgspec.Struct, frozen=True, array_like=True):
    revision: int
    records: list[tuple[QueueName, bytes | None]]


_decode_names = msgspec.msgpack.Decoder(list[QueueName]).decode
_decode_told = msgspec.msgpack.Decoder(_Told).decode


class Known(Protocol):
    """The view of the host that is asked."""

    @property
    def revision(self) -> int:
        """The revision that it shows."""

    def records_of(self, names: Iterable[QueueName]) -> dict[QueueName, bytes | None]:
        """The records of these queues and of their dead-letter queues; None for one that does not
        exist."""


class Adopting(Protocol):
    """The view of the process that asks."""

    is_away: bool

    def adopt(self, revision: int, records: Mapping[QueueName, bytes | None]) -> bool:
        """Show queues as another host does, whose view is of this revision; False if some is
        left."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call once it shows all that was committed before."""


def tell(known: Known, call: Call) -> None:
    """Answer another process."""
    try:
        names = _decode_names(call.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        call.refuse(Refusal.UNREADABLE, f"neither a revision nor names of queues: {error}")
        return
    if len(names) > _NAMES_MAX:
        call.refuse(Refusal.UNREADABLE, f"{len(names)} queues are too many")
        return
    told = _Told(known.revision, list(known.records_of(names).items()))
    call.answer(msgspec.msgpack.encode(told))


class _Question(NamedTuple):
    """Asks a host for the news of queues."""

    host: str
    names: tuple[QueueName, ...]


class QueueNews:
    """Asks other hosts for queues, and answers them."""

    def __init__(self, transport: Transport, view: Adopting) -> None:
        self._transport = transport
        self._view = view
        self._asking: dict[_Question, list[Callable[[], None]]] = {}
        """Whom to call back, by the questions that did not leave yet."""
        self._tasks: dict[_Question, asyncio.Task[None]] = {}
        self._log = structlog.get_logger("catalog")

    @property
    def is_behind(self) -> bool:
        """True if the view hears of no changes, as far as it is known."""
        return self._view.is_away

    def ask(self, host: str, request: Request, then: Callable[[], None]) -> None:
        """Ask a host for the queues of a request, and call back once the view shows them, or when
        no more can be known in bounded time. One question serves all that wait for this host when
        it leaves; the answer to one under way may be older than a later request's reason to ask."""
        queues = (request.queue, request.dead_letter_queue, request.destination)
        names = tuple(sorted({name_of(queue) for queue in queues if queue is not None}))
        question = _Question(host, names)
        self._asking.setdefault(question, []).append(then)
        if question not in self._tasks:
            self._begin(question)

    def _begin(self, question: _Question) -> None:
        waiting: list[Callable[[], None]] = []
        task = asyncio.get_running_loop().create_task(self._ask(question, waiting))
        self._tasks[question] = task
        task.add_done_callback(partial(self._ended, question, waiting))

    def _ended(
        self, question: _Question, waiting: list[Callable[[], None]], task: asyncio.Task[None]
    ) -> None:
        del self._tasks[question]
        if task.cancelled():
            return
        for then in waiting:  # nothing was learnt, or there is a bug
            self._view.when_caught_up(then)
        if question in self._asking:
            self._begin(question)

    async def _ask(self, question: _Question, waiting: list[Callable[[], None]]) -> None:
        """Ask for all that wait now; those that are called back leave `waiting`."""
        waiting += self._asking.pop(question)
        body = msgspec.msgpack.encode(question.names)
        outcome = await ask(self._transport, question.host, Channel.CATALOG, body, _WAIT_S)
        if not isinstance(outcome, bytes):
            return
        try:
            told = _decode_told(outcome)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._log.error("answer_unreadable", peer=question.host, error=str(error))
            return
        if self._view.adopt(told.revision, dict(told.records)):
            for then in waiting:
                asyncio.get_running_loop().call_soon(then)
            waiting.clear()
