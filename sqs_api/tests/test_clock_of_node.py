"""The clocks of a node: a leap of the wall clock counts once, and removes no message."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from cluster.catalog.catalog_records import KeptState
from cluster.clock import SystemClock
from sqs_api.tests.served import serving

DAY_S = 86_400.0


async def test_a_deleted_queue_survives_a_start_with_a_clock_that_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "data", restore_deleted_s=3600) as served:
        for name in ("q", "other"):
            await served.call("CreateQueue", QueueName=name)
            await served.send("a", queue=name)
        await served.call("DeleteQueue", QueueUrl="q")

    ahead = partial(SystemClock, wall=lambda: time.time() + DAY_S)
    monkeypatch.setattr("sqs_api.node.SystemClock", ahead)
    async with serving(tmp_path / "data", restore_deleted_s=3600) as served:
        await served.node.owner.look_at_deletions()

        (kept,) = served.node.owner.catalog.kept
        assert kept.state is KeptState.KEPT


async def test_one_leap_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = 0.0
    leaping = partial(SystemClock, wall=lambda: time.time() + ahead_s)
    monkeypatch.setattr("sqs_api.node.SystemClock", leaping)
    async with serving(tmp_path / "data") as served:
        await served.call("CreateQueue", QueueName="q")
        ahead_s = DAY_S
        await served.send("a")
        await served.node.owner.look_at_deletions()

        assert served.node.worker.measures.clock_leaps == 1
