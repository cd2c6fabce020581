"""The order of test files names files that exist, and keeps those of one Spark together; one
process computes while the others wait, which collect only what they may run; each repeats its
failed tests itself."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_rerunfailures import StatusDB

from compat_tests.distribution import (
    FIRST,
    NOT_SHARING,
    SIMULATORS,
    ByKind,
    pytest_collection,
    pytest_configure,
    pytest_runtest_setup,
    pytest_xdist_auto_num_workers,
    rank,
    runs_together,
)

CHECKOUT = Path(__file__).parent.parent


def test_named_files_exist() -> None:
    named = (*FIRST, *NOT_SHARING, *SIMULATORS)
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_files_that_share_a_spark_run_in_one_process() -> None:
    files = [f"spark_jobs/tests/test_{name}.py::test" for name in ("ages", "archive", "processes")]

    assert [runs_together(file) for file in files] == ["spark_jobs/", "spark_jobs/", NOT_SHARING[0]]


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (["auth", "visibility", "storage", "cluster", "sqs_api"], 0),
        (["auth", "spark_jobs", "compat_tests"], 5),
        (["compat_tests/test_send.py"], 5),
    ],
)
def test_tests_that_wait_for_others_get_more_processes(
    names: list[str], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    config: Any = SimpleNamespace(args=names)

    assert pytest_xdist_auto_num_workers(config) == 3 + more


def test_a_simulators_tests_run_where_there_is_room() -> None:
    tests = [f"{SIMULATORS[0]}::test[{number}]" for number in range(2)]

    assert [runs_together(test) for test in tests] == tests


def test_long_files_come_first_and_simulators_last() -> None:
    files = [
        "cluster/tests/test_cluster_simulation.py",
        "auth/tests/test_sigv4.py",
        "cluster/tests/test_standard_model.py",
        "compat_tests/test_send.py",
        "compat_tests/test_faults.py",
    ]

    assert sorted(files, key=rank) == files[::-1]


def collecting(folder: Path, number: int, count: int, names: list[str]) -> list[str]:
    """The names that a process collects."""
    config: Any = SimpleNamespace(
        workerinput={"workerid": f"gw{number}", "workercount": count},
        rootpath=folder,
        invocation_params=SimpleNamespace(dir=folder),
        args=names,
        getoption=lambda _: ["room/test_ignored.py"],
        getini=lambda _: ["room", "compat_tests"],
    )
    pytest_collection(SimpleNamespace(config=config))  # type: ignore[arg-type]
    found: list[str] = config.args
    return found


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were imported, of files in a folder of each kind."""
    for folder in ("room", "compat_tests"):
        (tmp_path / folder).mkdir()
        for name in ("test_a", "test_b", "test_c", "test_ignored", "helper"):
            (tmp_path / folder / f"{name}.py").touch()
    (tmp_path / "compat_tests" / "test_ignored.py").unlink()
    found: list[str] = []

    def note(name: str) -> None:
        found.append(name)
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", note)
    return found


def test_each_process_imports_a_share_of_the_files_first(
    tmp_path: Path, imported: list[str]
) -> None:
    for number in (0, 1):
        assert collecting(tmp_path, number, 2, ["room"]) == ["room"]

    assert imported == ["room.test_a", "room.test_c", "room.test_b"]


def test_processes_that_wait_collect_and_import_no_others(
    tmp_path: Path, imported: list[str]
) -> None:
    both = ["room", "compat_tests"]
    collected = [collecting(tmp_path, number, 4, both) for number in range(4)]

    assert collected == [["compat_tests"]] * 2 + [both] * 2
    assert imported == [
        *("compat_tests.test_a", "compat_tests.test_c", "compat_tests.test_b"),
        *("room.test_a", "room.test_c", "room.test_b"),
    ]


def test_a_run_of_named_files_is_collected_by_every_process(
    tmp_path: Path, imported: list[str]
) -> None:
    names = ["room/test_a.py", "compat_tests/test_b.py"]
    assert [collecting(tmp_path, number, 4, names) for number in range(4)] == [names] * 4
    assert len(imported) == 2


