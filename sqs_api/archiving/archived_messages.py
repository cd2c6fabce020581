"""ArchivedMessages: searches of the archive for the operators' API, on any host with the lake."""

from __future__ import annotations

import asyncio

import msgspec

from sqs_api.archiving.archive_search import ArchiveSearch, FoundRows, Span
from sqs_api.archiving.lake_process import LakeSilent, ask_lake
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable

_AT_ONCE = 2
"""Processes that read the lake."""


class ArchivedMessages:
    """The archived messages of one lake, or of none. Belongs to the event loop's thread."""

    def __init__(self, lake: str | None) -> None:
        self._lake = lake
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._spans: dict[str, Span] = {}
        """Of segments, which never change: a search opens those that can match."""

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
