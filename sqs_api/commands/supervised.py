"""A service with several workers, as `holdfast serve` runs it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from sqs_api.settings.config import Settings, workers_of
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


async def start_supervised(settings: Settings) -> Supervised:
    """Start the workers; requests are answered once this returns. Raises NodeRefused, with nothing
    left running."""
    processes = range(workers_of(settings))
    begun = [asyncio.create_task(WorkerProcess.begin()) for _ in processes]
    await asyncio.wait(begun)  # they read their code while this process reads its own
    from sqs_api.start_refusals import NodeRefused, refusals, refused_address
    from sqs_api.workers.supervisor import Supervisor, WorkerRefused

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
