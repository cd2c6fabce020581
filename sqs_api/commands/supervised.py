"""A service with several workers, as `holdfast serve` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqs_api.settings.config import Settings, workers_of
from sqs_api.workers.forked import Started, fork_workers
from sqs_api.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from auth.credentials import AccessKey
    from sqs_api.workers.supervisor import Supervisor


class Supervised(NamedTuple):
    """The running service."""

    address: str
    first_key: AccessKey | None
    supervisor: Supervisor

    async def stop(self) -> None:
        """Finish the requests under way, and end all workers."""
        await self.supervisor.stop()


def fork_processes(settings: Settings) -> list[Started]:
    """The processes of the first workers, and a spare; before there is an event loop. Raises
    OSError."""
    import sqs_api.workers.supervisor  # noqa: F401 the code is read once, for all
    from sqs_api.commands.worker_main import run_worker

    return fork_workers(workers_of(settings) + 1, run_worker)


async def start_supervised(settings: Settings, started: Sequence[Started]) -> Supervised:
    """Start the workers; requests are answered once this returns. Raises NodeRefused, with nothing
    left running."""
    from sqs_api.start_refusals import NodeRefused, refusals, refused_address
    from sqs_api.workers.supervisor import Supervisor, WorkerRefused

    begun = [asyncio.create_task(WorkerProcess.adopt(each)) for each in started]
    supervisor = Supervisor(settings, begun)
    try:
        with refusals(settings.data):
            await supervisor.prepare()
        with refused_address(f"{settings.host}:{settings.port}", "; choose another with --port"):
            await supervisor.listen()
        try:
            address, first_key = await supervisor.start()
        except WorkerRefused as error:
            raise NodeRefused(str(error)) from error
        except OSError as error:
            raise NodeRefused(f"cannot start workers: {error.strerror}") from error
    except BaseException:
        await supervisor.stop()
        raise
    return Supervised(address, first_key, supervisor)
