"""Log lines that cannot be written: dropped, counted, told of, and never in anyone's way."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sqs_api.settings.log_output import LogOutput

WAIT_S = 60.0
LINE = "x" * 999 + "\n"


@contextmanager
def _writing_to(descriptor: int | None, waiting_max: int = 16) -> Iterator[LogOutput]:
    output = LogOutput(waiting_max, again_s=0.01)
    output.start(descriptor, "dropped {}\n".format)
    try:
        yield output
    finally:
        output.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def test_lines_are_written_in_order_by_the_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file, _writing_to(file.fileno()) as output:
        for number in range(10):
            output.write(f"{number} \ud800\n")

    assert output.dropped == 0
    assert (tmp_path / "log").read_text().splitlines() == [f"{n} \\ud800" for n in range(10)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_full_disk_costs_lines_and_counts_them() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with _writing_to(full) as output:
            for number in range(5):
                output.write(LINE)
                _until(lambda dropped=number + 1: output.dropped == dropped)  # type: ignore[misc]
    finally:
        os.close(full)

    assert output.dropped == 5


def test_closed_standard_error_gets_nothing() -> None:
    with _writing_to(None) as output:
        output.write(LINE)
        _until(lambda: output.dropped == 1)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocks", "does not block"])
def test_reader_that_stands_still_delays_nobody_and_learns_the_number(blocking: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    sent = 200  # more than a pipe holds, and those that may wait
    with _writing_to(writing) as output:
        for _ in range(sent):
            output.write(LINE)
        assert output.dropped > 0

        read = b""
        while b"dropped" not in read:
            read += os.read(reading, 4096)
            output.write("again\n")
    os.close(writing)
    while more := os.read(reading, 4096):
        read += more
    os.close(reading)

    lines = read.decode().splitlines()
    assert {line for line in lines if not line.startswith("dropped")} == {LINE[:-1], "again"}
    told = sum(int(line.split()[1]) for line in lines if line.startswith("dropped"))
    assert told == output.dropped


def test_reader_that_is_gone_costs_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with _writing_to(writing) as output:
        output.write(LINE)
        _until(lambda: output.dropped == 1)
    os.close(writing)


def test_line_that_was_cut_ends_and_the_number_is_told_without_a_further_line(
    tmp_path: Path,
) -> None:
    """A limit of the file's size is a disk that takes the first part of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "log").open("wb") as file, _writing_to(file.fileno()) as output:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            output.write(LINE)
            _until(lambda: output.dropped == 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        _until(lambda: os.stat(file.fileno()).st_size > 500)

    assert (tmp_path / "log").read_text() == f"{'x' * 500}\ndropped 1\n"
