"""Supervisor: the first process of a service with several workers. It answers no requests.

It has the records, the audit log and the listening sockets, and starts the workers, each with its
share of the shards. A worker that ends is replaced at once by a process that waits for that, over
the same listening socket: connections that were not accepted yet wait there. If the supervisor
ends, its workers do so too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from auth.credentials import AccessKey
from cluster.catalog.host_records import HostRecords
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.coordination import Coordination
from cluster.copies.backup import remove_leftovers
from cluster.members.host_folder import refuse_member_folder
from sqs_api.archiving.service import archive_limits
from sqs_api.gateway.audit import AuditLines
from sqs_api.http.listener import listening_on
from sqs_api.http.server import LOCAL_HOST, address_of, has_local_port, loopback_of
from sqs_api.http.tls import Tls
from sqs_api.parts import Process
from sqs_api.records import Records, open_records
from sqs_api.settings.config import AuthMode, Settings, shards_of, workers_of
from sqs_api.settings.declaring import DeclaredQueues
from sqs_api.settings.reserve import check_folders
from sqs_api.settings.service_note import local_url, make_local_key, remove_note, write_note
from sqs_api.workers.conversation import Close, Start, Stop
from sqs_api.workers.given_settings import encoded_settings
from sqs_api.workers.pair_network import SocketKind, worker_name
from sqs_api.workers.worker_process import Served, WorkerProcess
from storage.engines.in_use import refuse_if_in_use
from storage.files.folder import FolderRefused, add_shards, open_folder, renew_format

_COMMAND_S = 5.0
"""Time that a start waits for a command that changes users or keys of the folder."""
_FORMER_S = 15.0
"""Time that a start waits for workers whose supervisor was killed: they finish what they do."""
_LOOK_S = 0.02
_DRAIN_S = 12.0
"""Time for all workers to answer their last requests: a little more than each waits by itself."""
_END_S = 15.0
"""Time for a worker to close its shards."""
_STEADY_S = 5.0
"""A worker that lived as long is replaced at once; others after a pause that grows."""
_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0


class WorkerRefused(Exception):
    """A worker cannot start; the text says why in one line."""


class _Place(NamedTuple):
    """See `records.Host`."""

    records: HostRecords
    spread: None = None
    ids_raised: None = None
    choose: None = None

    def below(self, kind: str) -> Coordination:
        """See `records.Host`."""
        return self.records.below(kind)


class Listening(NamedTuple):
    """The listening sockets of all workers."""

    main: list[list[socket.socket]]
    """By worker, one for each address."""
    local: list[list[socket.socket]]
    """The same, for administrative pages; empty if the main port serves them."""
    address: str
    admin_address: str


async def listen(settings: Settings, workers: int) -> Listening:
    """A socket for each worker and address. Raises OSError, also if another service listens
    there."""
    main = await _shared(settings.host, settings.port, workers)
    port = main[0][0].getsockname()[1]
    address = address_of(settings, port)
    if not has_local_port(settings):
        admin_address = f"http://{loopback_of(settings.host)}:{port}"
        return Listening(main, [[] for _ in main], address, admin_address)
    try:
        local = await _shared(LOCAL_HOST, 0, workers)
    except OSError:
        _close(main)
        raise
    port = local[0][0].getsockname()[1]
    return Listening(main, local, address, f"http://{LOCAL_HOST}:{port}")


async def _shared(host: str, port: int, count: int) -> list[list[socket.socket]]:
    if port:  # sockets that share a port would share it with another service, too
        for alone in await listening_on(host, port):
            alone.close()
    sockets: list[list[socket.socket]] = []
    try:
        for _ in range(count):
            sockets.append(await listening_on(host, port, shared=True))
            port = sockets[0][0].getsockname()[1]
    except OSError:
        _close(sockets)
        raise
    return sockets


def _close(sockets: list[list[socket.socket]]) -> None:
    for of_worker in sockets:
        for each in of_worker:
            each.close()


class Supervisor:
    """Belongs to the event loop's thread. `prepare`, `listen`, `start`; `stop`."""

    def __init__(self, settings: Settings, begun: Sequence[asyncio.Task[WorkerProcess]]) -> None:
        """`begun` are the processes of the first workers, and a spare."""
        self.settings = settings
        self._begun = begun
        self._count = workers_of(settings)
        self._opened = AsyncExitStack()
        self._process = Process(settings, SystemClock(), SystemEntropy(), self._opened)
        self._local_key = make_local_key(settings.account, self._process.entropy)
        self._host_records: HostRecords
        self._records: Records
        self._folders: Mapping[int, Path]
        self._listening: Listening
        self._workers: dict[int, WorkerProcess] = {}
        self._spare: asyncio.Task[WorkerProcess] | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._log = structlog.get_logger("supervisor")

    # -- start -------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Take the data folder, and make what is declared. Raises the errors of `refusals`, after
        which `stop` closes what was opened."""
        settings = self.settings
        if settings.tls_certificate is not None and settings.tls_key is not None:
            Tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        archive_limits(settings)
        shards = shards_of(settings)
        folders = open_folder(settings.data, shards)
        refuse_member_folder(settings.data)
        check_folders(settings, range(max(len(folders), shards)))
        self._host_records = await HostRecords.open(settings.data, _COMMAND_S)
        self._opened.push_async_callback(self._host_records.close)
        await self._former_ended(folders)
        self._folders = add_shards(settings.data, shards)
        renew_format(settings.data)
        remove_leftovers(settings.data)
        self._records = records = await open_records(
            self._process, _Place(self._host_records), sorted(self._folders)
        )
        await DeclaredQueues(settings, records.catalog, records.note_declared).make()

    async def _former_ended(self, folders: Mapping[int, Path]) -> None:
        """Wait until no other process has a shard: workers outlive a killed supervisor a little.
        Raises FolderRefused."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FORMER_S
        while True:
            try:
                refuse_if_in_use(self.settings.data, folders.values())
            except FolderRefused:
                if loop.time() >= until_s:
                    raise
            else:
                return
            await asyncio.sleep(_LOOK_S)

    async def listen(self) -> None:
        """Raises OSError."""
        self._listening = listening = await listen(self.settings, self._count)
        self._opened.callback(_close, listening.local)
        self._opened.callback(_close, listening.main)

    async def start(self) -> tuple[str, AccessKey | None]:
        """Start the workers. Returns the address, and the access key of a first start. Raises
        WorkerRefused, OSError."""
        *first, self._spare = self._begun
        begun = await asyncio.gather(*first)
        for number, worker in enumerate(begun):
            self._give(worker, number)
        await asyncio.gather(*(worker.ready.wait() for worker in begun))
        for worker in begun:
            if worker.ended.is_set() or worker.process.returncode is not None:
                status = worker.process.returncode
                raise WorkerRefused(worker.refusal or f"a worker ended with status {status}")
        self._keeping = [
            asyncio.create_task(self._keep(number, worker)) for number, worker in enumerate(begun)
        ]
        key = await self._make_first_key()
        self._leave_note()
        return self._listening.address, key

    @property
    def _lines(self) -> AuditLines | None:
        audit = self._records.audit
        return None if audit is None else audit.lines

    async def _make_first_key(self) -> AccessKey | None:
        identities = self._records.identities
        if self.settings.auth is not AuthMode.SIGV4 or len(identities.credentials()):
            return None
        key = await identities.add_first_key(self.settings.account)
        if key is not None:
            self._records.note("first_access_key", access_key_id=key.access_key_id)
        return key

    def _leave_note(self) -> None:
        """A failure is only logged, since commands can take the address from an option."""
        listening = self._listening
        try:
            write_note(
                self.settings.data,
                local_url(listening.address),
                listening.admin_address,
                self._local_key,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            self._log.warning("service_not_noted", reason=reason)

    # -- workers -----------------------------------------------------------------------------------

    def _give(self, worker: WorkerProcess, number: int) -> None:
        """Make a process a worker, with its sockets and shards."""
        main, local = self._listening.main[number], self._listening.local[number]
        key = self._local_key
        start = Start(
            number=number,
            folders={shard: str(folder) for shard, folder in self._folders.items()},
            settings=encoded_settings(self.settings, self._count),
            local_key=[key.access_key_id, key.secret_access_key],
            main_sockets=len(main),
        )
        self._workers[number] = worker
        served = Served(self._host_records.all, self._lines, self._pass_on)
        worker.start(start, [*main, *local], served)

    def _prepare_spare(self) -> None:
        """Start a process that waits to take a worker's place: to read its code takes longest."""
        self._spare = asyncio.create_task(WorkerProcess.begin())

    async def _keep(self, number: int, worker: WorkerProcess) -> None:
        """Replace the worker with this number each time it ends."""
        loop = asyncio.get_running_loop()
        pause_s, begun_s = _PAUSE_S, loop.time()
        while True:
            await worker.ended.wait()
            if self._is_stopping:
                return
            self._log.error(
                "worker_ended",
                worker=number,
                pid=worker.process.pid,
                status=worker.process.returncode,
                reason=worker.refusal or None,
                means="its shards answer again in a moment; requests for them wait meanwhile",
                action="none if it happens once; else see the lines before this one",
            )
            if loop.time() - begun_s < _STEADY_S:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                pause_s = _PAUSE_S
            begun_s = loop.time()
            worker = await self._next()
            self._give(worker, number)

    async def _next(self) -> WorkerProcess:
        """The spare process, or a new one; tries again while the system has no room for one."""
        while True:
            spare, self._spare = self._spare, None
            try:
                worker = await (spare or asyncio.create_task(WorkerProcess.begin()))
            except OSError as error:
                self._log.error("worker_not_started", reason=error.strerror or str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if not worker.ended.is_set():
                self._prepare_spare()
                return worker

    def _pass_on(self, source: str, target: str, kind: SocketKind, end: socket.socket) -> None:
        for number, worker in self._workers.items():
            if worker_name(number) == target:
                worker.give(source, kind, end)

    # -- stop --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Have the workers finish their requests, all of them before any closes its shards."""
        self._is_stopping = True
        if self._workers:
            if hasattr(self, "_records"):
                self._records.note("stopping")
            remove_note(self.settings.data)
        for task in self._keeping:
            task.cancel()
        workers = list(self._workers.values())
        for worker in workers:
            worker.conversation.send(Stop())
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await asyncio.gather(*(worker.drained.wait() for worker in workers))
        for worker in workers:
            worker.conversation.send(Close())
        await asyncio.gather(*(self._end(worker) for worker in workers), self._end_unused())
        await self._opened.aclose()

    async def _end(self, worker: WorkerProcess) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.ended.wait(), _END_S)
        await worker.end(0.0)

    async def _end_unused(self) -> None:
        unused = [*self._begun, *([self._spare] if self._spare is not None else [])]
        for process in await asyncio.gather(*unused, return_exceptions=True):
            if isinstance(process, WorkerProcess) and not process.ended.is_set():
                await process.end(0.0)
