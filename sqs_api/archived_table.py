"""ArchivedTable: believes that batches are archived when the Delta table in the lake says so itself.

The table is read by a process of its own, as the lake is written: no request waits for it.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from storage.archived_batch import ArchivedTask, Claimed

_READ_S = 60.0
"""A lake that takes longer is away: what was claimed can be said again later."""
_WORKER = [sys.executable, "-EP", "-m", "sqs_api", "lake-archived"]


class NotInTable(Exception):
    """The table does not say so; the text is what it says."""


class TableUnreadable(Exception):
    """The table cannot be read now; the text says why in one line."""


class ArchivedTable:
    """The table of one lake. Belongs to the event loop's thread."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._one = asyncio.Lock()

    async def check(self, claimed: Claimed) -> None:
        """Return if the table says that it has these batches. Raises NotInTable, TableUnreadable."""
        async with self._one:  # a process each: a crowd of them would take the machine
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
            if worker.returncode is None:  # nobody waits for it any more
                worker.kill()
                await worker.wait()
        if worker.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it was ended"]
            raise TableUnreadable(lines[-1].removeprefix("holdfast: "))
        return msgspec.json.decode(output, type=str | None)
