"""Exporter: brings messages that left their queues, and snapshots of waiting ones, to the lake.

The shard decides (`visibility/rules/archive_batches.py`): it seals batches and forgets those that
are archived. A separate process then writes the batches from disk to the lake, so that no request
waits for it. One runs at a time; a failed one is repeated.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.clock import Clock
from cluster.shards.router import Router
from cluster.shards.shard_report import ShardReport
from cluster.tasks import start_task
from sqs_api.archiving.queue_counters import Flows
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.settings.cluster_records import settings_of_member
from sqs_api.settings.config import Bodies, Settings
from storage.copies.export_task import (
    Export,
    Exported,
    ExportTask,
    QueuePlace,
    ShardExport,
    readable_keys,
)
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import StoreFailed
from storage.lake.lake_permissions import read_umask
from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.rules.archive_batches import AcknowledgeArchive, SealArchive, the_shard

EXPORT_CHECK_S = 1.0
BATCH_BYTES = 64 << 20
"""Size on disk at which waiting messages become a batch; they always do after `archive_seal_s`."""
_SNAPSHOT_SHARE = 10
"""A snapshot may take a tenth of the time at most: after a long one the next starts later."""
_AGAIN_S = (1.0, 60.0)
"""Delays before a failed export is tried again, the first and the longest."""
_RESERVES = 2.0
"""Stop exporting below this multiple of the disk reserve."""
_FILLING = 0.5
"""Part of its limit from which the backlog of the archive is reported as a warning."""
_END_S = 3.0
"""Time for the writing process to remove its leftovers at a stop."""
_OPERATOR = Caller("", "", "operator")
WORKER = [sys.executable, "-EP", "-m", "sqs_api", "lake-export"]


class ExportFailed(Exception):
    """The process that writes to the lake failed; the text gives the reason in one line."""


@dataclass(frozen=True)
class SealedShard:
    """A shard's source, and the batch up to which all of its batches are in the lake."""

    source: str
    shard: int
    batch: int


