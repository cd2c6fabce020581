"""Archiving: the exporter, scheduled jobs, pages and metrics of the archive."""

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
from sqs_api.archiving.archive_pages import ArchivePages, AtHosts
from sqs_api.archiving.exporter import EXPORT_CHECK_S, Exporter
from sqs_api.archiving.job_schedule import Schedule
from sqs_api.archiving.lake_questions import ArchivedTable
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.parts import Feature
from sqs_api.periodic import Every
from sqs_api.settings.cluster_settings import ProcessRole
from sqs_api.settings.config import Settings, WhenFull, seconds_of
from storage.engines.flushed_rows import FlushedRows
from storage.lake.lake_permissions import make_folder, read_umask

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
            "make, in a checkout: pip install '.[spark]'"
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


def _always() -> bool:
    return True


class Archiving:
    """`start` it, then `stop`."""

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
        """`store_of` gives the store that a shard uses now. Without a lake nothing is archived."""
        self._exporter: Exporter | None = None
        self._schedule: Schedule | None = None
        self.feature = Feature()
        """Begins once the node's note is in its data folder, since jobs read it."""
        if settings.role is ProcessRole.GATEWAY:
            self.feature = Feature(parts={ArchivePages: AtHosts()})
            return
        every, lake = settings.archive_every, settings.lake
        if lake is None:
            return
        exporter = Exporter(settings, router, catalog, clock, store_of=store_of, disk=disk)
        self._exporter = exporter
        periodic = [Every(EXPORT_CHECK_S, exporter.look)]
        if every is not None:
            # Of several hosts or workers, the one that leads the first shard runs the jobs.
            is_ours = _always if settings.is_alone else partial(router.leads, 0)
            schedule = Schedule(lake, settings.data, clock, settings.lake_umask, is_ours)
            periodic.append(Every(seconds_of(every), schedule.run))
            periodic.append(Every(_SCHEDULE_CHECK_S, schedule.look))
            self._schedule = schedule
        self.feature = Feature(
            parts={ArchivePages: ArchivePages(exporter, router, lake, ArchivedTable(lake))},
            metrics=(ArchiveMetrics(exporter, router, self._schedule, clock.now_ms),),
            periodic=periodic,
        )

    async def stop(self) -> None:
        """End the processes that work for the node."""
        if self._exporter is not None:
            await self._exporter.stop()
        if self._schedule is not None:
            await self._schedule.stop()
