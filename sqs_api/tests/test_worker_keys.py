"""Workers and data keys: a data key never crosses a process, and no two seal under one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.keys.key_records import block_of
from cluster.keys.keyring import Keyring
from sqs_api.tests.sealing_workers import MASTER

WORKERS, SEALS = 6, 50
_NONCE_DIGITS = 16


def test_six_processes_get_six_blocks_of_data_keys_and_no_nonce_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sqs_api.tests.sealing_workers", str(tmp_path)]
    subprocess.run([*command, str(WORKERS), str(SEALS)], check=True, timeout=60)

    files = [file for file in tmp_path.iterdir() if file.name.isdecimal()]
    sealed = {file: [json.loads(line) for line in file.read_text().splitlines()] for file in files}
    assert len(sealed) == WORKERS
    blocks = [{block_of(number) for number, _ in each} for each in sealed.values()]
    assert sorted(map(sorted, blocks)) == [[number] for number in range(2, WORKERS + 2)]
    messages = [(number, bytes.fromhex(text)) for each in sealed.values() for number, text in each]
    nonces = {(number, message.hex()[:_NONCE_DIGITS]) for number, message in messages}
    assert len(nonces) == len(messages) == WORKERS * 2 * SEALS

    asyncio.run(check_readable(tmp_path / "records.sqlite", messages))


async def check_readable(file: Path, messages: list[tuple[int, bytes]]) -> None:
    """As after a restart with one process."""
    coordination = await SqliteCoordination.open(file)
    keyring = await Keyring.open(coordination.below(""), MASTER, SystemClock(), SystemEntropy())
    assert all(keyring.data_key(number)[1].open(message) == b"x" for number, message in messages)
    await keyring.close()
    await coordination.close()
