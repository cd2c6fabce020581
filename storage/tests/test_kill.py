"""Acknowledged data is on disk, whenever the process is killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from storage.engines.opening import open_store
from storage.rows.stored_rows import StoredRows
from storage.tests.kill_writer import OPTIONS, QUEUE_ID, TURN_MESSAGES, body

ROUNDS = 5
SEED = 20_261


def acknowledged_until_killed(folder: Path, lines: int) -> int:
    """Start a writer, kill it after it said that many lines; the last number it acknowledged."""
    command = [sys.executable, "-m", "storage.tests.kill_writer", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    whole = [line for line in said if line.endswith(b"\n")]
    return int(whole[-1])


@pytest.mark.slow
async def test_every_acknowledged_row_is_there_after_a_kill(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    acknowledged = 0

    for _ in range(ROUNDS):
        acknowledged = max(
            acknowledged, acknowledged_until_killed(tmp_path / "shard-0", chance.randint(1, 200))
        )

        store = open_store(tmp_path / "shard-0", OPTIONS)
        rows = StoredRows(store)
        ((queue_id, row),) = rows.queues()
        written = row.next_sequence - 1
        page = rows.line(QUEUE_ID, 1, written + 1 + TURN_MESSAGES, messages=1 << 20, size=1 << 30)
        spans = dict(rows.spans(queue_id))
        await store.close()
        assert written >= acknowledged
        assert sum(spans.values()) == written
        assert [sequence for sequence, _ in page.messages] == list(range(1, written + 1))
        assert all(message.data == body(sequence) for sequence, message in page.messages)
