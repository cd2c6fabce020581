"""ArchivedTable: checks acknowledgements against the Delta table in the lake.

A separate process reads the table, so that the event loop never waits for the lake.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from storage.lake.archived_batch import ArchivedTask, Claimed

_READ_S = 60.0
"""After this the lake counts as unavailable, and the job has to repeat its request later."""
_WORKER = [sys.executable, "-EP", "-m", "sqs_api", "lake-archived"]


class NotInTable(Exception):
    """The table contradicts the claim; the text says in which respect."""


class TableUnreadable(Exception):
    """The table cannot be read at present; the text gives the reason in one line."""


class ArchivedTable:
    """The archive table of one lake. Belongs to the event loop's thread."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._one = asyncio.Lock()

    async def check(self, claimed: Claimed) -> None:
        """Verify that the table has these batches. Raises NotInTable, TableUnreadable."""
        async with self._one:  # one process at a time
            refutation = await self._refute(claimed)
        if refutation is not None:
            raise NotInTable(refutation)

    async def _refute(self, claimed: Claimed) -> str | None:
        pipe = asyncio.subprocess.PIPE
        worker = await asyncio.create_subprocess_exec(
            *_WORKER, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            async with asyncio.timeout(_READ_S):
                task = msgspec.json.encode(ArchivedTask(self._lake, claimed))
                output, errors = await worker.communicate(task)
        except TimeoutError as error:
            raise TableUnreadable(f"{self._lake} does not answer") from error
        finally:
            if worker.returncode is None:  # the caller was cancelled, or the time is over
                worker.kill()
                await worker.wait()
        if worker.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or [
                "the process was killed"
            ]
            raise TableUnreadable(lines[-1].removeprefix("holdfast: "))
        return msgspec.json.decode(output, type=str | None)
