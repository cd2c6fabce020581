"""Archiving: the exporter, scheduled jobs, pages and metrics of a node with a lake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cluster.catalog.catalog import Catalog
from cluster.clock import Clock
from cluster.shards.router import Router
from cluster.shards.shard_report import ArchiveLimits
from sqs_api.archiving.archive_metrics import ArchiveMetrics
from sqs_api.archiving.archive_pages import ArchivePages
from sqs_api.archiving.archived_table import ArchivedTable
from sqs_api.archiving.exporter import EXPORT_CHECK_S, Exporter
from sqs_api.archiving.schedule import Schedule
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.metrics import Metrics
from sqs_api.periodic import Periodic
from sqs_api.settings.config import Settings, WhenFull, seconds_of
from storage.engines.flushed_rows import FlushedRows
from storage.lake.permissions import make_folder, read_umask

_SCHEDULE_CHECK_S = 1.0
"""Interval of finding out that another host runs the jobs now."""


class LakeRefused(Exception):
    """The node cannot use a lake; the text gives the reason in one line."""


def check_lake(settings: Settings) -> None:
    """Raise LakeRefused if the lake cannot be used. Changes nothing."""
    if settings.lake is None:
        return
    packages = ["pyarrow", "deltalake", *([] if settings.archive_every is None else ["pyspark"])]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise LakeRefused(
            f"lake: needs {', '.join(missing)}: `make serve` with --lake installs that; without "
            "make: pip install 'holdfast[spark]'"
        )
    if "://" not in settings.lake and Path(settings.lake).is_file():
        raise LakeRefused(f"lake: {settings.lake} is a file, not a folder")


def archive_limits(settings: Settings) -> ArchiveLimits | None:
    """Limits of a shard's messages for the archive; None without a lake. Raises LakeRefused."""
    check_lake(settings)
    if settings.lake is None:
        return None
    if "://" not in settings.lake:
        with suppress(OSError):  # a lake that is away now may be back later
            folder = Path(settings.lake)
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder, read_umask(settings.lake_umask))
    retains = settings.archive_when_full is WhenFull.RETAIN
    return ArchiveLimits(settings.archive_max_mib << 20, retains)


class Archiving:
    """Belongs to the event loop's thread."""

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
        """The settings name a lake; `store_of` gives the store that a shard uses now."""
        self._settings = settings
        self._router = router
        self._clock = clock
        self._exporter = Exporter(settings, router, catalog, clock, store_of=store_of, disk=disk)
        self._schedule: Schedule | None = None

    def begin(self, metrics: Metrics, periodic: Periodic) -> None:
        """Start periodic work. The node's note must be in its data folder, since jobs read it."""
        every, lake = self._settings.archive_every, self._settings.lake
        periodic.every(EXPORT_CHECK_S, self._exporter.look)
        if every is not None and lake is not None:
            schedule = self._schedule = Schedule(
                lake, self._settings.data, self._clock, self._settings.lake_umask
            )
            periodic.every(seconds_of(every), schedule.run)
            if self._settings.etcd is not None:
                # Of all hosts, the one that leads the first shard runs the jobs.
                schedule.is_ours = partial(self._router.leads, 0)
                periodic.every(_SCHEDULE_CHECK_S, schedule.look)
        now_ms = self._clock.now_ms
        metrics.attach(ArchiveMetrics(self._exporter, self._router, self._schedule, now_ms))

    def pages(self) -> ArchivePages:
        """The part that answers about the archive."""
        lake = self._settings.lake or ""
        return ArchivePages(self._exporter, self._router, lake, ArchivedTable(lake))

    async def stop(self) -> None:
        """End the processes that work for the node."""
        await self._exporter.stop()
        if self._schedule is not None:
            await self._schedule.stop()
