"""A worker, from its supervisor's `Start` to its end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from auth.credentials import AccessKey
from sqs_api.http.server import Inherited
from sqs_api.node import start_node
from sqs_api.process_places import MemberPlace
from sqs_api.settings.config import Settings
from sqs_api.settings.logs import set_up_logs
from sqs_api.settings.service_note import LOCAL_PRINCIPAL
from sqs_api.start_refusals import NodeRefused
from sqs_api.workers import conversation as said
from sqs_api.workers.conversation import Conversation, Start, StartMember, ToWorker
from sqs_api.workers.given_settings import decoded_settings
from sqs_api.workers.shared_records import SharedRecords
from sqs_api.workers.worker_host import WorkerPlace
from sqs_api.workers.worker_process import receive_listening

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl."""
_ORPHAN_S = 1.0
"""Time for a worker to end without its supervisor, whose successor waits for it."""
_AUDIT_BYTES_MAX = 8 << 20
"""Lines that the supervisor does not take; further ones are lost."""


def run_worker(pair: int, descriptors: int) -> int:
    """Answer requests until the supervisor says so, or ends. The descriptors are sockets. Returns
    the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the supervisor ends this process
    _end_with_parent()
    work = _work(socket.socket(fileno=pair), socket.socket(fileno=descriptors))
    gc.disable()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _end_with_parent() -> None:
    """Have the system send SIGTERM when the supervisor ends, for the time in which this process
    does not listen to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


class _SentLines:
    """Sends audit lines to the supervisor, which has the file."""

    def __init__(self, supervisor: Conversation[ToWorker]) -> None:
        self._supervisor = supervisor
        self.lost = 0

    def put(self, line: str) -> None:
        has_room = self._supervisor.unsent_bytes < _AUDIT_BYTES_MAX
        if not (has_room and self._supervisor.send(said.AuditLine(line))):
            self.lost += 1

    def close(self) -> None:
        pass


async def _work(pair: socket.socket, descriptors: socket.socket) -> int:
    supervisor = await Conversation.open(pair, said.OfSupervisor)
    start = await supervisor.receive()
    if not isinstance(start, Start | StartMember):
        return 0
    asked, stopping, closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    records = SharedRecords(supervisor.send)
    listening = asyncio.create_task(_listen_to(supervisor, records, asked, stopping, closing))
    settings = decoded_settings(start.settings)
    set_up_logs(settings.log)
    sockets = receive_listening(descriptors)
    main, local = sockets[: start.main_sockets], sockets[start.main_sockets :]
    given = Inherited(main, local)
    place: WorkerPlace | MemberPlace = MemberPlace(start.number, int(settings.workers), given)
    if isinstance(start, Start):
        key_id, secret = start.local_key
        place = WorkerPlace(
            number=start.number,
            workers=int(settings.workers),
            folders={number: Path(folder) for number, folder in start.folders.items()},
            records=records,
            lines=_SentLines(supervisor),
            descriptors=descriptors,
            listening=given,
            local_key=AccessKey(key_id, secret, settings.account, LOCAL_PRINCIPAL),
            drained=partial(_drained, supervisor, asked, closing),
        )
    status = await _serve(settings, place, supervisor, stopping)
    supervisor.close()
    listening.cancel()
    return status


async def _serve(
    settings: Settings,
    place: WorkerPlace | MemberPlace,
    supervisor: Conversation[ToWorker],
    stopping: asyncio.Event,
) -> int:
    """Answer requests until it is to stop. Returns the exit status."""

    def removed() -> None:
        supervisor.send(said.Removed())
        stopping.set()

    starting = asyncio.create_task(start_node(settings, removed, place))
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done() and isinstance(place, MemberPlace):
        starting.cancel()  # it may wait for etcd, or for other hosts
    try:
        node = await starting
    except NodeRefused as error:
        supervisor.send(said.Refused(str(error)))
        return 1
    except asyncio.CancelledError:
        return 0
    supervisor.send(said.Ready())
    gc.enable()
    await asked
    await node.stop()
    return 0


async def _listen_to(
    supervisor: Conversation[ToWorker],
    records: SharedRecords,
    asked: asyncio.Event,
    stopping: asyncio.Event,
    closing: asyncio.Event,
) -> None:
    while (message := await supervisor.receive()) is not None:
        if isinstance(message, said.Answered):
            records.answered(message)
        elif isinstance(message, said.Changed):
            records.changed(message)
        elif isinstance(message, said.Ask):
            supervisor.send(said.There())
        elif isinstance(message, said.Stop):
            asked.set()
            stopping.set()
        elif isinstance(message, said.Close):
            stopping.set()
            closing.set()
    records.lost()
    ending = threading.Timer(_ORPHAN_S, os._exit, (1,))
    ending.daemon = True
    ending.start()
    stopping.set()
    closing.set()


async def _drained(
    supervisor: Conversation[Any], asked: asyncio.Event, closing: asyncio.Event
) -> None:
    """Wait for the other workers, unless this one alone was ended by a signal."""
    supervisor.send(said.Drained())
    if asked.is_set():
        await closing.wait()
