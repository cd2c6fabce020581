"""A damaged block of a folder with many small queues prevents no start, and is gone afterwards."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.tests import test_healing as healing
from storage.checks.consistency import check_queue
from storage.engines import rocks
from storage.engines.store import StoreFailed
from storage.engines.unreadable import has_unreadable_blocks
from storage.tests.on_disk import rows_of
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.outcomes import Deliveries
from visibility.state.state import QueueState
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

COUNT = 66
PER_QUEUE = 8
TOO_MANY = 1.2
"""Part of those that may be counted as lost though some had been deleted."""
BLOCK_BYTES = 4096
QUEUES = [
    prepared.queue_named(f"q{number}.fifo" if number % 3 == 0 else f"q{number}", number)
    for number in range(1, COUNT + 1)
]
DEFINITIONS = KnownQueues(*QUEUES)


class Served(healing.Served):
    """A shard of these queues on a real folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, DEFINITIONS)

    async def __aenter__(self) -> Served:
        await self.shard.start(COUNT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shard.stop()

    async def received(self, queue: QueueDefinition, timeout_s: int = 60) -> Deliveries:
        answer = await self.ask(prepared.receive(queue, 10, timeout_s=timeout_s))
        assert isinstance(answer, Deliveries)
        return answer

    async def all_bodies(self) -> Counter[str]:
        """Everything that can be received now, which is deleted, and the number of delayed
        messages."""
        found = Counter(delayed=sum(each.delayed for each in self.states()))
        for bodies in await asyncio.gather(*[self._emptied(queue) for queue in QUEUES]):
            found.update(bodies)
        return found

    async def _emptied(self, queue: QueueDefinition) -> list[str]:
        bodies: list[str] = []
        while (answer := await self.received(queue)).messages:
            bodies += [message.data.decode() for message in answer.messages if message]
            receipts = [Receipt(each.sequence, each.receive_count) for each in answer.leases]
            await self.ask(prepared.delete_batch(queue, receipts))
        return bodies

    def states(self) -> list[QueueState]:
        return [*self.shard._state.queues.values()]

    def quarantined(self) -> int:
        return sum(queue.quarantined.messages for queue in self.states())


async def fill(served: Served, first: int) -> None:
    """Send to each queue; some messages become visible again, are delayed or deleted."""
    await asyncio.gather(*[_fill(served, queue, first) for queue in QUEUES])


async def _fill(served: Served, queue: QueueDefinition, first: int) -> None:
    fifo = queue.settings.fifo
    groups = [f"g{number % 3}" if fifo else None for number in range(PER_QUEUE)]
    bodies = [f"{queue.name} {number}" for number in range(first, first + PER_QUEUE)]
    await served.ask(prepared.send_batch(queue, bodies, groups=groups))
    if queue.queue_id % 4 == 0:
        await served.received(queue, 0)
    if queue.queue_id % 5 == 0 and not fifo:
        await served.ask(prepared.send(queue, "late", delay_s=900))
    if queue.queue_id % 7 == 0:
        gone = await served.received(queue, 0)
        receipts = [Receipt(each.sequence, each.receive_count) for each in gone.leases[:1]]
        await served.ask(prepared.delete_batch(queue, receipts))


async def _made(top: Path, *, is_killed: bool) -> Counter[str]:
    """A folder with several runs' rows, closed or killed; returns what can be received."""
    for first in (0, PER_QUEUE):
        async with Served(top / "running" / "shard-0") as served:
            await fill(served, first)
    async with Served(top / "running" / "shard-0") as served:
        await fill(served, 2 * PER_QUEUE)
        if is_killed:
            shutil.copytree(top / "running", top / "made")
    if not is_killed:
        shutil.copytree(top / "running", top / "made")
    shutil.copytree(top / "made", top / "whole")
    async with Served(top / "whole" / "shard-0") as served:
        return await served.all_bodies()


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "killed"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Counter[str]]:
    top = tmp_path_factory.mktemp("blocks")
    return top / "made", asyncio.run(_made(top, is_killed=request.param))


@pytest.fixture
def folder(made: tuple[Path, Counter[str]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "data")) / "shard-0"


def flip(at: int, *files: Path) -> None:
    for file in files:
        flip_one(file, at)


def flip_one(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    copy = file.with_name(file.name + ".flipped")  # the hard link beside the shard has another
    copy.write_bytes(content)
    copy.rename(file)


def tables(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"))


FLIPS: dict[str, Callable[[Path], None]] = {
    "first block": lambda folder: flip(100, tables(folder)[0]),
    "third block": lambda folder: flip(2 * BLOCK_BYTES + 2000, tables(folder)[0]),
    "newer file": lambda folder: flip(BLOCK_BYTES + 900, tables(folder)[-1]),
    "two files": lambda folder: flip(300, *tables(folder)),
}


@pytest.mark.parametrize("step", ["contributions", "take_out", "heal", "forget_unreadable"])
async def test_a_start_that_ends_at_any_step_is_repeated_by_the_next(
    folder: Path, made: tuple[Path, Counter[str]], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FLIPS["first block"](folder)

    def end(*_: object, **__: object) -> None:
        raise OSError(5, "the power fails")

    with monkeypatch.context() as patched:
        patched.setattr(rocks, step, end)
        with pytest.raises(StoreFailed, match="the power fails"):
            await Served(folder).shard.start(COUNT)
    await _check(folder, made[1])


@pytest.mark.parametrize("damage", FLIPS)
async def test_a_damaged_block_prevents_no_start_and_is_gone_afterwards(
    folder: Path, made: tuple[Path, Counter[str]], damage: str
) -> None:
    FLIPS[damage](folder)
    await _check(folder, made[1])


async def _check(folder: Path, sent: Counter[str]) -> None:
    async with Served(folder) as served:
        assert not has_unreadable_blocks(folder)
    async with Served(folder) as served:
        found = await served.all_bodies()
        lost = (sent - found).total()
        assert not found - sent, "nothing that was deleted comes back, nothing is served twice"
        assert lost <= served.quarantined() <= lost * TOO_MANY
        assert lost < sent.total() // 4
        for queue in QUEUES:
            await served.ask(prepared.send(queue, "new", group="n" * queue.settings.fifo))
        assert (await served.all_bodies())["new"] == COUNT

    with rows_of(folder) as rows:
        rows._rows.compact_range(None, None)
        assert [found for queue in QUEUES for found in check_queue(rows, queue.queue_id)] == []
    assert [*(folder.parent / "shard-0.damaged").glob("*.sst")]
