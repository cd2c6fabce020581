"""Supervisor: the first process of a service with several workers. It answers no requests.

It has the records, the audit log and the listening sockets, and starts the workers, each with its
share of the shards. A worker that ends is replaced at once by a process that waits for that, over
the same listening socket: connections that were not accepted yet wait there. If the supervisor
ends, its workers do so too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from errno import EADDRINUSE
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from auth.credentials import AccessKey
from cluster.catalog.host_records import HostRecords
from cluster.catalog.other_hosts import NO_OTHERS, OtherHosts
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
from sqs_api.service_records import Records, open_records
from sqs_api.settings.config import AuthMode, Settings, shards_of, workers_of
from sqs_api.settings.declaring import DeclaredQueues
from sqs_api.settings.reserve import check_folders
from sqs_api.settings.service_note import FILE_NAME as NOTE_FILE
from sqs_api.settings.service_note import local_url, make_local_key, remove_note, write_note
from sqs_api.workers.conversation import Start
from sqs_api.workers.given_settings import encoded_settings, settings_of_each
from sqs_api.workers.keeper import Keeper
from sqs_api.workers.pair_network import worker_name
from sqs_api.workers.worker_process import Served, WorkerProcess
from storage.engines.in_use import refuse_if_in_use
from storage.files.folder import FolderRefused, add_shards, open_folder, renew_format

T = TypeVar("T")

_COMMAND_S = 5.0
"""Time that a start waits for a command that changes users or keys of the folder."""
_FORMER_S = 15.0
"""Time that a start waits for workers whose supervisor was killed: they finish what they do."""
_LOOK_S = 0.02


class _Place(NamedTuple):
    """The place of the records."""

    records: HostRecords
    others: OtherHosts = NO_OTHERS

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
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
    main = await shared(settings.host, settings.port, workers, listening_on)
    port = main[0][0].getsockname()[1]
    address = address_of(settings, port)
    if not has_local_port(settings):
        admin_address = f"http://{loopback_of(settings.host)}:{port}"
        return Listening(main, [[] for _ in main], address, admin_address)
    try:
        local = await shared(LOCAL_HOST, 0, workers, listening_on)
    except OSError:
        close(main)
        raise
    port = local[0][0].getsockname()[1]
    return Listening(main, local, address, f"http://{LOCAL_HOST}:{port}")


async def shared(
    host: str, port: int, count: int, open_sockets: Callable[..., Awaitable[list[socket.socket]]]
) -> list[list[socket.socket]]:
    """Sockets of one port for `count` workers, by worker one for each address. `open_sockets` is
    `listening_on` or `bound_to`. Raises OSError, with nothing left open."""
    if port:  # sockets that share a port would share it with another service, too
        for alone in await listening_on(host, port):
            alone.close()
    sockets: list[list[socket.socket]] = []
    try:
        for _ in range(count):
            sockets.append(await open_sockets(host, port, shared=True))
            port = sockets[0][0].getsockname()[1]
    except OSError:
        close(sockets)
        raise
    return sockets


def close(sockets: list[list[socket.socket]]) -> None:
    """Close the sockets of all workers."""
    for of_worker in sockets:
        for each in of_worker:
            each.close()


async def former_ended(data: Path, folders: Mapping[int, Path]) -> None:
    """Wait until no other process has a shard: workers outlive a killed supervisor a little.
    Raises FolderRefused."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _FORMER_S
    while True:
        try:
            refuse_if_in_use(data, folders.values())
        except FolderRefused:
            if loop.time() >= until_s:
                raise
        else:
            return
        await asyncio.sleep(_LOOK_S)


async def once_free(data: Path, listen: Callable[[], Awaitable[T]]) -> T:
    """Listen, and return the same. After a kill, wait for the end of workers that have the port:
    one that starts has it before it has a shard. Raises OSError."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + (_FORMER_S if (data / NOTE_FILE).exists() else 0.0)
    while True:
        try:
            return await listen()
        except OSError as error:
            if error.errno != EADDRINUSE or loop.time() >= until_s:
                raise
        await asyncio.sleep(_LOOK_S)


def _nothing() -> None:
    """There are no clusters that could remove workers."""


class Supervisor:
    """`prepare`, `listen`, `start`; `stop`."""

    def __init__(self, settings: Settings, begun: Sequence[asyncio.Task[WorkerProcess]]) -> None:
        """`begun` are the processes of the first workers, and a spare."""
        self.settings = settings
        self._keeper = Keeper(begun, self._give, worker_name, _nothing)
        self._count = workers_of(settings)
        self._opened = AsyncExitStack()
        self._process = Process(settings, SystemClock(), SystemEntropy(), self._opened)
        self._local_key = make_local_key(settings.account, self._process.entropy)
        self._host_records: HostRecords
        self._records: Records
        self._folders: Mapping[int, Path]
        self._listening: Listening
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
        await former_ended(settings.data, folders)
        self._folders = add_shards(settings.data, shards)
        renew_format(settings.data)
        remove_leftovers(settings.data)
        self._records = records = await open_records(
            self._process, _Place(self._host_records), sorted(self._folders)
        )
        await DeclaredQueues(settings, records.catalog, records.note_declared).make()

    async def listen(self) -> None:
        """Raises OSError."""
        opening = partial(listen, self.settings, self._count)
        self._listening = listening = await once_free(self.settings.data, opening)
        self._opened.callback(close, listening.local)
        self._opened.callback(close, listening.main)

    async def start(self) -> tuple[str, AccessKey | None]:
        """Start the workers. Returns the address, and the access key of a first start. Raises
        WorkerRefused, OSError."""
        begun = await self._keeper.begin()
        await self._keeper.keep_once_ready(*range(len(begun)))
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
            settings=encoded_settings(settings_of_each(self.settings, self._count)),
            local_key=[key.access_key_id, key.secret_access_key],
            main_sockets=len(main),
        )
        served = Served(self._host_records.all, self._lines, self._keeper.pass_on)
        worker.start(start, [*main, *local], served)

    # -- stop --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Have the workers finish their requests, all of them before any closes its shards."""
        if self._keeper.has_workers:
            if hasattr(self, "_records"):
                self._records.note("stopping")
            remove_note(self.settings.data)
        await self._keeper.stop()
        await self._opened.aclose()
