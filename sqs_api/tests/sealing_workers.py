"""A supervisor and its forked workers, which seal: `python -m sqs_api.tests.sealing_workers FOLDER
WORKERS SEALS`.

Each worker writes what it sealed into FOLDER/NUMBER, a line of JSON each: the number of the data
key, and the sealed message in hexadecimal digits.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from auth.envelope import BUILT_IN_KEY
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.keys.keyring import Keyring
from sqs_api.workers.conversation import (
    Answered,
    Changed,
    CommitRecords,
    Conversation,
    OfSupervisor,
    OfWorker,
    ReadRecords,
    WatchRecords,
)
from sqs_api.workers.forked import Started, fork_workers
from sqs_api.workers.shared_records import RecordsSession, SharedRecords

MASTER = b"m" * 32


async def _supervise(folder: Path, started: Sequence[Started]) -> None:
    """Serve the records, in which are keys already, until all workers have ended."""
    coordination = await SqliteCoordination.open(folder / "records.sqlite")
    founder = await Keyring.open(coordination.below(""), MASTER, SystemClock(), SystemEntropy())
    await founder.new_data_key(founder.named(BUILT_IN_KEY))

    async def serve(each: Started) -> None:
        conversation = await Conversation.open(each.pairs.conversation, OfWorker)
        session = RecordsSession(coordination, conversation)
        while (message := await conversation.receive()) is not None:
            assert isinstance(message, ReadRecords | CommitRecords | WatchRecords)
            session.asked(message)
        session.end()
        assert await each.process.wait() == 0

    await asyncio.gather(*map(serve, started))
    await founder.close()
    await coordination.close()


async def _seal(pair: socket.socket, folder: Path, seals: int) -> None:
    conversation = await Conversation.open(pair, OfSupervisor)
    records = SharedRecords(conversation.send)

    async def hear() -> None:
        while (message := await conversation.receive()) is not None:
            if isinstance(message, Answered):
                records.answered(message)
            else:
                assert isinstance(message, Changed)
                records.changed(message)

    hearing = asyncio.create_task(hear())
    keyring = await Keyring.open(records, MASTER, SystemClock(), SystemEntropy(), is_shared=True)
    named = keyring.named(BUILT_IN_KEY)
    keys = [await keyring.new_data_key(named) for _ in range(2)]
    lines = [json.dumps([key.number, key.seal(b"x").hex()]) for _ in range(seals) for key in keys]
    (folder / f"{keys[0].number}").write_text("\n".join(lines))
    await keyring.close()
    hearing.cancel()
    conversation.close()


def main(folder: Path, workers: int, seals: int) -> None:
    """Fork as `holdfast serve` does, then make the keys."""

    def run(pair: int, _: int) -> int:
        asyncio.run(_seal(socket.socket(fileno=pair), folder, seals))
        return 0

    asyncio.run(_supervise(folder, fork_workers(workers, run)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
