"""An Entry of the log is lost with its head, which names its queues: later Entries and the rows
tell which these may have been."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.test_healing import FIFO, OTHER, QUEUES, Q, Served
from cluster.tests.virtual_time import CountingEntropy, LoopClock
from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions, log_folder
from storage.log.entry import MAGIC
from storage.tests.store_places import SEGMENT_BYTES, crash_copy
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared

NAMES = {queue.queue_id: queue.name for queue in (Q, OTHER, FIFO)}
LOST = "the lost one"


async def without_the_head(tmp_path: Path, *sent: tuple[QueueDefinition, str]) -> Path:
    """A killed shard with these messages, each sent by an Entry of its own; of the one that sent
    LOST a bit in the head has flipped."""
    served = Served(tmp_path / "shard-0")
    await served.shard.start()
    for queue, body in sent:
        await served.ask(prepared.send(queue, body))
    folder = crash_copy(tmp_path / "shard-0", tmp_path / "killed")
    await served.shard.stop()
    for file in log_folder(folder).glob("segment-*"):
        content = bytearray(file.read_bytes())
        at = content.rfind(MAGIC, 0, max(content.find(LOST.encode()), 0))
        if at >= 0:
            content[at + 20] ^= 1
            file.write_bytes(content)
            return folder
    raise AssertionError("the Entry is not there")


def opened(folder: Path, *, accepts_loss: bool) -> DurableStore:
    options = StoreOptions(
        segment_bytes=SEGMENT_BYTES, accepts_loss=accepts_loss, queue_names=NAMES
    )
    return open_store(folder, options)


def refusal(folder: Path) -> str:
    with pytest.raises(StoreFailed) as refused:
        opened(folder, accepts_loss=False)
    return str(refused.value)


async def test_a_queue_that_a_later_entry_fits_is_ruled_out(tmp_path: Path) -> None:
    folder = await without_the_head(
        tmp_path, (Q, "a"), (OTHER, "a"), (FIFO, "a"), (OTHER, LOST), (Q, "b"), (FIFO, "b")
    )

    assert "queues they changed: one of these: other." in refusal(folder)
    with capture_logs() as lines:
        store = opened(folder, accepts_loss=True)
    await store.abandon()

    (line,) = [line for line in lines if line["event"] == "log_entries_lost"]
    assert (line["entries"], line["queues"], line["one_of_these"]) == (1, [], ["other"])


async def test_the_queue_whose_later_rows_lack_something_is_named(tmp_path: Path) -> None:
    folder = await without_the_head(
        tmp_path, (Q, "a"), (OTHER, "a"), (FIFO, "a"), (OTHER, LOST), (OTHER, "b"), (FIFO, "b")
    )

    with capture_logs() as lines:
        store = opened(folder, accepts_loss=True)
    await store.abandon()

    (line,) = [line for line in lines if line["event"] == "log_entries_lost"]
    assert line["one_of_these"] == ["q", "other"]
    (rebuilt,) = [line for line in lines if line["event"] == "queue_rebuilt"]
    assert rebuilt["queue"] == "other"


async def test_a_queue_without_rows_is_not_ruled_out(tmp_path: Path) -> None:
    folder = await without_the_head(tmp_path, (Q, "a"), (OTHER, LOST), (Q, "b"))

    assert "one of these: other, q.fifo." in refusal(folder)


async def test_verify_names_them_too(tmp_path: Path) -> None:
    folder = await without_the_head(tmp_path, (Q, "a"), (OTHER, LOST), (Q, "b"), (FIFO, "b"))

    view = RocksView(folder)
    named, numbered = list(view.log_findings(NAMES)), list(view.log_findings())
    view.close()

    assert [line.partition("queues: ")[2] for line in named] == ["one of these: other"]
    assert [line.partition("queues: ")[2] for line in numbered] == ["unknown queues"]


async def test_a_shard_serves_what_is_left(tmp_path: Path) -> None:
    folder = await without_the_head(tmp_path, (Q, "a"), (Q, LOST), (Q, "b"))

    async def open_again() -> DurableStore:
        return opened(folder, accepts_loss=True)

    shard = Served(folder)
    shard.shard = Shard(
        0,
        ShardParts(
            open_store=partial(open_again),
            clock=LoopClock(),
            entropy=CountingEntropy(),
            definitions=QUEUES,
        ),
    )
    await shard.shard.start()

    assert sorted(await shard.bodies(Q)) == ["a", "b"]
    await shard.shard.stop()
