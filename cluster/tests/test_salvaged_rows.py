"""Rows of a queue rebuilt from its readable ones agree with each other, whatever was damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typing_extensions import override

from cluster.tests.test_verify_rows import QUEUE_ID, findings, some_rows, store_of
from storage.checks import readable_rows
from storage.checks.consistency import check_shard
from storage.checks.derived_queue import SEQUENCES_SKIPPED
from storage.checks.missing import Missing, count_missing
from storage.checks.readable_rows import ReadableRows, look_through
from storage.healing.salvaged_queue import QueueCopy, Target
from storage.rows.damage import walk_rows
from storage.tests.memory_store import MemoryStore
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_keys import (
    ARCHIVE,
    ARCHIVED,
    BATCH,
    DELAYED,
    GROUP_LINE,
    HEAD,
    LEASE,
    LOCKED,
    MESSAGE,
    QUEUE,
    REMEMBERED,
    SPAN,
    group_key,
    last_number_of,
    number_of,
    queue_key,
    queue_of,
    row_key,
)
from visibility.rows.row_values import (
    THE_SHARD,
    ArchivedMessage,
    ArchiveRow,
    QueueRow,
    Remembered,
    SealedBatch,
)
from visibility.rules.archive_tables import check_archive, salvage_archive

Rows = dict[bytes, bytes]


@pytest.fixture(scope="module", autouse=True)
def few_guesses() -> Iterator[None]:
    """Rows behind damage are looked up one by one; the numbers of these queues are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readable_rows, "GUESSES", 100)
        yield


