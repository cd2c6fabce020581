"""SavedRecords: the records of a fleet, of which a gateway keeps a table on its disk, so that it
starts while etcd is away.

What it reads at a start comes from etcd, else from the table; the watches go on from there, and
report all that changed since. Secrets among the records are under the master key, in the table too.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol
from zlib import crc32

import msgspec
import structlog

from cluster.coordination.coordination import (
    Change,
    Coordination,
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)
from storage.files.copying import replace_file

FILE_NAME = "records.table"


class _Table(msgspec.Struct, frozen=True):
    fleet: str
    parts: dict[str, Snapshot]
    """By the beginning of their keys."""


_CRC_BYTES = 4


class Root(Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


class SavedRecords:
    """Belongs to one event loop. `below` before the first read; `save` is due every few seconds."""

    def __init__(self, root: Root, folder: Path, fleet: str) -> None:
        """`fleet` is the name under which etcd has the records. A table of another fleet, or one
        that is damaged, counts as none."""
        self._root = root
        self._file = folder / FILE_NAME
        self._fleet = fleet
        self._parts: dict[str, SavedPart] = {}
        self._saved = self._read()
        self.is_from_table = False
        """True once a part was read from the table: etcd did not answer."""
        self._log = structlog.get_logger("records")

    def _read(self) -> dict[str, Snapshot]:
        try:
            content = self._file.read_bytes()
            if crc32(content[_CRC_BYTES:]) != int.from_bytes(content[:_CRC_BYTES], "big"):
                return {}
            table = msgspec.msgpack.decode(content[_CRC_BYTES:], type=_Table)
        except (OSError, msgspec.MsgspecError):
            return {}
        return table.parts if table.fleet == self._fleet else {}

    def below(self, folder: str) -> SavedPart:
        """The records below a prefix."""
        part = self._parts[folder] = SavedPart(self, self._root.below(folder), folder)
        return part

    def saved(self, folder: str) -> Snapshot | None:
        """The records of the table."""
        return self._saved.get(folder)

    async def save(self) -> None:
        """Write what changed since the last call to the disk."""
        changed = [part for part in self._parts.values() if part.is_changed]
        if not changed:
            return
        saved = self._read()
        for part in changed:
            part.is_changed = False
            found = await part.records.read_all()
            if isinstance(found, Unavailable):
                part.is_changed = True
                return
            saved[part.folder] = found
        body = msgspec.msgpack.encode(_Table(self._fleet, saved))
        try:
            replace_file(self._file, crc32(body).to_bytes(_CRC_BYTES, "big") + body)
        except OSError as error:
            self._log.error("records_not_saved", reason=error.strerror or str(error))
        # Of use at a start only: the table would be in memory for nothing.
        self._saved = {}


class SavedPart:
    """See Coordination."""

    def __init__(self, whole: SavedRecords, records: Coordination, folder: str) -> None:
        self._whole = whole
        self.records = records
        self.folder = folder
        self.is_changed = True

    async def read_all(self) -> Snapshot | Unavailable:
        """See Coordination. From the table while etcd is away."""
        saved = self._whole.saved(self.folder)
        if self._whole.is_from_table and saved is not None:
            return saved  # not another wait for etcd
        found = await self.records.read_all()
        if isinstance(found, Unavailable) and saved is not None:
            self._whole.is_from_table = True
            return saved
        return found

    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        """See Coordination. The same."""
        saved = self._whole.saved(self.folder)
        if not self._whole.is_from_table or saved is None:
            return await self.records.read(keys)
        return Snapshot(saved.revision, [each for each in saved.records if each.key in keys])

    async def commit(self, transaction: Transaction) -> Outcome:
        """See Coordination."""
        return await self.records.commit(transaction)

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        """See Coordination."""

        def report(change: Change) -> None:
            self.is_changed = self.is_changed or bool(change.records)
            on_change(change)

        await self.records.watch(after, report)

    def expect(self, revision: int) -> None:
        """See Coordination."""
        self.records.expect(revision)

    async def close(self) -> None:
        """See Coordination."""
        await self.records.close()
