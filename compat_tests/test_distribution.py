"""The order of test files names files that exist, and keeps those of one Spark together; each
process repeats its failed tests itself."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_rerunfailures import StatusDB

from compat_tests.distribution import (
    _FIRST,
    _OWN_SPARK,
    _rank,
    _runs_together,
    pytest_configure,
    pytest_xdist_auto_num_workers,
)

CHECKOUT = Path(__file__).parent.parent


def test_named_files_exist() -> None:
    assert [name for name in (*_FIRST, *_OWN_SPARK) if not (CHECKOUT / name).exists()] == []


def test_files_that_share_a_spark_run_in_one_process() -> None:
    files = [f"spark_jobs/tests/test_{name}.py::test" for name in ("ages", "archive", "processes")]

    assert [_runs_together(file) for file in files] == ["spark_jobs/", "spark_jobs/", _OWN_SPARK[0]]


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (["auth", "visibility", "storage", "cluster", "sqs_api"], 0),
        (["auth", "spark_jobs", "compat_tests"], 2),
        (["compat_tests/test_send.py"], 2),
    ],
)
def test_tests_that_wait_for_others_get_more_processes(
    names: list[str], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    config: Any = SimpleNamespace(args=names)

    assert pytest_xdist_auto_num_workers(config) == 3 + more


def test_long_files_come_first() -> None:
    files = [
        "auth/tests/test_sigv4.py",
        "cluster/tests/test_cluster_simulation.py",
        "compat_tests/test_send.py",
        "compat_tests/test_faults.py",
    ]

    assert sorted(files, key=_rank) == files[::-1]


def configured(**fields: Any) -> Any:
    config: Any = SimpleNamespace(failures_db=SimpleNamespace(sock=socket.socket()), **fields)
    pytest_configure(config)
    return config


def test_a_process_asks_nobody_how_often_a_test_failed() -> None:
    asked = configured(workerinput={}).failures_db

    assert type(asked) is StatusDB
    assert asked.get_test_failures("a test") == 0


def test_the_controller_still_hears_of_processes() -> None:
    config = configured()

    assert config.failures_db.sock.fileno() > 0
    config.failures_db.sock.close()
