"""A copy of records, for those who read them beside the process that has them open."""

from __future__ import annotations

from collections.abc import Collection

from cluster.coordination.coordination import (
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)
from cluster.coordination.part import below


class Fixed:
    """See Coordination. Nothing changes."""

    def __init__(self, copied: Snapshot) -> None:
        self._copied = copied

    def below(self, folder: str) -> Fixed:
        """The records whose keys begin with this."""
        return Fixed(below(self._copied, folder))

    async def read_all(self) -> Snapshot:
        """See Coordination."""
        return self._copied

    async def read(self, keys: Collection[str]) -> Snapshot:
        """See Coordination."""
        found = [each for each in self._copied.records if each.key in keys]
        return self._copied._replace(records=found)

    async def commit(self, transaction: Transaction) -> Outcome:
        """See Coordination."""
        return Unavailable("this is a copy of them")

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        """See Coordination."""

    def expect(self, revision: int) -> None:
        """See Coordination."""

    async def close(self) -> None:
        """See Coordination."""