class Exporter:
    """The exporter of this host's shards."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        catalog: Catalog,
        clock: Clock,
        *,
        store_of: Callable[[int], FlushedRows],
        disk: DiskSpace,
    ) -> None:
        """`store_of` gives the store that a shard uses now. The settings name a lake."""
        self._settings = settings
        self._router = router
        self._clock = clock
        self._store_of = store_of
        self._disk = disk
        self._catalog = catalog
        self._flows = Flows(catalog, router, clock)
        if settings.snapshot_every_s:
            catalog.subscribe(self._flows.note)
        self._log = structlog.get_logger("hand_over")
        self._running = asyncio.Lock()
        self._worker: asyncio.subprocess.Process | None = None
        self._tasks: set[asyncio.Task[list[SealedShard]]] = set()
        self._is_stopping = False
        self._is_filling = False
        self._snapshot_due_s = clock.monotonic_s()
        self._again_s = 0.0
        """Time of the next attempt after a failed export."""
        self._wait_s = 0.0
        self.in_lake: dict[int, int] = {}
        """By shard: the batch up to which all are known to be in the lake."""
        self.segments = 0
        self.damaged = 0
        self.failures = 0
        self.succeeded_at_s = 0.0
        """Wall clock of the latest write to the lake, or check that found it up to date; 0 for
        never."""
        self.queue_ages: list[dict[str, Any]] = []
        """Latest result of the queue-age job, for the queues with the oldest messages."""

    # -- again and again ---------------------------------------------------------------------------

    async def look(self) -> None:
        """Run the steps that are due."""
        self._make_room()
        self._warn()
        now_s = self._clock.monotonic_s()
        if self._running.locked() or now_s < self._again_s:
            return
        takes_snapshot = bool(self._settings.snapshot_every_s) and now_s >= self._snapshot_due_s
        if not takes_snapshot and not any(map(self._is_due, self._router.reports())):
            return
        with suppress(ExportFailed):  # logged, and tried again
            await self._run(takes_snapshot=takes_snapshot)

    def _is_due(self, shard: ShardReport) -> bool:
        archive = shard.archive
        if not shard.ready:
            return False
        if self._is_behind(shard):
            return True
        if not archive.has_open:
            return False
        waited_ms = self._clock.now_ms() - archive.open_since_ms
        return archive.open_size >= BATCH_BYTES or waited_ms >= self._settings.archive_seal_s * 1000

    def _is_behind(self, shard: ShardReport) -> bool:
        """True if some sealed batches are not known to be in the lake."""
        archive = shard.archive
        return bool(archive.waiting_batches) and archive.sealed > self.in_lake.get(shard.number, 0)

    def _make_room(self) -> None:
        """Stop archiving on a nearly full disk; sends are refused only at half of that free
        space."""
        limit = self._settings.archive_max_mib << 20
        for shard in self._router.shards.values():
            shard.limit_archive(0 if self._disk.is_shorter_than(_RESERVES) else limit)

    def _warn(self) -> None:
        shards = self._router.reports()
        limit = self._settings.archive_max_mib << 20
        filling = any(shard.archive.size >= limit * _FILLING for shard in shards)
        if filling and not self._is_filling:
            waiting = sum(shard.archive.size for shard in shards)
            self._log.warning("archive_filling", bytes=waiting, lake=self._settings.lake)
        self._is_filling = filling

    # -- requests of jobs --------------------------------------------------------------------------

    async def seal(self) -> list[SealedShard]:
        """Bring all waiting messages to the lake now, even if the caller is cancelled meanwhile.

        Raises ExportFailed.
        """
        task = start_task(self._tasks, self._seal())
        return await asyncio.shield(task)

    async def _seal(self) -> list[SealedShard]:
        await self._run(takes_snapshot=False)
        if any(shard.archive.has_open for shard in self._router.reports()):
            await self._run(takes_snapshot=False)  # older batches went first
        return [
            SealedShard(shard.archive.source, shard.number, self.in_lake.get(shard.number, 0))
            for shard in self._router.reports()
        ]

    async def acknowledge(self, place: SealedShard) -> int:
        """The archive has these batches for good: forget their messages, and return how many.

        Raises QueueError.
        """
        shard = self._router.shards[place.shard]
        before = shard.report().archive.first_position
        operation = AcknowledgeArchive(source=place.source, batch=place.batch)
        await self._ask(place.shard, operation)
        return shard.report().archive.first_position - before

    async def _ask(self, shard: int, operation: SealArchive | AcknowledgeArchive) -> None:
        request = Request(operation, the_shard(shard), _OPERATOR, "hand-over")
        await self._router.ask_here(request)

    # -- the export --------------------------------------------------------------------------------

    async def _run(self, *, takes_snapshot: bool) -> None:
        async with self._running:
            begun_s = self._clock.monotonic_s()
            try:
                done = await self._export(takes_snapshot=takes_snapshot)
            except (ExportFailed, QueueError, StoreFailed, OSError, msgspec.MsgspecError) as error:
                self._failed(str(error))
                raise ExportFailed(str(error)) from error
            finally:
                if takes_snapshot:  # one that fails does not keep what waits from the lake
                    took_s = self._clock.monotonic_s() - begun_s
                    pause_s = max(self._settings.snapshot_every_s, took_s * _SNAPSHOT_SHARE)
                    self._snapshot_due_s = begun_s + pause_s
            self._note(done)

    async def _export(self, *, takes_snapshot: bool) -> Exported:
        if self._is_stopping:
            raise ExportFailed("the service stops")
        shards = [report for report in self._router.reports() if report.ready]
        for shard in shards:
            if not self._is_behind(shard) or shard.archive.open_size >= BATCH_BYTES:
                await self._ask(shard.number, SealArchive())
        stores = {shard.number: self._store_of(shard.number) for shard in shards}
        for store in stores.values():
            # Makes the sealed batches survive a power failure before the lake has them.
            await asyncio.to_thread(store.flush)
        wanted = Export(
            self._settings.lake or "",
            [
                ShardExport(shard.number, str(stores[shard.number].folder), shard.archive.source)
                for shard in self._router.reports()
                if shard.number in stores
            ],
            readable_keys(
                self._settings.archive_bodies is Bodies.READABLE, self._settings.archive_keys
            ),
            queue_ages_max=self._settings.metrics_queues_max,
            account=self._settings.account,
            umask=read_umask(self._settings.lake_umask),
        )
        if takes_snapshot:
            await self._add_snapshot(wanted)
        done = await self._work(wanted)
        if takes_snapshot:
            self._flows.written()
        return done

    async def _add_snapshot(self, wanted: Export) -> None:
        wanted.snapshot_at_ms = wanted.until_ms = self._clock.now_ms()
        for export in wanted.shards:
            shard = self._router.shards[export.number]
            export.flows = await self._flows.read(shard, wanted.until_ms)
        wanted.queues = {
            queue.queue_id: QueuePlace(queue.account, queue.region, queue.name, queue.settings.fifo)
            for queue in self._catalog
        }

    async def _work(self, wanted: Export) -> Exported:
        """Have the other process do the export."""
        settings = self._settings
        key = settings.master_key.get_secret_value() if settings.master_key is not None else None
        file = str(settings.master_key_file) if settings.master_key_file is not None else None
        task = ExportTask(wanted, str(settings.data), key, file, settings_of_member(settings))
        pipe = asyncio.subprocess.PIPE
        self._worker = worker = await asyncio.create_subprocess_exec(
            *WORKER, stdin=pipe, stdout=pipe, stderr=pipe
        )
        if self._is_stopping:  # since before there was a process to end
            self._end_worker()
        output, errors = await worker.communicate(msgspec.json.encode(task))
        if worker.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it was ended"]
            raise ExportFailed(lines[-1].removeprefix("holdfast: "))
        return msgspec.json.decode(output, type=Exported)

    def _note(self, done: Exported) -> None:
        for shard in done.shards:
            if shard.batch:
                self.in_lake[shard.number] = shard.batch
            self.segments += shard.segments
            self.damaged += shard.missing
            for text in shard.damaged:
                self._log.error("archived_message_damaged", shard=shard.number, error=text)
            if shard.segments:
                self._log.info(
                    "segments_written",
                    shard=shard.number,
                    segments=shard.segments,
                    messages=shard.messages,
                )
        self.queue_ages = done.queue_ages
        self.succeeded_at_s = self._clock.wall_s()
        if self._wait_s:
            self._log.warning("lake_is_back", lake=self._settings.lake)
        self._again_s = self._wait_s = 0.0

    def _failed(self, reason: str) -> None:
        if self._is_stopping:
            return
        self.failures += 1
        first_s, last_s = _AGAIN_S
        self._wait_s = min(last_s, self._wait_s * 2 or first_s)
        self._again_s = self._clock.monotonic_s() + self._wait_s
        self._log.error(
            "export_failed", lake=self._settings.lake, reason=reason, again_in_s=self._wait_s
        )

    async def stop(self) -> None:
        """End the running export; the next start resumes its work."""
        self._is_stopping = True
        self._end_worker()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended(), _END_S)
        self._end_worker(signal.SIGKILL)
        await self._ended()

    async def _ended(self) -> None:
        async with self._running:
            pass

    def _end_worker(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._worker is not None and self._worker.returncode is None:
            with suppress(ProcessLookupError):
                self._worker.send_signal(number)
