"""The records as a process sees them that etcd may be away for."""

from __future__ import annotations

from collections.abc import Collection

from cluster.coordination.coordination import (
    Change,
    Coordination,
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)

_AWAY = Unavailable("it is away")


class CutOff:
    """See Coordination. The changes that are missed meanwhile come later."""

    def __init__(self, whole: Coordination) -> None:
        self._whole = whole
        self.is_away = False
        self._missed: list[Change] = []
        self._on_change: OnChange = lambda change: None

    async def read_all(self) -> Snapshot | Unavailable:
        """See Coordination."""
        return _AWAY if self.is_away else await self._whole.read_all()

    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        """See Coordination."""
        return _AWAY if self.is_away else await self._whole.read(keys)

    async def commit(self, transaction: Transaction) -> Outcome:
        """See Coordination."""
        return _AWAY if self.is_away else await self._whole.commit(transaction)

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        """See Coordination."""
        self._on_change = on_change

        def report(change: Change) -> None:
            (self._missed.append if self.is_away else on_change)(change)

        await self._whole.watch(after, report)

    def back(self, *, one_by_one: int | None = None) -> None:
        """It answers again, and the watch reports what was missed; or only so many changes."""
        missed, self._missed = self._missed, []
        if one_by_one is None:
            self.is_away = False
        else:
            missed, self._missed = missed[:one_by_one], missed[one_by_one:]
        for change in missed:
            self._on_change(change)

    def restored(self, change: Change) -> None:
        """It answers again, from an older snapshot: the watch reports a difference."""
        self.is_away, self._missed = False, []
        self._on_change(change)

    def expect(self, revision: int) -> None:
        """See Coordination."""

    async def close(self) -> None:
        """See Coordination."""
