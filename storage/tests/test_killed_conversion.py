"""A conversion that is killed, or in which a call fails, at any step: it starts again, or the old
version still opens the folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.copies.convert import KEPT_FORMAT_FILE, convert
from storage.files.folder import read_format
from storage.tests.format_3 import converted_rows, make_old_folder
from storage.tests.killed_conversion import Outcome
from storage.tests.store_places import message
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import message_key

ROWS = {message_key(1, sequence): encode_row(message(sequence)) for sequence in range(6)}
NAMES = {
    "format.json.copy",
    "format.json",
    KEPT_FORMAT_FILE,
    "shard-0",
    "shard-0.answered",
    "shard-0-format-4",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    make_old_folder(tmp_path / "old", ROWS)
    return tmp_path / "old"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "storage.tests.killed_conversion"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def _tried(process: subprocess.Popen[str], kind: str, step: int, data: Path) -> Outcome:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{kind} {step} {data}\n")
    process.stdin.flush()
    return Outcome(int(process.stdout.readline()))


def _old_files(data: Path) -> dict[str, bytes]:
    files = [*(data / "shard-0").iterdir(), data / "shard-0.answered"]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "begins"), [("kill", "on leftovers"), ("fail", "anew")])
def test_no_step_is_one_too_many(
    old: Path, tmp_path: Path, process: subprocess.Popen[str], kind: str, begins: str
) -> None:
    format_file = (old / "format.json").read_bytes()
    if begins == "on leftovers":
        convert(old)
        converted_rows(old)
        (old / "format.json").write_bytes(format_file)
    kept = _old_files(old)
    outcomes: set[Outcome] = set()
    step = 0
    while outcomes.isdisjoint({Outcome.HAS_FEWER_STEPS, Outcome.BROKEN}):
        step += 1
        data = tmp_path / str(step)
        shutil.copytree(old, data)
        outcomes.add(_tried(process, kind, step, data))

        assert _old_files(data) == kept
        if read_format(data)["format"] == 3:
            assert (data / "format.json").read_bytes() == format_file
            convert(data)
        assert (data / KEPT_FORMAT_FILE).read_bytes() == format_file
        assert {file.name for file in data.iterdir()} == NAMES
        assert converted_rows(data) == ROWS
        shutil.rmtree(data)

    assert step > len(kept)
    assert outcomes <= {Outcome.HAS_FEWER_STEPS, Outcome.CONVERTED} | {
        Outcome.KILLED if kind == "kill" else Outcome.REFUSED
    }
