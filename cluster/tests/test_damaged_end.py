"""RocksDB cannot seek past the last block of a table's rows if that is damaged, nor to rows in
other files behind it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from cluster.tests.test_healing import RUBBISH, Q, Served, quarantined
from storage.tests.on_disk import changing
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_keys import queue_key
from visibility.tests import prepared

COUNT = 100
LATER = [f"later {number}" for number in range(10)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shard-0"


def damage_the_end(folder: Path, body: str) -> None:
    """Flip a bit of the block in which this message lies."""
    (file,) = [each for each in folder.glob("*.sst") if body.encode() in each.read_bytes()]
    content = bytearray(file.read_bytes())
    content[content.index(body.encode())] ^= 1
    file.write_bytes(content)


async def filled(folder: Path) -> list[str]:
    """A folder with messages that fill several blocks, of which the last is damaged."""
    bodies = [Random(number).randbytes(200).hex() for number in range(COUNT)]
    served = Served(folder)
    await served.shard.start()
    for first in range(0, COUNT, 10):
        await served.ask(prepared.send_batch(Q, bodies[first : first + 10]))
    for _ in range(40):  # their rows lie between the messages and what a start needs
        await served.ask(prepared.send(Q, bodies[0], delay_s=900))
    await served.shard.stop()
    damage_the_end(folder, bodies[-1])
    return bodies


async def received(served: Served, count: int) -> list[str]:
    bodies: list[str] = []
    while len(bodies) < count:
        answer = await served.ask(prepared.receive(Q, 10, timeout_s=600))
        assert isinstance(answer, Deliveries)
        if not answer.messages:
            break
        bodies += [message.data.decode() for message in answer.messages]
    return bodies


async def test_messages_sent_behind_a_damaged_block_are_served_after_a_restart(
    folder: Path,
) -> None:
    bodies = await filled(folder)
    served = Served(folder)
    await served.shard.start()
    before = await received(served, COUNT)
    lost = quarantined(served)
    assert before == bodies[: COUNT - lost]
    assert 0 < lost < COUNT // 2
    await served.ask(prepared.send_batch(Q, LATER))
    await served.shard.stop()

    for first in (0, 5):
        served = Served(folder)
        await served.shard.start()
        answer = await served.ask(prepared.receive(Q, 5, timeout_s=600))
        assert isinstance(answer, Deliveries)
        found = [message.data.decode() for message in answer.messages]
        assert found == LATER[first : first + 5]
        assert quarantined(served) == lost
        await served.shard.stop()


@pytest.mark.slow
async def test_messages_sent_behind_a_damaged_block_are_served_after_a_rebuild(
    folder: Path,
) -> None:
    bodies = await filled(folder)
    served = Served(folder)
    await served.shard.start()
    await served.ask(prepared.send_batch(Q, LATER))
    await served.shard.stop()
    with changing(folder) as changes:
        changes.put(queue_key(1), RUBBISH)

    served = Served(folder)
    await served.shard.start()
    found = await received(served, COUNT + len(LATER))

    lost = COUNT + len(LATER) - len(found)
    assert found == bodies[: COUNT - lost] + LATER
    assert 0 < lost < COUNT // 2
    await served.ask(prepared.send_batch(Q, ["new"]))
    assert await received(served, 1) == ["new"]
    await served.shard.stop()
