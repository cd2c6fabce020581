"""SavedRecords: the records of a fleet, of which a gateway keeps tables on its disk, so that it
starts while etcd is away.

What it reads at a start comes from etcd, else from the tables; the watches go on from there, and
report all that differs. Secrets among the records are under the master key, in a table too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol
from zlib import crc32

import msgspec
import structlog
from typing_extensions import override

from cluster.coordination.coordination import (
    Change,
    Coordination,
    KeptSnapshot,
    OnChange,
    Outcome,
    Record,
    Snapshot,
    Transaction,
    Unavailable,
)
from storage.files.copying import replace_file

FOLDER = "records"
_CRC_BYTES = 4
_PATIENCE_S = 3.0
"""Time that etcd has for the first answer, where there is a table."""
_AWAY = Unavailable("etcd did not answer at the start")


InThread = Callable[[Callable[[], None]], Awaitable[None]]
"""Does work beside the event loop."""


class _Table(msgspec.Struct, frozen=True):
    fleet: str
    found: Snapshot


class _NoTable(Exception):
    """There is none, or none that can be read."""


class Root(Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


class SavedRecords:
    """`below` before the first read; `save` is due every few seconds."""

    def __init__(
        self, root: Root, folder: Path, fleet: str, in_thread: InThread = asyncio.to_thread
    ) -> None:
        """`fleet` is the name under which etcd has the records. A table of another fleet, or one
        that is damaged, counts as none."""
        self._root = root
        self._folder = folder / FOLDER
        self._fleet = fleet
        self._in_thread = in_thread
        self._parts: dict[str, SavedPart] = {}
        self.is_away = False
        """True since etcd left the first question without an answer, until it is heard again."""
        self.was_heard = False
        """True once it was."""

    def below(self, folder: str) -> SavedPart:
        """The records below a prefix."""
        file = self._folder / f"{folder.strip('/')}.table"
        part = self._parts[folder] = SavedPart(self, self._root.below(folder), file, self._fleet)
        return part

    def heard(self) -> None:
        """Etcd answered."""
        self.is_away, self.was_heard = False, True

    async def save(self) -> None:
        """Write what changed since the last call to the disk."""
        for part in self._parts.values():
            await part.save(self._in_thread)


class SavedPart(Coordination):
    """A folder of the records, from their saved table while etcd is away."""

    def __init__(self, whole: SavedRecords, records: Coordination, file: Path, fleet: str) -> None:
        self._whole = whole
        self._records = records
        self._file = file
        self._fleet = fleet
        self._begun: Snapshot | None = None
        """The records that the watch goes on from, until they are in the table."""
        self._changes: dict[str, Record | None] = {}
        """Reported by the watch since the table was written; None for a record that is gone."""
        self._revision = 0
        """The revision of the watch; records that are read anew may be later, and are reported
        again."""
        self._log = structlog.get_logger("records")

    @override
    async def read_all(self) -> Snapshot | Unavailable:
        """From the table while etcd is away."""
        whole = self._whole
        if whole.is_away and (saved := self._read()) is not None:
            return saved  # not another wait for etcd
        found: Snapshot | Unavailable = _AWAY
        is_patient = whole.was_heard or not self._file.exists()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if is_patient else _PATIENCE_S):
                found = await self._records.read_all()
        if isinstance(found, Snapshot):
            whole.heard()
        elif (saved := self._read()) is not None:
            whole.is_away = True
            return saved
        return found

    @override
    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        """The same."""
        saved = self._read() if self._whole.is_away else None
        if saved is None:
            return await self._records.read(keys)
        return saved.of(keys)

    @override
    async def commit(self, transaction: Transaction) -> Outcome:
        return _AWAY if self._whole.is_away else await self._records.commit(transaction)

    @override
    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        self._begun, self._changes, self._revision = after, {}, after.revision

        def report(change: Change) -> None:
            self._whole.heard()
            self._revision = change.revision
            for key, value in change.records.items():
                at = change.revision_of(key)
                self._changes[key] = None if value is None else Record(key, value, at)
            on_change(change)

        await self._records.watch(after, report)

    @override
    def expect(self, revision: int) -> None:
        self._records.expect(revision)

    @override
    async def close(self) -> None:
        await self._records.close()

    # -- the table ---------------------------------------------------------------------------------

    async def save(self, in_thread: InThread) -> None:
        """Bring the table up to date. It is of use at a start only, so it is not kept in memory."""
        if self._begun is None and not self._changes:
            return
        begun, changes = self._begun, self._changes
        self._begun, self._changes = None, {}
        try:
            await in_thread(partial(self._write, begun, changes, self._revision))
        except _NoTable:
            found = await self._records.read_all()
            self._begun = None if isinstance(found, Unavailable) else found
            self._changes = changes | self._changes
        except OSError as error:
            self._begun, self._changes = begun, changes | self._changes
            self._log.error("records_not_saved", reason=error.strerror or str(error))

    def _write(
        self, begun: Snapshot | None, changes: dict[str, Record | None], revision: int
    ) -> None:
        """Raises OSError, and _NoTable if there is nothing that changed."""
        table = self._read()
        before = begun or table
        if before is None:
            raise _NoTable
        if table is not None and table.records == before.records and not changes:
            return
        records = {each.key: each for each in before.records} | changes
        found = Snapshot(revision, sorted(filter(None, records.values())))
        body = msgspec.msgpack.encode(_Table(self._fleet, found))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, crc32(body).to_bytes(_CRC_BYTES, "big") + body)

    def _read(self) -> Snapshot | None:
        try:
            content = self._file.read_bytes()
            body = memoryview(content)[_CRC_BYTES:]
            if crc32(body) != int.from_bytes(content[:_CRC_BYTES], "big"):
                return None
            table = msgspec.msgpack.decode(body, type=_Table)
        except (OSError, msgspec.MsgspecError):
            return None
        return KeptSnapshot(*table.found) if table.fleet == self._fleet else None
