"""Conversation: what the supervisor and a worker say to each other over the pair of sockets that
the worker inherited.

    frame: length (4), message as msgpack

The pair has no name, so nobody else can speak. It ends with either process and with nothing else. A
supervisor that stands still loses nothing; a worker that does is ended, see `Keeper`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from struct import Struct
from typing import Any, Generic, TypeVar

import msgspec

_LENGTH = Struct(">I")


class Start(msgspec.Struct, tag=True):
    """The first message to a worker: its part. Its listening sockets came before."""

    number: int
    folders: dict[int, str]
    """Folders of all shards, by their numbers."""
    settings: bytes
    local_key: list[str]
    main_sockets: int
    """Number of the listening sockets that are the main port's; the others are for administrative
    pages."""


class StartMember(msgspec.Struct, tag=True):
    """The same to a worker of a host of a cluster, with its own settings."""

    number: int
    settings: bytes
    main_sockets: int


class Answered(msgspec.Struct, tag=True):
    """The outcome of a request for records."""

    request: int
    kind: str
    """The name of its type."""
    value: msgspec.Raw


class Changed(msgspec.Struct, tag=True):
    """Records changed, see `Change`."""

    watch: int
    revision: int
    records: dict[str, bytes | None]
    revisions: dict[str, int]


class Stop(msgspec.Struct, tag=True):
    """Take no more requests, and say `Drained` when the last one is answered."""


class Close(msgspec.Struct, tag=True):
    """All workers are drained: close the shards, and end."""


class Ask(msgspec.Struct, tag=True):
    """Say that you are there."""


class There(msgspec.Struct, tag=True):
    """The answer to `Ask`."""


class ReadRecords(msgspec.Struct, tag=True):
    """Read records; all without `keys`."""

    request: int
    keys: list[str] | None


class CommitRecords(msgspec.Struct, tag=True):
    """Commit a `Transaction`."""

    request: int
    conditions: Mapping[str, int]
    changes: Mapping[str, bytes | None]


class WatchRecords(msgspec.Struct, tag=True):
    """Begin a `Coordination.watch`, which changes name by its `request`."""

    request: int
    after: int


class AuditLine(msgspec.Struct, tag=True):
    """A line of the audit log."""

    line: str


class Ready(msgspec.Struct, tag=True):
    """The worker answers requests."""


class Removed(msgspec.Struct, tag=True):
    """Its cluster has removed it: it ends for good."""


class Refused(msgspec.Struct, tag=True):
    """It cannot start; the reason in one line."""

    reason: str


class Drained(msgspec.Struct, tag=True):
    """It has answered its last request, and still decides those of other workers."""


ToWorker = Start | StartMember | Answered | Changed | Ask | Stop | Close
ToSupervisor = (
    ReadRecords
    | CommitRecords
    | WatchRecords
    | AuditLine
    | There
    | Ready
    | Refused
    | Removed
    | Drained
)
T = TypeVar("T")
OfWorker = msgspec.msgpack.Decoder[ToSupervisor](ToSupervisor)
OfSupervisor = msgspec.msgpack.Decoder[ToWorker](ToWorker)


class Conversation(Generic[T]):
    """One side of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[T],
    ) -> None:
        """Call `open` instead."""
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._is_over = False

    @classmethod
    async def open(
        cls, pair: socket.socket, decoder: msgspec.msgpack.Decoder[T]
    ) -> Conversation[T]:
        """Speak over a socket; `decoder` is that of the other side's messages."""
        return cls(*await asyncio.open_unix_connection(sock=pair), decoder)

    def send(self, message: Any) -> bool:
        """Send a message; False if the other side is gone."""
        if self._is_over or self._writer.is_closing():
            return False
        body = msgspec.msgpack.encode(message)
        self._writer.write(_LENGTH.pack(len(body)) + body)
        return True

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other side has not read yet, beyond those of the system."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self) -> T | None:
        """The next message; None if the other side is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return self._decoder.decode(await self._reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError):
            self._is_over = True
            return None

    def close(self) -> None:
        """Say what waits to be sent, then end it."""
        self._is_over = True
        self._writer.close()
