"""Jobs in separate processes, as users start them, and a Spark cluster on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from compat_tests.node_process import QUICK_JAVA
from spark_jobs.lib.spark import set_java_home

QUICK_SPARK = (
    f"{QUICK_JAVA} -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
"""Java's options. Few rows: to compile each plan takes longer than to interpret it. The jobs of
compat_tests/test_jobs.py compile theirs."""
_WAIT_S = 300.0
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def environment() -> dict[str, str]:
    """This environment without the user's settings; Spark stays on loopback and starts quickly."""
    dropped = ("AWS_", "SPARK_CONF_DIR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {
        "AWS_EC2_METADATA_DISABLED": "true",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_SPARK,
    }


def job(*arguments: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a job, as the leader of its own process group, which includes its Java."""
    return subprocess.Popen(
        [sys.executable, "-EP", "-m", "spark_jobs", *arguments],
        env=environment() | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a job; returns its exit status, standard output and standard error."""
    try:
        output, error = process.communicate(timeout=_WAIT_S)
    finally:
        kill(process)
    return process.returncode, output, error


def kill(process: subprocess.Popen[str]) -> None:
    """End the process and its group at once, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """End the process at once when it has come to this point."""
    wait(lambda: reached() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    kill(process)


def wait(reached: Callable[[], bool]) -> None:
    """Return when this is so."""
    deadline = time.monotonic() + _WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # a look lists the lake


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """A real master with workers, on loopback; the master's address."""
    processes: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("w") as stream:
            kind = name.partition("-")[0]
            command = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
            processes.append(
                subprocess.Popen(
                    [_SPARK_CLASS, command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                    env=environment() | {"SPARK_WORKER_DIR": str(folder / name)},
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        return log

    set_java_home(folder)
    try:
        log = start("master", "--port", "0")
        wait(lambda: "I have been elected leader" in log.read_text())
        found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert found, log.read_text()
        for number in range(workers):
            start(f"worker-{number}", "--cores", "1", "--memory", "1g", found[1])
        wait(lambda: log.read_text().count("Registering worker") == workers)
        yield found[1]
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