class Process:
    """A process of tests, as the scheduler has it."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.asked: list[int] = []
        self.done = 0
        self.send_runtest_some = self.asked.extend

    def shutdown(self) -> None:
        """Nothing follows."""
        self.shutting_down = True


def distributed(tests: list[str], *collected: list[str]) -> list[list[str]]:
    """The files that each process runs, in its order; the last one computes."""
    session = SimpleNamespace(testscollected=0)
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(collected),
        option=SimpleNamespace(loadscopereorder=False),
        pluginmanager=SimpleNamespace(get_plugin=lambda _: session),
    )
    scheduling = ByKind(config)
    processes: list[Any] = [Process(number) for number in range(len(collected))]
    for process, own in zip(processes, collected, strict=True):
        scheduling.add_node(process)
        scheduling.add_node_collection(process, own)
    scheduling.schedule()
    for _ in range(len(tests)):
        for process in processes:
            for test in process.asked[process.done : process.done + 1]:
                scheduling.mark_test_complete(process, test)
                process.done += 1
    assert all(process.shutting_down for process in processes)
    assert session.testscollected == len(tests)
    assert not any(scheduling.assigned_work.values()), "what is done is forgotten"
    return [
        list(dict.fromkeys(own[at].split("::")[0] for at in process.asked))
        for process, own in zip(processes, collected, strict=True)
    ]


def names_of(*files: str) -> list[str]:
    return [f"{file}::test_{number}" for file in files for number in range(4)]


WAITING = [f"compat_tests/test_{name}.py" for name in "abcdef"]
COMPUTING = [f"storage/tests/test_{name}.py" for name in "gh"]


def test_the_last_process_computes_while_the_others_wait() -> None:
    tests = names_of(*WAITING, *COMPUTING)

    first, last = distributed(tests, tests, tests)

    assert last[:2] == COMPUTING
    assert first[0] == WAITING[0]
    assert sorted(first + last) == WAITING + COMPUTING
    assert len(last) > 2, "it helps the others then"


def test_a_process_gets_only_files_that_it_collected() -> None:
    more = [f"storage/tests/test_{name}.py" for name in "ghijklmn"]
    tests = names_of(*more, *WAITING[:2])

    first, last = distributed(tests, names_of(*WAITING[:2]), tests)

    assert first == WAITING[:2]
    assert last == more


def test_one_file_goes_to_a_process_that_collected_it() -> None:
    tests = names_of(COMPUTING[0])

    assert distributed(tests, [], tests) == [[], [COMPUTING[0]]]


def test_a_process_is_not_given_more_while_it_has_two_tests_left() -> None:
    long, *short = WAITING[:5]
    tests = [*names_of(long), *(f"{file}::test" for file in short)]

    assert distributed(tests, tests, tests) == [[long], short]


def configured(**fields: Any) -> Any:
    config: Any = SimpleNamespace(failures_db=SimpleNamespace(sock=socket.socket()), **fields)
    pytest_configure(config)
    return config


@pytest.mark.parametrize(
    ("name", "process", "count", "names", "niceness"),
    [
        (SIMULATORS[0], "gw6", 7, ["compat_tests"], 19),
        (SIMULATORS[0], "gw5", 7, ["compat_tests"], 19),
        (SIMULATORS[0], "gw4", 7, ["compat_tests"], 0),
        (SIMULATORS[0], "gw1", 2, ["auth", "compat_tests"], 19),
        (SIMULATORS[0], "gw1", 2, ["auth"], 0),
        ("cluster/tests/test_catalog_redrive.py", "gw6", 7, ["compat_tests"], 0),
    ],
)
def test_simulators_go_behind_tests_that_wait(
    name: str,
    process: str,
    count: int,
    names: list[str],
    niceness: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"workerid": process, "workercount": count}
    config = SimpleNamespace(workerinput=given, args=names)
    item: Any = SimpleNamespace(nodeid=f"{name}::test", config=config)
    found = [0]

    def nice(more: int) -> int:
        found[0] += more
        return found[0]

    monkeypatch.setattr("os.nice", nice)
    for _ in range(2):
        pytest_runtest_setup(item)

    assert found == [niceness]


def test_a_process_asks_nobody_how_often_a_test_failed() -> None:
    given = {"workerid": "gw0", "workercount": 2}
    asked = configured(workerinput=given, args=["compat_tests"]).failures_db

    assert type(asked) is StatusDB
    assert asked.get_test_failures("a test") == 0


def test_the_controller_still_hears_of_processes() -> None:
    config = configured()

    assert config.failures_db.sock.fileno() > 0
    config.failures_db.sock.close()
