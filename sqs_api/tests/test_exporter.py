"""The exporter and the jobs of a node: their processes end with it, and their reports are true."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio

from cluster.clock import SystemClock
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.catalogs import opened_catalog
from cluster.tests.virtual_time import CountingEntropy
from cluster.tests.world import state_of
from sqs_api.archiving import exporter as exporter_module
from sqs_api.archiving import job_schedule as schedule_module
from sqs_api.archiving.exporter import WORKER, Exporter, ExportFailed, SealedShard
from sqs_api.archiving.job_schedule import Schedule
from sqs_api.archiving.service import archive_limits
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.settings.config import Settings
from sqs_api.tests.serving import until
from storage.copies.export_task import Export, ExportTask, ShardExport
from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.store_options import Durability, StoreOptions
from storage.lake.lake_permissions import OWNER_ONLY
from storage.tests.on_disk import changing, opener
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import BATCH, row_key
from visibility.rows.row_values import THE_SHARD, ArchiveRow, SealedBatch
from visibility.rows.state_rows import write_archive

_SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
_PATIENCE_S = 120


class Exporting(NamedTuple):
    """An exporter and the shard whose batches it exports."""

    exporter: Exporter
    shard: Shard


@pytest_asyncio.fixture
async def exporting(tmp_path: Path) -> AsyncIterator[Exporting]:
    clock, entropy = SystemClock(), CountingEntropy()
    catalog = await opened_catalog(
        await SqliteCoordination.open(Path(":memory:")),
        clock=clock,
        entropy=entropy,
    )
    store = open_store(tmp_path / "shard", StoreOptions(Durability.MEMORY))
    shard = Shard(
        0,
        ShardParts(
            open_store=opener(store),
            clock=clock,
            entropy=entropy,
            definitions=catalog,
            archive=ArchiveLimits(1 << 30, retains=False),
        ),
    )
    await shard.start()
    settings = Settings(data=tmp_path, lake=str(tmp_path / "lake"))
    disk = DiskSpace(tmp_path, 0)
    exporter = Exporter(
        settings, Router([shard]), catalog, clock, store_of=lambda number: store, disk=disk
    )
    yield Exporting(exporter, shard)
    await shard.stop()
    await catalog.close()


@pytest.fixture
def exporter(exporting: Exporting) -> Exporter:
    return exporting.exporter


def stop_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, module: Any, stop: Callable[[], Any]
) -> list[asyncio.subprocess.Process]:
    """Have a stop begin while a process is being made. Returns the processes that were made."""
    start = asyncio.create_subprocess_exec
    made: list[asyncio.subprocess.Process] = []
    stops: list[asyncio.Future[None]] = []

    async def start_and_stop(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        stops.append(asyncio.ensure_future(stop()))
        await asyncio.sleep(0)
        made.append(await start(*_SLEEPS, **options))
        return made[-1]

    monkeypatch.setattr(module.asyncio, "create_subprocess_exec", start_and_stop)
    return made


async def test_an_export_ends_that_was_just_starting(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stop_while_it_starts(monkeypatch, exporter_module, exporter.stop)

    async with asyncio.timeout(_PATIENCE_S):
        with pytest.raises(ExportFailed):
            await exporter.seal()

    assert [process.returncode for process in made] == [-15]


@pytest.mark.slow  # a whole export
async def test_an_export_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    shard, scratch, key = tmp_path / "shard", tmp_path / "scratch", tmp_path / "key"
    with changing(shard) as changes:
        write_archive(changes, ArchiveRow("source", 2, 2, 0, 2, 0, 0, 0))
        batch = SealedBatch(1, 1, 2, 0, 0)
        changes.put(row_key(THE_SHARD, BATCH, 1), encode_row(batch))
    scratch.mkdir()
    os.mkfifo(key, 0o600)  # every reader waits
    export = Export(str(tmp_path / "lake"), [ShardExport(0, str(shard), "source")], [])
    task = msgspec.json.encode(ExportTask(export, str(tmp_path), None, str(key)))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *WORKER, stdin=pipe, stderr=pipe, env=os.environ | {"TMPDIR": str(scratch)}
    )
    assert process.stdin is not None
    process.stdin.write(task)
    process.stdin.close()

    async with asyncio.timeout(_PATIENCE_S):
        writer = await _writer_of(key)
        assert [*scratch.iterdir()]
        process.terminate()
        await process.communicate()
    os.close(writer)

    assert [*scratch.iterdir()] == []


@pytest.mark.slow  # a whole export
async def test_files_and_folders_of_the_lake_have_the_umask_of_the_settings(
    exporter: Exporter, tmp_path: Path
) -> None:
    exporter._settings = exporter._settings.model_copy(update={"lake_umask": "027"})
    archive_limits(exporter._settings)  # makes the lake

    await exporter._run(takes_snapshot=True)

    lake = tmp_path / "lake"
    folders = [lake, *(path for path in lake.rglob("*") if path.is_dir())]
    files = [path for path in lake.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o750}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o640}


async def _writer_of(fifo: Path) -> int:
    """The end to write to, once there is a reader."""
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            await asyncio.sleep(0.01)


async def test_nothing_is_exported_after_a_stop(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[None] = []
    monkeypatch.setattr(DurableStore, "flush", lambda store: flushes.append(None))
    await exporter.stop()

    with pytest.raises(ExportFailed, match="the service stops"):
        await exporter.seal()

    assert not flushes


async def test_an_acknowledgement_says_how_many_are_gone_though_others_came(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, shard = exporting
    archive = state_of(shard).archive
    archive.batches = {1: SealedBatch(1, 1, 101, 0, 0)}
    archive.next_batch, archive.open_first, archive.next_position = 2, 101, 101
    submit = shard.submit

    def submit_and_hand_over_more(*arguments: Any) -> Any:
        archive.next_position += 150
        return submit(*arguments)

    monkeypatch.setattr(shard, "submit", submit_and_hand_over_more)

    assert await exporter.acknowledge(SealedShard(archive.source, 0, 1)) == 100


async def test_a_job_ends_that_was_just_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule("lake", Path("data"), SystemClock(), is_ours=lambda: True, umask=OWNER_ONLY)
    made = stop_while_it_starts(monkeypatch, schedule_module, schedule.stop)

    async with asyncio.timeout(_PATIENCE_S):
        await schedule.run()

    assert [process.returncode for process in made] == [-15]


async def test_a_job_runs_only_where_it_is_to_and_ends_when_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_module, "JOBS", _SLEEPS)
    made: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def started(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        assert options["env"]["HOLDFAST_LAKE_UMASK"] == "027"
        made.append(await start(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    ours = [False]
    schedule = Schedule(str(tmp_path), tmp_path, SystemClock(), "027", lambda: ours[-1])

    async with asyncio.timeout(_PATIENCE_S):
        await schedule.run()
        ours.append(True)
        running = asyncio.create_task(schedule.run())
        await until(lambda: schedule._process is not None)
        await schedule.look()
        assert [process.returncode for process in made] == [None]
        ours.append(False)
        await schedule.look()
        await running

    assert [process.returncode for process in made] == [-15]
    assert schedule.runs == {}


@pytest.mark.slow
async def test_a_job_that_hangs_ends_with_all_its_processes_and_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child heeds no signal and holds the output open, as a Java that is stuck does."""
    child = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"each = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "time.sleep(600)"
    )
    monkeypatch.setattr(schedule_module, "JOBS", [sys.executable, "-c", parent])
    monkeypatch.setattr(schedule_module, "_RUN_S_MAX", 1.0)
    monkeypatch.setattr(schedule_module, "_END_S", 0.2)
    schedule = Schedule(
        str(tmp_path), tmp_path, SystemClock(), is_ours=lambda: True, umask=OWNER_ONLY
    )

    async with asyncio.timeout(_PATIENCE_S):
        await schedule.run()

    assert schedule.runs == {("archive", "failed"): 1, ("queue-age", "failed"): 1}
