"""A service with several workers, as `holdfast serve` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from sqs_api.settings.config import Settings
from sqs_api.workers.forked import Started, fork_workers
from sqs_api.workers.member_workers import workers_there
from sqs_api.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from auth.credentials import AccessKey

T = TypeVar("T", covariant=True)


class Supervised(NamedTuple):
    """The running service."""

    address: str
    first_key: AccessKey | None
    stop: Callable[[], Coroutine[Any, Any, None]]
    """Finishes the requests under way, and ends all workers."""


def fork_processes(settings: Settings) -> list[Started]:
    """The processes of the first workers, and a spare; before there is an event loop. Raises
    OSError."""
    import sqs_api.workers.member_supervisor
    import sqs_api.workers.supervisor  # noqa: F401 the code is read once, for all
    from sqs_api.commands.worker_main import run_worker

    return fork_workers(workers_there(settings) + 1, run_worker)


async def start_supervised(
    settings: Settings, started: Sequence[Started], on_removed: Callable[[], None]
) -> Supervised:
    """Start the workers; requests are answered once this returns. `on_removed` is called when this
    host's clusters have removed all its workers. Raises NodeRefused, with nothing left running."""
    from sqs_api.workers.member_supervisor import MemberSupervisor
    from sqs_api.workers.supervisor import Supervisor

    begun = [asyncio.create_task(WorkerProcess.adopt(each)) for each in started]
    if settings.etcd is None:
        supervisor = Supervisor(settings, begun)
        address, first_key = await _begun(settings, supervisor)
        return Supervised(address, first_key, supervisor.stop)
    members = MemberSupervisor(settings, begun, on_removed)
    return Supervised(await _begun(settings, members), None, members.stop)


class _Begins(Protocol[T]):
    async def prepare(self) -> None:
        """Raises the errors of `refusals`."""

    async def listen(self) -> None:
        """Raises OSError."""

    async def start(self) -> T:
        """Raises WorkerRefused, OSError."""

    async def stop(self) -> None:
        """End all workers."""


async def _begun(settings: Settings, supervisor: _Begins[T]) -> T:
    """Start it, and return as its `start` does. Raises NodeRefused, with nothing left running."""
    from sqs_api.start_refusals import NodeRefused, refusals, refused_address
    from sqs_api.workers.keeper import WorkerRefused

    try:
        with refusals(settings.data):
            await supervisor.prepare()
        with refused_address(f"{settings.host}:{settings.port}", "; choose another with --port"):
            await supervisor.listen()
        try:
            return await supervisor.start()
        except WorkerRefused as error:
            raise NodeRefused(str(error)) from error
        except OSError as error:
            raise NodeRefused(f"cannot start workers: {error.strerror}") from error
    except BaseException:
        await supervisor.stop()
        raise
