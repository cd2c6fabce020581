"""The records of one kind, in a coordination that keeps several: those below a folder such as
`keyring/`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from typing_extensions import override

from cluster.coordination.coordination import (
    Change,
    Coordination,
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)

T = TypeVar("T")


class Part(Coordination):
    """A folder of a coordination. Keys are without the folder; `close` ends the watches, and
    nothing else."""

    def __init__(self, whole: Coordination, folder: str) -> None:
        self._whole = whole
        self._folder = folder
        self._is_closed = False

    @override
    async def read_all(self) -> Snapshot | Unavailable:
        return self._own(await self._whole.read_all())

    @override
    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        return self._own(await self._whole.read([self._folder + key for key in keys]))

    def _own(self, found: Snapshot | Unavailable) -> Snapshot | Unavailable:
        return found if isinstance(found, Unavailable) else below(found, self._folder)

    @override
    async def commit(self, transaction: Transaction) -> Outcome:
        conditions, changes, leases = transaction
        return await self._whole.commit(
            Transaction(self._placed(conditions), self._placed(changes), self._placed(leases))
        )

    def _placed(self, own: Mapping[str, T]) -> dict[str, T]:
        return {self._folder + key: value for key, value in own.items()}

    @override
    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        def report(change: Change) -> None:
            if not self._is_closed:
                records, revisions = self._named(change.records), self._named(change.revisions)
                on_change(Change(change.revision, records, revisions))

        await self._whole.watch(Snapshot(after.revision, []), report)

    def _named(self, placed: Mapping[str, T]) -> dict[str, T]:
        begin = self._folder
        return {key.removeprefix(begin): placed[key] for key in placed if key.startswith(begin)}

    @override
    def expect(self, revision: int) -> None:
        self._whole.expect(revision)

    @override
    async def close(self) -> None:
        self._is_closed = True


def below(found: Snapshot, folder: str) -> Snapshot:
    """The records below a folder, without it in their keys."""
    return found._replace(
        records=[
            each._replace(key=each.key.removeprefix(folder))
            for each in found.records
            if each.key.startswith(folder)
        ]
    )


class Fixed(Coordination):
    """Records that never change."""

    def __init__(self, copied: Snapshot) -> None:
        self._copied = copied

    def below(self, folder: str) -> Fixed:
        """The records whose keys begin with this."""
        return Fixed(below(self._copied, folder))

    @override
    async def read_all(self) -> Snapshot:
        return self._copied

    @override
    async def read(self, keys: Collection[str]) -> Snapshot:
        return self._copied.of(keys)

    @override
    async def commit(self, transaction: Transaction) -> Outcome:
        return Unavailable("this is a copy of them")

    @override
    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        """There is nothing to do."""

    @override
    def expect(self, revision: int) -> None:
        """There is nothing to do."""

    @override
    async def close(self) -> None:
        """There is nothing to do."""
