"""WorkerProcess: a worker as the supervisor sees it: its process, and what the two say to each
other."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sqs_api.workers.conversation import (
    Ask,
    AuditLine,
    Conversation,
    Drained,
    OfWorker,
    Ready,
    Refused,
    Removed,
    Start,
    StartMember,
    There,
    ToSupervisor,
)
from sqs_api.workers.forked import Process, Started, pairs
from sqs_api.workers.pair_network import SocketKind, received_ends, send_end, worker_name
from sqs_api.workers.shared_records import RecordsSession

if TYPE_CHECKING:
    from cluster.coordination.sqlite_coordination import SqliteCoordination
    from sqs_api.gateway.audit import AuditLines

_COMMAND = [sys.executable, "-EP", "-m", "sqs_api", "serve-worker"]
_LISTENING = b"listening"

PassOn = Callable[[str, str, SocketKind, socket.socket], None]
"""Gives a socket, from a worker, to the one with the second name."""


class Served(NamedTuple):
    """The parts of the supervisor that serve a worker."""

    records: SqliteCoordination | None
    """None if workers have their records in etcd."""
    lines: AuditLines | None
    """Takes the lines of the audit log."""
    pass_on: PassOn


class WorkerProcess:
    """`begin` makes one, which waits for its `Start`."""

    def __init__(
        self,
        process: Process,
        conversation: Conversation[ToSupervisor],
        descriptors: socket.socket,
    ) -> None:
        """Call `begin` instead."""
        self.process = process
        self.refusal = ""
        """The reason why it could not start."""
        self.is_removed = False
        """True if its cluster has removed it."""
        self.is_silent = False
        """True until it has answered the last `ask`."""
        self.ready, self.drained, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        """Set once each, `ended` after both others."""
        self.conversation = conversation
        self._descriptors = descriptors
        self._number = -1
        self._served: Served
        self._session: RecordsSession | None = None
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    @classmethod
    async def begin(cls) -> WorkerProcess:
        """Start a process. Raises OSError."""
        own, others = pairs()
        inherited = [end.fileno() for end in others]
        try:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                *map(str, inherited),
                pass_fds=inherited,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
        except BaseException:
            for end in own:
                end.close()
            raise
        finally:
            for end in others:
                end.close()
        return await cls.adopt(Started(process, own))

    @classmethod
    async def adopt(cls, started: Started) -> WorkerProcess:
        """Speak to a process that was started."""
        own, descriptors = started.pairs
        descriptors.setblocking(False)
        return cls(started.process, await Conversation.open(own, OfWorker), descriptors)

    def start(
        self, start: Start | StartMember, listening: list[socket.socket], served: Served
    ) -> None:
        """Say which worker it is. A process that is gone by now is noticed by `ended`."""
        self._number, self._served = start.number, served
        if served.records is not None:
            self._session = RecordsSession(served.records, self.conversation)
        with suppress(OSError):
            socket.send_fds(self._descriptors, [_LISTENING], [each.fileno() for each in listening])
        self.conversation.send(start)

    def ask(self) -> None:
        """Have it say that it is there."""
        self.is_silent = True
        self.conversation.send(Ask())

    def give(self, peer: str, kind: SocketKind, end: socket.socket) -> None:
        """Hand it a socket from a peer; one that it has no room for is closed."""
        with suppress(OSError):
            send_end(self._descriptors, kind, peer, end)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptors, self._ends_arrived)
        while (message := await self.conversation.receive()) is not None:
            if isinstance(message, AuditLine):
                if self._served.lines is not None:
                    self._served.lines.put(message.line)
            elif isinstance(message, There):
                self.is_silent = False
            elif isinstance(message, Ready):
                self.ready.set()
            elif isinstance(message, Refused):
                self.refusal = message.reason
            elif isinstance(message, Removed):
                self.is_removed = True
            elif isinstance(message, Drained):
                self.drained.set()
            elif self._session is not None:
                self._session.asked(message)
        if self._session is not None:
            self._session.end()
        self.conversation.close()
        loop.remove_reader(self._descriptors)
        self._descriptors.close()
        await self.process.wait()
        for event in (self.ready, self.drained, self.ended):
            event.set()

    def _ends_arrived(self) -> None:
        loop = asyncio.get_running_loop()
        gone = lambda: loop.remove_reader(self._descriptors)  # noqa: E731
        for kind, peer, ends in received_ends(self._descriptors, gone):
            for end in ends:
                with end:
                    self._served.pass_on(worker_name(self._number), peer, kind, end)

    async def end(self, patience_s: float) -> None:
        """Let it go, and kill it if it is there after this time."""
        self.conversation.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), patience_s)
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.ended.wait()


def receive_listening(descriptors: socket.socket) -> list[socket.socket]:
    """In the worker: the listening sockets, which came before its `Start`."""
    _, ends, _, _ = socket.recv_fds(descriptors, len(_LISTENING), 16)
    return [socket.socket(fileno=end) for end in ends]
