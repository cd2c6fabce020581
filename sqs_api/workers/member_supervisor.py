"""MemberSupervisor: the first process of a host of a cluster with several workers. It answers no
requests.

Each worker is a host of the fleet (`member_workers.py`): it has its own records, shards and peers.
The supervisor has the listening sockets, and starts the workers. A socket listens once its worker
answers, since a worker may wait for those of other hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from cluster.peers.peer_settings import process_name
from sqs_api.http.listener import bound_to, listening_on
from sqs_api.http.server import LOCAL_HOST, address_of
from sqs_api.settings.config import Settings
from sqs_api.workers.conversation import StartMember
from sqs_api.workers.given_settings import encoded_settings
from sqs_api.workers.keeper import Keeper
from sqs_api.workers.member_workers import folder_of, settings_of_worker
from sqs_api.workers.supervisor import Listening, close, former_ended, once_free, shared
from sqs_api.workers.worker_process import Served, WorkerProcess
from storage.files.folder import FORMAT_FILE, open_folder


class MemberSupervisor:
    """`prepare`, `listen`, `start`; `stop`."""

    def __init__(
        self,
        settings: Settings,
        begun: Sequence[asyncio.Task[WorkerProcess]],
        on_removed: Callable[[], None],
    ) -> None:
        """`begun` are the processes of the workers, and a spare. `on_removed` is called when the
        clusters have removed all workers."""
        self._settings = settings
        self._count = len(begun) - 1
        self._keeper = Keeper(begun, self._give, self._name_of, on_removed)
        self._opened = AsyncExitStack()
        self._listening: Listening

    def _name_of(self, number: int) -> str:
        assert self._settings.host_name is not None
        return process_name(self._settings.host_name, number)

    async def prepare(self) -> None:
        """Wait for workers that outlive a killed supervisor. Raises FolderRefused."""
        for number in range(self._count):
            data = folder_of(self._settings.data, number)
            if (data / FORMAT_FILE).exists():
                await former_ended(data, open_folder(data))

    async def listen(self) -> None:
        """Take the ports. Raises OSError."""
        settings = self._settings
        opening = partial(shared, settings.host, settings.port, self._count, bound_to)
        main = await once_free(settings.data, opening)
        self._opened.callback(close, main)
        # A command speaks to one worker, and the main port leads to any.
        local = [await listening_on(LOCAL_HOST, 0) for _ in main]
        self._opened.callback(close, local)
        address = address_of(settings, main[0][0].getsockname()[1])
        self._listening = Listening(main, local, address, "")

    async def start(self) -> str:
        """Start the workers, and return once the first one answers: the others may wait for those
        of other hosts. Returns the address. Raises WorkerRefused, OSError."""
        await self._keeper.begin()
        await self._keeper.keep_once_ready(0)
        return self._listening.address

    def _give(self, worker: WorkerProcess, number: int) -> None:
        main, local = self._listening.main[number], self._listening.local[number]
        settings = settings_of_worker(self._settings, number, self._count)
        start = StartMember(number, encoded_settings(settings), len(main))
        worker.start(start, [*main, *local], Served(None, None, self._keeper.pass_on))

    async def stop(self) -> None:
        """Have the workers hand over what they lead, and end."""
        await self._keeper.stop()
        await self._opened.aclose()
