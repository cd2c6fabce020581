"""Questions to a lake: does the table have these batches, which archived messages match?

A process of its own answers each, so that the event loop never waits for the lake.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import msgspec

from sqs_api.archiving.archive_search import ArchiveSearch, FoundRows, Span
from storage.lake.archived_batch import ArchivedTask, Claimed
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable

READ_S = 60.0
"""After this the lake counts as unavailable, and the caller has to ask again later."""
CHECK_S = 600.0
"""The check reads columns of all files in the batches' queues and days."""
_AT_ONCE = 2
"""Processes that search the lake."""
PYTHON = [sys.executable, "-EP", "-m", "sqs_api"]


class LakeSilent(Exception):
    """The lake cannot be read at present; the text gives the reason in one line."""


async def ask_lake(
    command: str, lake: str, task: msgspec.Struct, within_s: float = READ_S
) -> bytes:
    """Give a hidden command the task as JSON; returns its output. Raises LakeSilent."""
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        *PYTHON, command, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(within_s):
            output, errors = await worker.communicate(msgspec.json.encode(task))
    except TimeoutError as error:
        raise LakeSilent(f"{lake} does not answer") from error
    finally:
        if worker.returncode is None:  # the caller was cancelled, or the time is over
            worker.kill()
            await worker.wait()
    if worker.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["the process was killed"]
        raise LakeSilent(lines[-1].removeprefix("holdfast: "))
    return output


class NotInTable(Exception):
    """The table contradicts the claim; the text says in which respect."""


class TableUnreadable(Exception):
    """The table cannot be read at present; the text gives the reason in one line."""


class ArchivedTable:
    """The archive table of one lake."""

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
                "lake-archived", self._lake, ArchivedTask(self._lake, claimed), CHECK_S
            )
        except LakeSilent as error:
            raise TableUnreadable(str(error)) from error
        return msgspec.json.decode(answer, type=str | None)


class ArchivedMessages:
    """The archived messages of one lake, or of none."""

    def __init__(self, lake: str | None, keys: Sequence[str]) -> None:
        self._lake = lake
        self.keys = tuple(keys)
        """The named keys whose messages are archived readable."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._spans: dict[str, Span] = {}
        """The spans of segments, which never change: a search opens those that can match."""

    @property
    def has_lake(self) -> bool:
        """False if the service has no archive."""
        return self._lake is not None

    @property
    def lake(self) -> str:
        """The lake. Raises InvalidParameterValue."""
        if self._lake is None:
            raise InvalidParameterValue("The service has no archive: it runs without --lake.")
        return self._lake

    async def search(self, wanted: ArchiveSearch) -> FoundRows:
        """A page of messages. Raises ServiceUnavailable."""
        try:
            async with self._turns:
                known = msgspec.structs.replace(wanted, spans=self._spans)
                answer = await ask_lake("lake-search", self.lake, known)
        except LakeSilent as error:
            raise ServiceUnavailable(f"The archive cannot be read: {error}") from error
        found = msgspec.json.decode(answer, type=FoundRows)
        self._spans = found.spans
        return found
