"""UsedKeys: notes the days on which access keys are used.

The verifier knows them at no cost: a signature names its day, so a key's first request of a day
cannot take the short path. What it knows is written beside the keys once a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from auth.sigv4 import Verifier
from cluster.keys.identity_records import IdentitiesUnreadable

STOP_S = 1.0
"""A stop waits this long for the last days: the cluster's records may be away."""
NoteUses = Callable[[Mapping[str, int]], Awaitable[None]]
"""`IdentityStore.note_uses`."""


class UsedKeys:
    """Notes them for one process."""

    def __init__(self, verifier: Verifier, note: NoteUses) -> None:
        self._verifier = verifier
        self._note = note
        self._written: dict[str, int] = {}
        """Days by key id, as this host wrote them."""
        self._log = structlog.get_logger("node")

    async def write(self) -> None:
        """Write the days that are new."""
        used = dict(self._verifier.used)
        known = {key.access_key_id for key in self._verifier.credentials}
        for key_id in used.keys() - known:
            self._verifier.used.pop(key_id, None)
        days = {
            key_id: day
            for key_id, day in used.items()
            if key_id in known and self._written.get(key_id) != day
        }
        if not days:
            return
        try:
            await self._note(days)
        except IdentitiesUnreadable as error:
            self._log.warning("key_uses_not_written", error=str(error))
        else:
            written = self._written | days
            self._written = {key_id: day for key_id, day in written.items() if key_id in known}

    async def stop(self) -> None:
        """Write the last days, if that takes no longer than a stop may wait."""
        try:
            async with asyncio.timeout(STOP_S):
                await self.write()
        except TimeoutError:
            self._log.warning("key_uses_not_written", error="a stop waits no longer")
