"""A count over tasks moves while they run."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_jobs.lib import live_count
from spark_jobs.lib.live_count import DATAGRAM, LiveCount
from spark_jobs.lib.progress import Progress, Work

_PATIENCE_S = 60.0


def test_a_count_moves_within_a_task_and_is_exact_at_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen, patience_s = tmp_path / "seen", _PATIENCE_S

    def task(number: int) -> bool:
        add(7 + number)
        until_s = time.monotonic() + patience_s
        while not seen.exists() and time.monotonic() < until_s:
            add(0)
            time.sleep(0.05)
        return seen.exists()

    with LiveCount(spark) as counted:
        add = counted.add

        def done() -> Work:
            if counted.value == 7 + 8:
                seen.touch()
            return Work(0, counted.value, 0)

        with Progress("job", Work(0, 15, 0), done) as progress:
            running = spark.sparkContext.parallelize(range(2), 2).map(task)
            lines = Lines(progress, seen)
            assert running.collect() == [True, True]

        assert counted.value == 15
    assert any("15 of 15 rows" in line for line in lines.read())


class Lines:
    """Progress lines, made all the time in a thread until a file is there."""

    def __init__(self, progress: Progress, until: Path) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._make, args=(progress, until), daemon=True)
        self._thread.start()

    def _make(self, progress: Progress, until: Path) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not until.exists() and time.monotonic() < deadline_s:
            self._lines.append(progress.line())
            time.sleep(0.05)

    def read(self) -> list[str]:
        self._thread.join()
        return self._lines


def test_a_task_that_fails_and_is_tried_again_counts_once(spark: SparkSession) -> None:
    def task(number: int) -> None:
        add(3)
        context = TaskContext.get()
        assert context is not None
        if number == 0 and context.attemptNumber() == 0:
            raise OSError("the first attempt fails")

    with LiveCount(spark) as counted:
        add = counted.add
        spark.sparkContext.parallelize(range(2), 2).foreach(task)

        assert counted.value == 6


def test_a_later_attempt_replaces_an_earlier_one_and_others_are_not_heard(
    spark: SparkSession,
) -> None:
    with LiveCount(spark) as counted:
        assert counted._socket is not None
        place = counted._socket.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for attempt, count in ((1, 50), (1, 40), (2, 10), (1, 60)):
                sender.sendto(DATAGRAM.pack(counted._token, 0, 0, attempt, count), place)
            sender.sendto(DATAGRAM.pack(b"x" * 16, 0, 1, 1, 1000), place)
            sender.sendto(counted._token, place)
            sender.sendto(DATAGRAM.pack(counted._token, 0, 2, 1, 1000) + b"x", place)
            sender.sendto(DATAGRAM.pack(counted._token, 0, 3, 1, 1), place)

        assert counted.value == 11
        assert place[0] == "127.0.0.1"


def test_without_an_address_the_count_moves_at_the_end_of_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_count, "_listening", lambda host: None)

    with LiveCount(spark) as counted:
        add = counted.add
        spark.sparkContext.parallelize(range(3), 2).foreach(lambda number: add(number))

        assert counted.value == 3
