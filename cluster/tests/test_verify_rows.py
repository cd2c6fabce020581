"""Findings of `holdfast verify` on rows: none if they are sound, some if any is removed or
added."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec
import pytest

from cluster.tests.driver import Driver
from storage.checks.consistency import check_queue
from storage.rows.damage import check_row, check_rows, walk_rows
from storage.tests.memory_store import MemoryStore
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_keys import (
    ALIAS,
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    QUEUE,
    REMEMBERED,
    SPAN,
    pair_key,
    queue_key,
    queue_of,
    row_key,
)
from visibility.rows.row_values import GroupRow, QueueRow
from visibility.rules.features import TABLES
from visibility.rules.tables import Finding
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

QUEUE_ID, DEAD_ID = 1, 2


@cache
def some_rows(suffix: str) -> dict[bytes, bytes]:
    """Two queues with messages in groups: waiting, delayed, in flight, visible again, at the back,
    and dead letters."""
    dead = prepared.queue_named("dead" + suffix, DEAD_ID)
    most = 1 if suffix else 4
    name = "queue" + suffix
    queue = prepared.queue_named(name, QUEUE_ID, dead_letters_to=dead, max_receive_count=most)
    known = KnownQueues(queue, dead)
    driver = Driver(known)
    for number in range(12):
        driver.submit(prepared.send(queue, f"body {number}", group="abc"[number % 3]))
    for count in (2, 2, 2, 2, 4, 1):
        driver.submit(prepared.receive(queue, count, timeout_s=1, dead_letter_queue=dead))
        driver.pass_time(1_100)
    driver.submit(prepared.receive(queue, 2, timeout_s=3600, dead_letter_queue=dead))
    if suffix:  # a FIFO queue's delays are its own
        late = known.define(prepared.queue_named(name, QUEUE_ID, DelaySeconds="900"))
        driver.submit(prepared.send(late, "late", group="c"))
    else:
        driver.submit(prepared.send(queue, "late", group="c", delay_s=900))
    driver.submit(prepared.receive(dead, 1, timeout_s=3600))
    return dict(driver.store.rows)


def store_of(rows: dict[bytes, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.rows = dict(rows)
    return store


def findings(store: MemoryStore) -> list[Finding]:
    ids = {queue_of(key) for key in store.rows}
    single = [found for found in check_rows(store) if isinstance(found, Finding)]
    return single + [found for each in sorted(ids) for found in check_queue(store, each)]


def keys_of(rows: dict[bytes, bytes], *tables: bytes) -> list[bytes]:
    return [key for key in rows if key[8:9] in tables]


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def rows(request: pytest.FixtureRequest) -> dict[bytes, bytes]:
    return dict(some_rows(request.param))


def test_sound_rows_of_every_table_have_no_findings(rows: dict[bytes, bytes]) -> None:
    of_messages = {MESSAGE, CLOCK, DELAYED, GROUP, GROUP_LINE, HEAD, LEASE, SPAN}
    assert {key[8:9] for key in rows} >= of_messages | {QUEUE}

    assert findings(store_of(rows)) == []


def test_the_rows_of_this_test_have_remembered_ids_and_aliases() -> None:
    assert keys_of(some_rows(".fifo"), REMEMBERED)
    assert keys_of(some_rows(""), ALIAS)


def test_whatever_row_is_missing_is_found(rows: dict[bytes, bytes]) -> None:
    unseen = []
    for key in rows:
        if key[8:9] == REMEMBERED:  # no other row shows that an id was sent
            continue
        if not findings(store_of({other: rows[other] for other in rows if other != key})):
            unseen.append((TABLES[key[8:9]].name, key.hex()))

    assert not unseen


def test_whatever_byte_of_a_value_is_changed_is_found_at_its_key(rows: dict[bytes, bytes]) -> None:
    for key, value in rows.items():
        if not value or key[8:9] == HEAD:
            continue
        for place in (0, 1, 5, len(value) - 1):
            changed = value[:place] + bytes([value[place] ^ 4]) + value[place + 1 :]
            found = list(check_rows(store_of({key: changed})))
            assert [each.key for each in found if isinstance(each, Finding)] == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (row_key(QUEUE_ID, LEASE, 900), encode_row(Lease(900, 1, 1, 0, 1, 1))),
        (pair_key(QUEUE_ID, CLOCK, 5, 900), b""),
        (row_key(QUEUE_ID, ALIAS, 900), encode_row(901)),
        (row_key(QUEUE_ID, SPAN, 77), encode_row(3)),
        (row_key(QUEUE_ID, HEAD, 1 << 40), bytes(16)),
        (row_key(QUEUE_ID, MESSAGE, 1 << 40), encode_row(StoredMessage("id", 1, 1, b"x"))),
        (queue_key(QUEUE_ID)[:8] + GROUP + bytes(16), encode_row(GroupRow(count=1, first=1))),
        (queue_key(QUEUE_ID)[:8] + GROUP_LINE + bytes(16) + bytes(7) + b"\1", b""),
        (row_key(77, MESSAGE, 1), encode_row(StoredMessage("id", 1, 1, b"x"))),
    ],
    ids=["lease", "clock", "alias", "span", "head", "message", "group", "line", "queue"],
)
def test_row_too_many_is_found(rows: dict[bytes, bytes], key: bytes, value: bytes) -> None:
    assert findings(store_of(rows | {key: value}))


def test_a_finding_names_what_is_stored_and_what_it_must_be() -> None:
    rows = some_rows("")
    own = queue_key(QUEUE_ID)
    row = decode_row(QueueRow, own, rows[own])
    wrong = msgspec.structs.replace(row, waiting=row.waiting + 3, listed=row.listed + 1)
    span = next(key for key in keys_of(rows, SPAN) if queue_of(key) == QUEUE_ID)
    astray = row_key(QUEUE_ID, SPAN, 7)
    count = decode_row(int, span, rows[span])
    changed = {own: encode_row(wrong), span: encode_row(count + 1), astray: encode_row(1)}

    found = {each.key: each.what for each in check_queue(store_of(rows | changed), QUEUE_ID)}

    assert found == {
        own: f"waiting is {row.waiting + 3}, not {row.waiting}, "
        f"listed is {row.listed + 1}, not {row.listed}",
        span: f"it is {count + 1}, not {count}",
        astray: "no message requires it",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (bytes(9), b""),
        (queue_key(1) + b"\0", encode_row(QueueRow(1, 1, 0, 0))),
        (row_key(1, HEAD, 4), bytes(15)),
        (pair_key(1, CLOCK, 4, 4), b"x"),
        (row_key(1, LEASE, 4), encode_row(Lease(5, 1, 1, 0, 1, 1))),
        (row_key(1, MESSAGE, 4), b""),
        (b"\1", b""),
    ],
    ids=["table", "length", "head", "clock", "other lease", "empty", "short"],
)
def test_row_that_no_table_has_is_damaged(key: bytes, value: bytes) -> None:
    with pytest.raises(DamagedRecord):
        check_row(key, value)


@pytest.mark.parametrize(
    "field", ["waiting", "delayed", "listed", "aliases", "next_sequence", "low_water"]
)
def test_counter_that_is_off_is_found_at_the_queue(field: str) -> None:
    rows = dict(some_rows(""))
    key = queue_key(QUEUE_ID)
    row = decode_row(QueueRow, key, rows[key])
    off = {"next_sequence": 3, "low_water": 1 << 30}.get(field, getattr(row, field) + 1)
    rows[key] = encode_row(msgspec.structs.replace(row, **{field: off}))

    found = findings(store_of(rows))

    assert {each.queue_id for each in found} == {QUEUE_ID}


class Unreadable(MemoryStore):
    """Rows of which some stretches cannot be read, as a damaged block is."""

    def __init__(self, *stretches: tuple[int, int]) -> None:
        super().__init__()
        self.rows = {row_key(1, MESSAGE, number): b"" for number in range(100)}
        self.stretches = stretches

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(begin, end):
            if any(first <= int.from_bytes(key[9:]) < last for first, last in self.stretches):
                raise DamagedRecord(begin, "a block is damaged")
            yield key, value


@pytest.mark.parametrize(
    "stretches", [[(0, 10)], [(40, 60)], [(95, 100)], [(0, 100)], [(10, 20), (70, 71)], []]
)
def test_walk_goes_on_behind_what_cannot_be_read(stretches: list[tuple[int, int]]) -> None:
    rows = Unreadable(*stretches)

    walked = list(walk_rows(rows))

    damage = [each for each in walked if isinstance(each, DamagedRecord)]
    read = [each[0] for each in walked if not isinstance(each, DamagedRecord)]
    lost = {number for first, last in stretches for number in range(first, last)}
    assert read == [row_key(1, MESSAGE, number) for number in range(100) if number not in lost]
    assert len(damage) == len(stretches)