class BlockStore(MemoryStore):
    """Rows, some of them in an unreadable block: a scan that reaches it ends there."""

    def __init__(self, rows: Rows, unreadable: set[bytes]) -> None:
        super().__init__()
        self.rows = dict(rows)
        self._unreadable = unreadable

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store.scan`. RocksDB reads a block as soon as it might hold the next key, also one
        behind the end."""
        for key, value in super().scan(begin, b"\xff" * 40):
            if key in self._unreadable:
                raise DamagedRecord(key, "its block cannot be read")
            if key >= end:
                return
            yield key, value

    @override
    def get(self, key: bytes) -> bytes | None:
        if key in self._unreadable:
            raise DamagedRecord(key, "its block cannot be read")
        return super().get(key)


class OverlappedStore(BlockStore):
    """The same, with rows of other files between those of the block, which only a get can read."""

    def __init__(self, rows: Rows, unreadable: set[bytes], hidden: set[bytes]) -> None:
        super().__init__(rows, hidden)
        self._block = unreadable

    @override
    def get(self, key: bytes) -> bytes | None:
        if key in self._block:
            raise DamagedRecord(key, "its block cannot be read")
        return self.rows.get(key)


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def rows(request: pytest.FixtureRequest) -> Rows:
    return dict(some_rows(request.param))


@pytest.fixture
def fifo(request: pytest.FixtureRequest) -> bool:
    return "fifo" in request.node.callspec.id


def salvaged(store: MemoryStore, fifo: bool) -> tuple[MemoryStore, dict[int, Missing]]:
    target, reports = MemoryStore(), {}
    contents = look_through(store)
    for queue_id in sorted({queue_of(key) for key in store.rows}):
        QueueCopy(ReadableRows(store), Target(target.apply), queue_id, fifo=fifo).run()
        reports[queue_id] = count_missing(ReadableRows(store), queue_id, contents.damages)
    return target, reports


def messages(rows: Rows) -> set[tuple[int, int]]:
    return {(queue_of(k), last_number_of(k)) for k in rows if k[8:9] in (MESSAGE, DELAYED)}


def test_sound_rows_stay_as_they_are(rows: Rows, fifo: bool) -> None:
    target, reports = salvaged(store_of(rows), fifo)

    assert target.rows == rows
    assert all(report.is_exact and not report.missing for report in reports.values())


@pytest.mark.parametrize("change", ["flip", "remove"])
def test_whatever_row_is_damaged_or_missing_the_others_agree(
    rows: Rows, fifo: bool, change: str
) -> None:
    for key, value in rows.items():
        if change == "flip" and (not value or key[8:9] == HEAD):
            continue
        left = rows | {key: value[:-1] + bytes([value[-1] ^ 4])} if value else dict(rows)
        if change == "remove":
            del left[key]

        target, reports = salvaged(store_of(left), fifo)

        lost = {(queue_of(key), last_number_of(key))} if key[8:9] in (MESSAGE, DELAYED) else set()
        assert findings(target) == []
        assert messages(target.rows) == messages(rows) - lost
        report = reports[queue_of(key)]
        if report.is_exact and key[8:9] != QUEUE:
            assert report.missing == (len(lost) if key[8:9] != SPAN or change == "flip" else 0)


@pytest.mark.parametrize(
    "width", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 10, 30))]
)
def test_wherever_a_block_cannot_be_read_the_others_agree(
    rows: Rows, fifo: bool, width: int
) -> None:
    keys = sorted(rows)
    for begin in range(len(keys)):
        block = set(keys[begin : begin + width])

        target, reports = salvaged(BlockStore(rows, block), fifo)

        assert findings(target) == []
        lost = messages(dict.fromkeys(block, b""))
        assert messages(target.rows) == messages(rows) - lost
        for queue_id, report in reports.items():
            gone = sum(queue == queue_id for queue, _ in lost)
            assert report.missing <= gone
            if report.is_exact:
                assert report.missing == gone
            if gone:
                assert report.missing or not report.is_exact, "nothing is missing in silence"


@pytest.mark.parametrize("width", [1, 7])
def test_walk_passes_by_a_block_anywhere_and_by_nothing_else(rows: Rows, width: int) -> None:
    keys = sorted(rows)
    for begin in range(len(keys)):
        block = set(keys[begin : begin + width])

        found = list(walk_rows(BlockStore(rows, block)))

        read = {each[0] for each in found if not isinstance(each, DamagedRecord)}
        assert read == set(keys) - block
        assert len(found) == len(read) + 1
        contents = look_through(BlockStore(rows, block))
        (damage,) = contents.damages
        assert {key for key in keys if damage.key <= key < damage.until} == block
        for queue_id in {queue_of(key) for key in block}:
            assert damage.touches(queue_id)


@pytest.mark.parametrize("width", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_messages_between_the_rows_of_a_block_are_looked_up(
    rows: Rows, fifo: bool, width: int
) -> None:
    keys = sorted(rows)
    for begin in range(0, len(keys), 3):
        hidden = keys[begin : begin + width]
        block = set(hidden[:: width - 1])

        target, _ = salvaged(OverlappedStore(rows, block, set(hidden)), fifo)

        assert findings(target) == []
        kept = {key for key in hidden if key[8:9] == MESSAGE} - block
        assert {key: rows[key] for key in kept} == {key: target.rows[key] for key in kept}


def test_queue_without_its_row_goes_on_far_above_all_numbers_it_gave_out(
    rows: Rows, fifo: bool
) -> None:
    own = queue_key(QUEUE_ID)
    before = decode_row(QueueRow, own, rows[own])

    target, _ = salvaged(BlockStore(rows, {own}), fifo)

    after = decode_row(QueueRow, own, target.rows[own])
    assert after.next_sequence >= before.next_sequence + SEQUENCES_SKIPPED // 2
    assert after.fifo == fifo
    assert (after.waiting, after.delayed) == (before.waiting, before.delayed)


def test_groups_keep_their_order_without_the_rows_that_list_them() -> None:
    rows = dict(some_rows(""))
    heads = {key for key in rows if key[8:9] == HEAD}
    assert len(heads) > 1

    target, _ = salvaged(BlockStore(rows, heads), fifo=False)

    assert {key: rows[key] for key in heads} == {key: target.rows[key] for key in heads}


def test_messages_of_a_group_keep_the_history_of_their_receives() -> None:
    rows = dict(some_rows(".fifo"))
    lines = sorted(key for key in rows if key[8:9] == GROUP_LINE)
    history = Lease(last_number_of(lines[0]), 5, 2, 1, 3, 4, lines[0][9:25])
    rows[lines[0]] = encode_row(history)

    target, _ = salvaged(BlockStore(rows, {queue_key(QUEUE_ID)}), fifo=True)

    assert {key: target.rows[key] for key in lines} == {key: rows[key] for key in lines}


@pytest.mark.parametrize("damage", ["none", "row", "block"])
def test_a_group_that_waits_for_earlier_parts_still_waits(damage: str) -> None:
    rows = dict(some_rows(".fifo"))
    head, group = next((k, v) for k, v in rows.items() if k[8:9] == HEAD)
    lock = group_key(queue_of(head), LOCKED, group)
    rows |= dict.fromkeys((lock, lock[:-1]), b"damaged" if damage == "row" else encode_row(0))

    target, _ = salvaged(BlockStore(rows, {lock} if damage == "block" else set()), fifo=True)

    assert {key: row for key, row in target.rows.items() if key[8:9] == LOCKED} == {
        lock: encode_row(0)
    }
    assert head not in target.rows
    assert findings(target) == []


def test_a_queue_without_its_row_forgets_its_deduplication_ids_in_time() -> None:
    rows = dict(some_rows(".fifo"))
    used = [decode_row(Remembered, k, v).at_ms for k, v in rows.items() if k[8:9] == REMEMBERED]

    target, _ = salvaged(BlockStore(rows, {queue_key(QUEUE_ID)}), fifo=True)

    own = queue_key(QUEUE_ID)
    assert decode_row(QueueRow, own, target.rows[own]).remembered_ms == max(used)


def test_lease_without_its_message_is_a_missing_message() -> None:
    rows = dict(some_rows(""))
    leased = [number_of(key) for key in rows if queue_of(key) == QUEUE_ID and key[8:9] == LEASE]
    gone = row_key(QUEUE_ID, MESSAGE, leased[0])

    target, reports = salvaged(BlockStore(rows, {gone, queue_key(QUEUE_ID)}), fifo=False)

    assert row_key(QUEUE_ID, LEASE, leased[0]) not in target.rows
    assert reports[QUEUE_ID].missing == 1


# -- the archive -----------------------------------------------------------------------------------


def archive_rows() -> Rows:
    made: dict[bytes, object] = {
        row_key(THE_SHARD, ARCHIVED, number): ArchivedMessage(
            "arn", "deleted", 5, 0, 1, 1, StoredMessage(f"id-{number}", 1, 1, b"x")
        )
        for number in range(3, 9)
    }
    made[row_key(THE_SHARD, BATCH, 2)] = SealedBatch(2, 3, 6, 100, 7)
    made[row_key(THE_SHARD, ARCHIVE, 0)] = ArchiveRow("source", 9, 3, 1, 6, 100, 5, 4)
    return {key: encode_row(row) for key, row in made.items()}


def test_rows_that_are_of_no_queue_are_checked() -> None:
    rows = archive_rows()
    assert not list(check_shard(store_of(rows)))

    del rows[row_key(THE_SHARD, ARCHIVE, 0)]

    assert len(list(check_shard(store_of(rows)))) == 1


def test_archive_agrees_whatever_block_cannot_be_read() -> None:
    rows = archive_rows()
    assert not list(check_archive(store_of(rows)))
    keys = sorted(rows)
    for begin in range(len(keys)):
        for width in (1, 2, 5):
            block = set(keys[begin : begin + width])
            target = MemoryStore()

            to = Target(target.apply)
            copied = salvage_archive(ReadableRows(BlockStore(rows, block)), to.put).archived
            to.write()

            assert copied == sum(key[8:9] == ARCHIVED and key not in block for key in keys)
            assert not list(check_archive(target)) or not target.rows
