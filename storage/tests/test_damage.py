"""A block that RocksDB cannot read is reported: nothing behind it is taken for missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from storage.engines.rocks import RocksRows
from storage.rows.stored_rows import StoredRows
from storage.tests.store_places import changes_of
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import MESSAGE, row_key
from visibility.rows.row_values import Quarantined, QueueRow
from visibility.rows.state_rows import write_queue
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesDeleted, MessagesSent, VisibilityChanged
from visibility.state.queue_state import Quarantine

COUNT = 400
ROW = QueueRow(COUNT + 1, 1, COUNT, 0)
MIB = 1 << 20


def message(number: int) -> StoredMessage:
    """One that does not compress, so that many make several blocks."""
    return StoredMessage(f"id-{number}", 1_000 + number, 200, Random(number).randbytes(200))


MESSAGES = [message(number) for number in range(1, COUNT + 1)]


class Folder:
    """A closed database in one file of sorted rows, of which a byte can be flipped and flipped
    back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[RocksRows] = []

    def write(self, *events: Event) -> None:
        rows = self.open()
        for event in events:
            changes = changes_of(event)
            write_queue(changes, event.queue_id, ROW, {0: COUNT})
            rows.write(changes.ops)
        rows.flush()
        self.close(rows)

    def open(self) -> RocksRows:
        rows = RocksRows(self.path)
        self.opened.append(rows)
        return rows

    def close(self, rows: RocksRows) -> None:
        rows.close()
        self.opened.remove(rows)

    def flip(self, at: float) -> None:
        """A bit of the rows' blocks, at this part of the file; its end holds no rows."""
        (file,) = self.path.glob("*.sst")
        content = bytearray(file.read_bytes())
        assert len(content) > 5 * 4096, "several blocks"
        content[int(at * len(content))] ^= 1
        file.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "shard-0")
    yield made
    for rows in made.opened:
        rows.close()


def read(store: RocksRows) -> list[int]:
    """The readable messages."""
    return list(StoredRows(store).survey(1, 1, COUNT + 1).groups)


def all_leases(rows: StoredRows) -> list[list[Lease]]:
    return [list(rows.leases(queue_id)) for queue_id, _ in rows.queues()]


@pytest.mark.parametrize("at", [0.002, 0.3, 0.6])
def test_a_load_does_not_end_at_an_unreadable_block(folder: Folder, at: float) -> None:
    leases = [
        Lease(sequence, Random(sequence).getrandbits(60), 1, 0, 5, 5)
        for sequence in range(1, COUNT + 1)
    ]
    folder.write(*[VisibilityChanged(queue_id, 0, leases) for queue_id in range(1, 5)])
    folder.flip(at)

    rows = StoredRows(folder.open())
    with pytest.raises(DamagedRecord, match="cannot be read"):
        all_leases(rows)


@pytest.mark.parametrize("at", [0.002, 0.5, 0.9])
def test_a_page_passes_by_an_unreadable_block_once_it_is_quarantined(
    folder: Folder, at: float
) -> None:
    folder.write(MessagesSent(1, 1, MESSAGES))
    folder.flip(at)
    rows = StoredRows(folder.open())
    with pytest.raises(DamagedRecord) as met:
        rows.line(1, 1, COUNT + 1, messages=COUNT, size=MIB)
    place = rows.place_of(met.value)
    assert place is not None
    assert 1 <= place.sequence < place.until <= COUNT + 1

    survey = rows.survey(1, 1, COUNT + 1)
    known = Quarantine([Quarantined(0, 1, 5, [], survey.gaps)])
    page = rows.line(1, 1, COUNT + 1, messages=COUNT, size=MIB, quarantined=known)

    readable = [sequence for sequence, _ in page.messages]
    assert readable == sorted(survey.groups)
    assert COUNT * 3 // 4 < len(readable) < COUNT
    assert [found for _, found in page.messages] == [message(n) for n in readable]
    assert all(place.sequence <= n < place.until for n in {*range(1, COUNT + 1)} - {*readable})


def test_messages_of_an_unreadable_block_are_damage_and_not_missing(folder: Folder) -> None:
    folder.write(MessagesSent(1, 1, MESSAGES))
    folder.flip(0.5)
    store = folder.open()

    damaged = 0
    for number, sent in enumerate(MESSAGES, 1):
        try:
            assert StoredRows(store).messages(1, [number]) == [sent]
        except DamagedRecord:
            damaged += 1

    assert 0 < damaged < COUNT // 4


def test_messages_that_are_read_together_name_the_one_that_is_damaged(folder: Folder) -> None:
    folder.write(MessagesSent(1, 1, MESSAGES))
    folder.flip(0.5)
    store = folder.open()
    rows = StoredRows(store)
    numbers = list(range(1, COUNT + 1))

    passed_by: list[int] = []
    while True:
        try:
            found = rows.messages(1, [n for n in numbers if n not in passed_by])
        except DamagedRecord as error:
            (number,) = [n for n in numbers if error.key == row_key(1, MESSAGE, n)]
            assert number not in passed_by
            passed_by.append(number)
        else:
            break

    assert 0 < len(passed_by) < COUNT // 4
    assert found == [message(n) for n in numbers if n not in passed_by]


def test_a_block_that_can_be_read_again_has_all_its_messages(folder: Folder) -> None:
    folder.write(MessagesSent(1, 1, MESSAGES))
    folder.flip(0.5)
    store = folder.open()
    assert len(read(store)) < COUNT
    folder.close(store)

    folder.flip(0.5)

    assert read(folder.open()) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("at", [0.002, 0.5, 0.9])
def test_a_page_passes_by_an_unreadable_block_below_what_was_recorded(
    folder: Folder, at: float
) -> None:
    folder.write(MessagesSent(1, 1, MESSAGES))
    folder.flip(at)
    store = folder.open()
    readable = read(store)
    rows = StoredRows(store)
    MessagesSent(1, COUNT + 1, [message(COUNT + 1)]).record(rows.changes)
    gone = Lease(readable[-1], 0, 0, 0, 0, 0)
    MessagesDeleted(1, 5, [gone]).record(rows.changes)

    known = Quarantine([Quarantined(0, 1, 5, [], rows.survey(1, 1, COUNT + 2).gaps)])

    page = rows.line(1, 1, COUNT + 2, messages=2 * COUNT, size=MIB, quarantined=known)

    assert [sequence for sequence, _ in page.messages] == [*readable[:-1], COUNT + 1]
