"""ArchivedTable: checks acknowledgements against the Delta table in the lake.

A separate process reads the table, so that the event loop never waits for the lake.
"""

from __future__ import annotations

import asyncio

import msgspec

from sqs_api.archiving.lake_process import LakeSilent, ask_lake
from storage.lake.archived_batch import ArchivedTask, Claimed

_CHECK_S = 600.0
"""The check reads columns of all files in the batches' queues and days."""


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
        """Verify that the table shows these batches whole. Raises NotInTable, TableUnreadable."""
        async with self._one:  # one process at a time
            refutation = await self._refute(claimed)
        if refutation is not None:
            raise NotInTable(refutation)

    async def _refute(self, claimed: Claimed) -> str | None:
        try:
            answer = await ask_lake(
                "lake-archived", self._lake, ArchivedTask(self._lake, claimed), _CHECK_S
            )
        except LakeSilent as error:
            raise TableUnreadable(str(error)) from error
        return msgspec.json.decode(answer, type=str | None)
