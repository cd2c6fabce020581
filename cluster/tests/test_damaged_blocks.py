"""A damaged block of a folder with many small queues prevents no start, and is gone afterwards.

Some messages are in flight for a while, and some FIFO groups are blocked by a lost message.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from cluster.tests import test_healing as healing
from cluster.tests.virtual_time import SteppedLoop
from cluster.tests.world import state_of
from storage.checks.consistency import check_queue
from storage.engines import rocks
from storage.engines.fresh_rows import has_damage
from storage.engines.store import StoreFailed
from storage.tests.on_disk import changing, compact, rows_of
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_keys import MESSAGE, table_range
from visibility.state.queue_state import QueueState
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

COUNT = 66
PER_QUEUE = 8
TOO_MANY = 1.2
"""Part of those that may be counted as lost though some had been deleted."""
FLIPPED_MAX = 2
"""Rows whose own names have the flipped bit, so that they are not counted."""
BLOCK_BYTES = 4096
QUEUES = [
    prepared.queue_named(f"q{number}.fifo" if number % 3 == 0 else f"q{number}", number)
    for number in range(1, COUNT + 1)
]
DEFINITIONS = KnownQueues(*QUEUES)
IN_FLIGHT = [queue for queue in QUEUES if queue.queue_id % 2 == 0]
WITH_BLOCKED = [QUEUES[2], QUEUES[8], QUEUES[44]]
HIDDEN_S = 30
START_S, VISIBLE_S = 1.0, 60.0
"""Instants of a start on the folder, and when nothing is in flight any more."""
_T = TypeVar("_T")


class Made(NamedTuple):
    """A folder, and what can be received from it."""

    folder: Path
    early: Counter[str]
    """While messages are in flight."""
    all: Counter[str]
    blocked: int
    """Quarantined messages."""


def at(now_s: float, work: Coroutine[Any, Any, _T]) -> _T:
    """Run at this instant; time stands still until `pass_until`."""
    loop = SteppedLoop()
    loop.now_s = now_s
    try:
        found = loop.run_until_complete(work)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    return found


def pass_until(now_s: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    loop.now_s = now_s


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
        return [*state_of(self.shard).queues.values()]

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


async def _hide(served: Served) -> None:
    """Put messages in flight."""
    requests = [prepared.receive(queue, 3, timeout_s=HIDDEN_S) for queue in IN_FLIGHT]
    await asyncio.gather(*[served.ask(request) for request in requests])


def lose_messages(folder: Path) -> None:
    """Damage the first message of some FIFO queues."""
    with rows_of(folder) as rows:
        tables = [table_range(queue.queue_id, MESSAGE) for queue in WITH_BLOCKED]
        keys = [min(key for key, _ in rows.scan(*table)) for table in tables]
    with changing(folder) as changes:
        for key in keys:
            changes.put(key, healing.RUBBISH)


async def _made(top: Path, *, is_killed: bool) -> None:
    """A folder with several runs' rows, closed or killed."""
    running = top / "running" / "shard-0"
    for first in (0, PER_QUEUE):
        async with Served(running) as served:
            await fill(served, first)
    lose_messages(running)
    async with Served(running) as served:
        for queue in WITH_BLOCKED:
            await served.received(queue, 0)
        await fill(served, 2 * PER_QUEUE)
        await _hide(served)
        if is_killed:
            shutil.copytree(top / "running", top / "made")
    if not is_killed:
        shutil.copytree(top / "running", top / "made")


async def _received(folder: Path) -> Made:
    """Everything that can be received, which is deleted."""
    async with Served(folder) as served:
        early = await served.all_bodies()
        delayed = early.pop("delayed")
        pass_until(VISIBLE_S)
        late = await served.all_bodies()
        assert late["delayed"] == delayed
        return Made(folder, early, early + late, served.quarantined())


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "killed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    top = tmp_path_factory.mktemp("blocks")
    at(0, _made(top, is_killed=request.param))
    shutil.copytree(top / "made", top / "whole")
    found = at(START_S, _received(top / "whole" / "shard-0"))
    assert sum((found.all - found.early).values()) > len(IN_FLIGHT)
    assert found.blocked > len(WITH_BLOCKED)
    return found._replace(folder=top / "made")


@pytest.fixture
def folder(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "data")) / "shard-0"


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
    """Files with several blocks, oldest first."""
    found = sorted(folder.glob("*.sst"))
    return [each for each in found if each.stat().st_size > 3 * BLOCK_BYTES]


FLIPS: dict[str, Callable[[Path], None]] = {
    "first block": lambda folder: flip(100, tables(folder)[0]),
    "third block": lambda folder: flip(2 * BLOCK_BYTES + 2000, tables(folder)[0]),
    "newer file": lambda folder: flip(BLOCK_BYTES + 300, tables(folder)[-1]),
    "two files": lambda folder: flip(300, *tables(folder)),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["make_fresh", "rebuild", "switch", "drop_fresh"])
def test_a_start_that_ends_at_any_step_is_repeated_by_the_next(
    folder: Path, made: Made, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FLIPS["first block"](folder)

    def end(*_: object, **__: object) -> None:
        raise OSError(5, "the power fails")

    with monkeypatch.context() as patched:
        patched.setattr(rocks, step, end)
        with pytest.raises(StoreFailed, match="the power fails"):
            at(START_S, Served(folder).shard.start(COUNT))
    _check(folder, made)


@pytest.mark.parametrize(
    "damage",
    ["first block", *(pytest.param(name, marks=pytest.mark.slow) for name in [*FLIPS][1:])],
)
def test_a_damaged_block_prevents_no_start_and_is_gone_afterwards(
    folder: Path, made: Made, damage: str
) -> None:
    FLIPS[damage](folder)
    _check(folder, made)


def _check(folder: Path, made: Made) -> None:
    at(START_S, _healed(folder))
    found = at(START_S, _received(folder))
    lost = (made.all - found.all).total()
    freed = found.all - made.all
    waiting = {f"{queue.name} {n}" for queue in WITH_BLOCKED for n in _group_of("0")}
    assert freed.keys() <= waiting, "nothing that was deleted comes back, or is served twice"
    counted = found.blocked - made.blocked + freed.total()
    assert lost - FLIPPED_MAX <= counted <= lost * TOO_MANY
    assert lost < made.all.total() // 4
    _check_order(made, found)
    at(VISIBLE_S, _go_on(folder))
    compact(folder)
    with rows_of(folder) as rows:
        assert [found for queue in QUEUES for found in check_queue(rows, queue.queue_id)] == []
    assert [*(folder.parent / "shard-0.damaged").glob("*.sst")]


async def _healed(folder: Path) -> None:
    async with Served(folder):
        assert not has_damage(folder)


def _check_order(made: Made, found: Made) -> None:
    """No later message of a group is served while an earlier one is hidden."""
    hidden = made.all - made.early
    for body in hidden & (found.all - found.early):
        name, _, number = body.partition(".fifo ")
        later = [f"{name}.fifo {n}" for n in _group_of(number) if n > int(number)] if number else ()
        assert not found.early.keys() & {*later}, f"{body} is hidden"


def _group_of(number: str) -> list[int]:
    """The numbers of the messages in the group of this one."""
    group = int(number) % PER_QUEUE % 3
    return [n for n in range(3 * PER_QUEUE) if n % PER_QUEUE % 3 == group]


async def _go_on(folder: Path) -> None:
    async with Served(folder) as served:
        for queue in QUEUES:
            await served.ask(prepared.send(queue, "new", group="n" * queue.settings.fifo))
        assert (await served.all_bodies())["new"] == COUNT
