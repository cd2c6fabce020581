"""Distribution of test files to processes: one Spark for all files that need it, long files first,
two processes for files that compute while those of the others wait, and the number of processes.
The simulators come last and take what the others leave, each of their tests where there is room.

Where there are files of both kinds, only those two collect all: to collect ten thousand tests takes
ten seconds of processor time in each process. Before the first test xdist shows how many the first
process collected, the shares of tests that ran are of all.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest
from pytest_rerunfailures import StatusDB
from typing_extensions import override
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

NOT_SHARING = ("spark_jobs/tests/test_processes.py", "spark_jobs/tests/test_replay_kills.py")
"""Files of the jobs that do not use the one Spark: they start processes and wait for them."""
_WAITING = ("spark_jobs", "compat_tests")
_BEHIND = 19
"""Niceness of simulators, whose time is their own: no time-out of another test passes meanwhile."""
FIRST = (
    "compat_tests/test_faults.py",
    NOT_SHARING[0],
    "spark_jobs/",
    "compat_tests/test_policies.py",
    "compat_tests/test_console_jobs.py",
    "compat_tests/test_fleet_plan.py",
    "compat_tests/test_workers.py",
    "compat_tests/test_archive.py",
    "compat_tests/test_fleet.py",
    "compat_tests/test_queue_parts.py",
    "compat_tests/test_console_security.py",
    "compat_tests/test_console_archive.py",
    "compat_tests/test_cluster.py",
    "compat_tests/test_jobs.py",
    "compat_tests/test_console_sessions.py",
    "compat_tests/test_backup_of_fleet.py",
    "compat_tests/test_backup_of_cluster.py",
    "compat_tests/test_removed_cluster.py",
    "compat_tests/test_abandoned_cluster.py",
    "compat_tests/test_emptied_cluster.py",
    "compat_tests/test_workers_of_cluster.py",
    "compat_tests/test_transactions_of_shards.py",
    "compat_tests/test_fifo_moves.py",
    "compat_tests/test_hosts_over_older_etcd.py",
    "compat_tests/test_transactions.py",
    "compat_tests/test_transcripts.py",
    "compat_tests/",
    "cluster/tests/replication/test_replication.py",
    "cluster/tests/test_standard_model.py",
    "cluster/tests/test_fifo_model.py",
    "cluster/tests/test_fair_model.py",
    "cluster/tests/peers/test_peer_faults.py",
    "sqs_api/tests/test_deletion_crashes.py",
)
"""A file that takes minutes would hold up the end, when nothing else is left to run."""
SIMULATORS = (
    "cluster/tests/test_cluster_simulation.py",
    "cluster/tests/test_fleet_simulation.py",
    "cluster/tests/test_gateway_simulation.py",
    "cluster/tests/test_simulation.py",
)
"""Files whose tests have a clock of their own, take seconds each and share nothing."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Repeat failed tests (`--reruns`) without asking the controller before each test.

    That is two short messages over TCP, of which the second waits 40 ms for the acknowledgement of
    the first. They count tests that ended their process, which `loadfile` never repeats.
    """
    asked = getattr(config, "failures_db", None)
    if hasattr(config, "workerinput") and asked is not None:
        asked.sock.close()
        config.failures_db = StatusDB()  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let simulators go behind tests that wait."""
    given = getattr(item.config, "workerinput", None)
    if given is None or not item.nodeid.startswith(SIMULATORS) or not _waits(item.config):
        return
    if _computes(given["workerid"], given["workercount"]) and os.nice(0) < _BEHIND:
        os.nice(_BEHIND)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collect those that wait only, in most processes of a run of all; and import a share of the
    test files before all others.

    Each process imports all that it collects, and pytest compiles those of a fresh checkout, with
    their assertions, for its cache: 25 s of processor time. In one order every process would do so
    for the same file at the same time; so each finds what the others have compiled.
    """
    config = session.config
    given = getattr(config, "workerinput", None)
    if given is None:
        return
    number, count = _number(given["workerid"]), given["workercount"]
    names = config.args
    is_mixed = len({*map(_is_waiting, names)}) > 1
    if is_mixed and {*names} <= {*config.getini("testpaths")}:
        first = next(each for each in range(count) if _computes(f"gw{each}", count))
        if number < first:
            names = config.args = [*filter(_is_waiting, names)]
            count = first
        else:
            names = [*filterfalse(_is_waiting, names)]
            number, count = number - first, count - first
    files = sorted(_test_files(config, names))
    for file in files[number::count]:
        name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        # One that cannot be imported, or asks to be skipped, says so when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def _test_files(config: pytest.Config, names: list[str]) -> Iterator[Path]:
    ignored = {config.invocation_params.dir / each for each in config.getoption("ignore") or ()}
    for given in names:
        path = config.invocation_params.dir / given.partition("::")[0]
        found = path.rglob("test_*.py") if path.is_dir() else [path]
        yield from (file for file in found if file not in ignored)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are processors, as each collects all tests; five more for those that wait
    for other processes and time-outs most of their time."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (usable or 1) + (5 if _waits(config) else 0)


def _waits(config: pytest.Config) -> bool:
    return any(map(_is_waiting, config.args))


def _is_waiting(name: str) -> bool:
    return name.startswith(_WAITING)


def _number(process: str) -> int:
    return int(process.removeprefix("gw"))


def _computes(process: str, count: int) -> bool:
    """Two of many: one alone would begin with its second long file when the others are done."""
    return _number(process) >= count - (2 if count > 3 else 1)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadfile`, without its order by the number of tests."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return ByKind(config, log)


class ByKind(LoadFileScheduling):  # type: ignore[misc]  # xdist's scheduler has no types
    """Gives processes that compute such files as long as there are some, and the others such that
    wait: the processors are busy from the begin to the end."""

    registered_collections: dict[WorkerController, list[str]]

    @override
    def schedule(self) -> None:
        """Begin with the processes that collected all: the first one's tests are those of the run,
        and where there are few files, the last ones get none."""
        if self.collection is None:
            collected = self.registered_collections
            for node in sorted(self.nodes, key=lambda node: len(collected[node]), reverse=True):
                self.assigned_work[node] = self.assigned_work.pop(node)
                collected[node] = collected.pop(node)
            session = self.config.pluginmanager.get_plugin("session")
            session.testscollected = max(map(len, collected.values()))
        super().schedule()

    @override
    def _check_nodes_have_same_collection(self) -> bool:
        collected = self.registered_collections
        everything = next(iter(collected.values()))
        waiting = [test for test in everything if _is_waiting(test)]
        self.registered_collections = {
            node: everything if tests == waiting else tests for node, tests in collected.items()
        }
        try:
            return bool(super()._check_nodes_have_same_collection())
        finally:
            self.registered_collections = collected

    @override
    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = _computes(node.gateway.id, self.numnodes)
        own = (name for name in self.workqueue if _is_waiting(name) is not computes)
        if (name := next(own, None)) is not None:
            self.workqueue.move_to_end(name, last=False)
        elif len(self.registered_collections[node]) < len(self.collection):
            node.shutdown()  # it did not collect the others
            return
        super()._assign_work_unit(node)

    @override
    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more when one test is left, which it begins once it knows of another;
        xdist does so two tests before. Those may take minutes while other processes are idle."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    @override
    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget a file that is done: xdist counts, after each test, all that a process was given
        so far."""
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        file = self._split_scope(self.registered_collections[node][item_index])
        if all(given[file].values()):
            del given[file]

    @override
    def _split_scope(self, nodeid: str) -> str:
        return runs_together(nodeid)


def runs_together(nodeid: str) -> str:
    """The name of the tests that run in one process with this one."""
    if nodeid.startswith(SIMULATORS):
        return nodeid
    file = nodeid.partition("::")[0]
    shares_spark = file.startswith("spark_jobs/") and file not in NOT_SHARING
    return "spark_jobs/" if shares_spark else file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and end with those that are cut into tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


def rank(nodeid: str) -> int:
    """The place of a test's file among those that begin first and last."""
    if nodeid.startswith(SIMULATORS):
        return len(FIRST) + 1
    ranks = (place for place, beginning in enumerate(FIRST) if nodeid.startswith(beginning))
    return next(ranks, len(FIRST))
