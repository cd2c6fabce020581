"""A service with several workers, as `holdfast serve` runs it."""

from __future__ import annotations

from typing import NamedTuple

from auth.credentials import AccessKey
from sqs_api.settings.config import Settings
from sqs_api.start_refusals import NodeRefused, refusals, refused_address
from sqs_api.workers.supervisor import Supervisor, WorkerRefused


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
    supervisor = Supervisor(settings)
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
