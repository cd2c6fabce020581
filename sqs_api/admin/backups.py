"""Backups: one at a time, made by the running service while it keeps answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from cluster.clock import Clock
from cluster.copies.backup import BackupDraft, CopiedStore
from cluster.tasks import retrieved
from sqs_api.admin.cluster_parts import BackupPoint
from storage.copies.manifest import BackupRefused, Manifest

_FLUSHES = 2
"""The first writes out the rows in memory, the second those added meanwhile: that leaves less for
the checkpoint, during which nothing else in the process runs."""


class Backups:
    """Makes backups of the data folder. All blocking work is done in threads."""

    def __init__(
        self,
        data: Path,
        shards: Mapping[int, Path],
        *,
        point: BackupPoint,
        store_of: Callable[[int], CopiedStore],
        clock: Clock,
        version: str,
    ) -> None:
        """`store_of` gives the store that a shard uses now."""
        self._data = data
        self._shards = shards
        self._point = point
        self._store_of = store_of
        self._clock = clock
        self._version = version
        self._log = structlog.get_logger("backups")
        self._task: asyncio.Task[Manifest] | None = None
        self._draft: BackupDraft | None = None
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """True while a backup is being made."""
        return self._task is not None and not self._task.done()

    async def make(self, target: Path, *, with_master_key: bool) -> Manifest:
        """Write a backup to `target`; continues if the caller is cancelled.

        Raises BackupRefused, with nothing left there.
        """
        return await asyncio.shield(self._begin(target, with_master_key, self._point))

    async def make_part(self, target: Path, point: BackupPoint) -> Manifest:
        """The same of this host's part of a fleet's backup, until the caller is cancelled."""
        return await self._begin(target, False, point)

    def _begin(
        self, target: Path, with_master_key: bool, point: BackupPoint
    ) -> asyncio.Task[Manifest]:
        if self.is_running or self._is_stopping:
            raise BackupRefused("another backup is being made, or the service stops")
        self._task = asyncio.create_task(self._make(target, with_master_key, point))
        self._task.add_done_callback(retrieved)
        return self._task

    async def _make(self, target: Path, with_master_key: bool, point: BackupPoint) -> Manifest:
        begun_s = self._clock.monotonic_s()
        try:
            manifest = await self._write(target, with_master_key, point)
        except BackupRefused as refusal:
            self._log.warning("backup_failed", target=str(target), reason=str(refusal))
            raise
        seconds = round(self._clock.monotonic_s() - begun_s, 3)
        self._log.info("backup_made", target=str(target), bytes=manifest.size, seconds=seconds)
        return manifest

    async def _write(self, target: Path, with_master_key: bool, point: BackupPoint) -> Manifest:
        try:
            folder = point.folder(target)
        except OSError as error:
            raise BackupRefused(f"cannot make {target}: {error.strerror}") from error
        draft = self._draft = await asyncio.to_thread(
            BackupDraft,
            self._data,
            folder,
            with_master_key=with_master_key,
            cluster=point.cluster,
        )
        if self._is_stopping:  # it could not be stopped while it was made
            draft.stop()
        try:
            stores = {number: self._store_of(number) for number in self._shards}
            await asyncio.to_thread(draft.flush, list(stores.values()), _FLUSHES)
            made_at_ms = int(self._clock.wall_s() * 1000)
            named = {number: (self._shards[number].name, store) for number, store in stores.items()}
            last_stamp_ms = await point.copy(draft, named)
            made = await asyncio.to_thread(
                draft.finish,
                {number: folder.name for number, folder in self._shards.items()},
                version=self._version,
                made_at_ms=made_at_ms,
                last_stamp_ms=max(last_stamp_ms, self._clock.now_ms()),
                part=point.part,
            )
            await point.finish()
        except BaseException:
            await point.discard()
            await asyncio.to_thread(draft.discard)
            raise
        else:
            return made
        finally:
            self._draft = None

    async def stop(self) -> None:
        """Abandon the backup under way, and wait until its threads release the stores."""
        self._is_stopping = True
        if self._draft is not None:
            self._draft.stop()
        if self._task is not None:
            await asyncio.wait([self._task])
