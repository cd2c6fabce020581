"""A model of coordination: records in memory, outcomes as a test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cluster.coordination import coordination


class MemoryCoordination:
    """See Coordination."""

    def __init__(self) -> None:
        self.revision = 0
        self.records: dict[str, coordination.Record] = {}
        self.history: list[coordination.Change] = []
        self.next_outcomes: list[str] = []
        """Of the next commits: "unavailable", "unknown, done", "unknown, not done" or "conflict";
        others are as they should be."""
        self.is_away = False
        self.away_s = 0.0
        """Time that a commit takes to find that it is away."""
        self.held_back: list[coordination.Change] | None = None
        """Changes that the watches do not report yet, None if they report at once."""
        self.watchers: list[coordination.OnChange] = []

    async def close(self) -> None:
        self.watchers.clear()

    async def read_all(self) -> coordination.Snapshot | coordination.Unavailable:
        if self.is_away:
            return coordination.Unavailable("it is away")
        records = [self.records[key] for key in sorted(self.records)]
        return coordination.Snapshot(self.revision, records)

    async def read(self, keys: Collection[str]) -> coordination.Snapshot | coordination.Unavailable:
        found = await self.read_all()
        if isinstance(found, coordination.Unavailable):
            return found
        return found.of(keys)

    async def commit(self, transaction: coordination.Transaction) -> coordination.Outcome:
        assert len(transaction.changes) <= coordination.RECORDS_MAX
        wanted = self.next_outcomes.pop(0) if self.next_outcomes else ""
        if wanted == "unavailable" or self.is_away:
            if self.away_s:
                await asyncio.sleep(self.away_s)
            return coordination.Unavailable("it is away")
        if wanted == "unknown, not done":
            return coordination.Unknown("no answer came")
        if wanted == "conflict":
            await asyncio.sleep(0.05)
            return coordination.Conflict(self.revision)
        for key, revision in transaction.conditions.items():
            if (self.records[key].revision if key in self.records else 0) != revision:
                return coordination.Conflict(self.revision)
        self.change(transaction)
        return (
            coordination.Unknown("no answer came")
            if wanted == "unknown, done"
            else coordination.Done(self.revision)
        )

    def change(self, transaction: coordination.Transaction) -> None:
        """Commit it whatever its conditions say, also while it is away."""
        self.revision += 1
        for key, value in transaction.changes.items():
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = coordination.Record(key, value, self.revision)
        change = coordination.Change(self.revision, dict(transaction.changes))
        self.history.append(change)
        if self.held_back is not None:
            self.held_back.append(change)
        else:
            self._report(change)

    def _report(self, change: coordination.Change) -> None:
        for on_change in self.watchers:
            on_change(change)

    def report(self) -> None:
        """Report what was held back."""
        held_back, self.held_back = self.held_back or [], None
        for change in held_back:
            self._report(change)

    async def watch(self, after: coordination.Snapshot, on_change: coordination.OnChange) -> None:
        for change in self.history:
            if change.revision > after.revision:
                on_change(change)
        self.watchers.append(on_change)

    def expect(self, revision: int) -> None:
        """Watches are never stuck."""
