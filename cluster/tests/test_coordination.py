"""The contract of every implementation of coordination. Later ones join the list."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cluster.coordination.coordination import (
    EMPTY,
    RECORDS_MAX,
    Change,
    Conflict,
    Coordination,
    Done,
    Record,
    Snapshot,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.tests.coordinations import KINDS, opened, until
from storage.copies.checked_database import check_copy, check_database
from storage.copies.second_copy import copy_of, look
from storage.tests.test_failing_disk import full_disk


@pytest.fixture(params=KINDS)
async def coordination(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Coordination]:
    def endpoints() -> tuple[str, ...]:
        found: tuple[str, ...] = request.getfixturevalue("etcd").endpoints
        return found

    async with opened(request.param, tmp_path, endpoints) as made:
        yield made


def change(**records: bytes | None) -> Transaction:
    return Transaction({}, records)


async def done(coordination: Coordination, transaction: Transaction) -> int:
    """The revision of a transaction that has to happen."""
    outcome = await coordination.commit(transaction)
    assert isinstance(outcome, Done), outcome
    return outcome.revision


async def snapshot(coordination: Coordination) -> Snapshot:
    found = await coordination.read_all()
    assert isinstance(found, Snapshot), found
    return found


async def read(coordination: Coordination) -> list[tuple[str, bytes, int]]:
    return [(*record,) for record in (await snapshot(coordination)).records]


async def heard_up_to(heard: list[Change], revision: int) -> None:
    """Wait until a watch has reported a revision."""
    await until(lambda: bool(heard) and heard[-1].revision >= revision)


def told(heard: list[Change]) -> list[tuple[int, dict[str, bytes | None]]]:
    """The changes without those that only say that there were none."""
    return [(each.revision, dict(each.records)) for each in heard if each.records]


async def test_a_transaction_changes_all_its_records_under_one_revision(
    coordination: Coordination,
) -> None:
    first = await done(coordination, change(a=b"1", b=b"2"))
    second = await done(coordination, change(a=None, c=b"3"))

    assert second > first
    assert await read(coordination) == [("b", b"2", first), ("c", b"3", second)]
    assert (await snapshot(coordination)).revision >= second


async def test_a_value_is_any_bytes_and_a_key_any_text(coordination: Coordination) -> None:
    value = bytes(range(256)) * 40
    revision = await done(coordination, change(**{"a": b"", "a/\u00fc b": value}))

    assert await read(coordination) == [("a", b"", revision), ("a/\u00fc b", value, revision)]


async def test_a_condition_that_does_not_hold_changes_nothing(coordination: Coordination) -> None:
    first = await done(coordination, change(a=b"1"))
    for conditions in ({"a": 0}, {"a": first + 1}, {"b": first}, {"a": first, "b": first}):
        outcome = await coordination.commit(Transaction(conditions, {"a": b"2", "c": b"3"}))
        assert isinstance(outcome, Conflict)
        assert outcome.revision >= first
    assert await read(coordination) == [("a", b"1", first)]

    second = await done(coordination, Transaction({"a": first, "b": 0}, {"a": b"2"}))

    assert await read(coordination) == [("a", b"2", second)]


async def test_a_removed_record_counts_as_none(coordination: Coordination) -> None:
    first = await done(coordination, change(a=b"1"))
    await done(coordination, change(a=None))

    assert isinstance(await coordination.commit(Transaction({"a": first}, {"a": b"2"})), Conflict)
    await done(coordination, Transaction({"a": 0}, {"a": b"2"}))


async def test_one_of_those_who_want_the_same_gets_it(coordination: Coordination) -> None:
    wanted = [Transaction({"a": 0}, {"a": bytes([number])}) for number in range(10)]

    outcomes = await asyncio.gather(*[coordination.commit(each) for each in wanted])

    assert sorted(type(each).__name__ for each in outcomes) == ["Conflict"] * 9 + ["Done"]
    (winner,) = [number for number, each in enumerate(outcomes) if isinstance(each, Done)]
    assert [value for _, value, _ in await read(coordination)] == [bytes([winner])]


async def test_the_largest_transaction_is_one(coordination: Coordination) -> None:
    keys = [f"{number:03}" for number in range(2 * RECORDS_MAX)]
    await done(coordination, Transaction({}, dict.fromkeys(keys[:RECORDS_MAX], b"1")))
    found = await snapshot(coordination)

    conditions = {record.key: record.revision for record in found.records}
    revision = await done(
        coordination, Transaction(conditions, dict.fromkeys(keys[RECORDS_MAX:], b"2"))
    )

    assert (await read(coordination))[RECORDS_MAX:] == [
        (key, b"2", revision) for key in keys[RECORDS_MAX:]
    ]


async def test_all_pages_of_a_read_are_of_one_revision(coordination: Coordination) -> None:
    keys = [f"{number:02}" for number in range(40)]
    at = await done(coordination, Transaction({}, dict.fromkeys(keys, b"0")))

    async def count() -> None:
        nonlocal at
        for number in range(1, 20):
            value = bytes([number])
            conditions = dict.fromkeys(keys, at)
            at = await done(coordination, Transaction(conditions, dict.fromkeys(keys, value)))

    counting = asyncio.create_task(count())
    while not counting.done():
        await asyncio.sleep(0)
        found = await snapshot(coordination)
        assert [record.key for record in found.records] == keys
        assert len({(record.value, record.revision) for record in found.records}) == 1
    await counting


async def test_a_read_of_some_records_finds_those_that_exist(coordination: Coordination) -> None:
    first = await done(coordination, change(a=b"1", b=b"2", c=b"3"))
    second = await done(coordination, change(b=None, c=b"4"))

    found = await coordination.read(["c", "a", "b", "d"])

    assert isinstance(found, Snapshot), found
    assert found.records == [Record("a", b"1", first), Record("c", b"4", second)]
    assert found.revision >= second
    nothing = await coordination.read([])
    assert isinstance(nothing, Snapshot)
    assert nothing.records == []


async def test_a_read_of_some_records_is_of_one_revision(coordination: Coordination) -> None:
    keys = [f"{number:03}" for number in range(RECORDS_MAX)]
    at = await done(coordination, Transaction({}, dict.fromkeys(keys, b"0")))

    async def count() -> None:
        nonlocal at
        for number in range(1, 20):
            changes = dict.fromkeys(keys, bytes([number]))
            at = await done(coordination, Transaction({"000": at}, changes))

    counting = asyncio.create_task(count())
    while not counting.done():
        await asyncio.sleep(0)
        found = await coordination.read(keys)
        assert isinstance(found, Snapshot), found
        assert [record.key for record in found.records] == keys
        assert len({(record.value, record.revision) for record in found.records}) == 1
    await counting


async def test_a_watch_reports_each_change_once_in_order(coordination: Coordination) -> None:
    heard: list[Change] = []
    first = await done(coordination, change(a=b"1"))
    await coordination.watch(await snapshot(coordination), heard.append)

    revisions = [await done(coordination, change(a=bytes([number]))) for number in range(5)]
    await coordination.commit(Transaction({"a": 0}, {"a": b"refused"}))
    revisions.append(await done(coordination, change(a=None, b=b"")))
    await heard_up_to(heard, revisions[-1])

    values = [{"a": bytes([number])} for number in range(5)]
    assert told(heard) == list(zip(revisions, [*values, {"a": None, "b": b""}], strict=True))
    assert revisions[0] > first


async def test_a_watch_begins_with_what_came_after_its_snapshot(coordination: Coordination) -> None:
    first: list[Change] = []
    second: list[Change] = []
    begin = EMPTY._replace(revision=(await snapshot(coordination)).revision)
    revisions = [await done(coordination, change(a=b"1"))]
    found = await snapshot(coordination)
    revisions.append(await done(coordination, change(a=b"2", b=b"3")))

    await coordination.watch(begin, first.append)
    await coordination.watch(found, second.append)
    await heard_up_to(first, revisions[-1])
    await heard_up_to(second, revisions[-1])

    assert told(second) == [(revisions[1], {"a": b"2", "b": b"3"})]
    assert told(first)[-1] == told(second)[0]


async def test_a_watch_that_begins_amid_changes_misses_none(coordination: Coordination) -> None:
    heard: list[Change] = []
    await done(coordination, change(a=b"1"))
    after = await snapshot(coordination)

    outcomes = await asyncio.gather(
        *[coordination.commit(change(b=bytes([number]))) for number in range(5)],
        coordination.commit(change(a=None)),
        coordination.watch(after, heard.append),
        *[coordination.commit(change(c=bytes([number]))) for number in range(5)],
    )
    made = [each.revision for each in outcomes if isinstance(each, Done)]
    await heard_up_to(heard, max(made))

    merged: dict[str, bytes | None] = {"a": b"1"}
    for each in heard:
        merged |= each.records
    reported = [revision for revision, _ in told(heard)]
    assert reported == sorted(set(reported) & set(made))
    assert len(made) == 11
    left = {key: value for key, value in merged.items() if value is not None}
    assert left == {key: value for key, value, _ in await read(coordination)}


async def test_a_commit_whose_caller_is_gone_is_reported_all_the_same(
    coordination: Coordination,
) -> None:
    heard: list[Change] = []
    await coordination.watch(await snapshot(coordination), heard.append)
    commit = asyncio.create_task(coordination.commit(change(a=b"1")))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.wait([commit])

    await until(lambda: [records for _, records in told(heard)] == [{"a": b"1"}])


# -- SQLite only -----------------------------------------------------------------------------------


async def test_records_and_revisions_stay_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "catalog.sqlite"
    coordination = await SqliteCoordination.open(file)
    await coordination.commit(change(a=b"1", b=b"2"))
    await coordination.commit(change(b=None))
    await coordination.close()

    coordination = await SqliteCoordination.open(file)

    assert await snapshot(coordination) == Snapshot(2, [Record("a", b"1", 1)])
    assert await coordination.commit(change(b=b"3")) == Done(3)
    await coordination.close()


async def test_what_the_disk_refuses_did_not_happen(tmp_path: Path) -> None:
    file = tmp_path / "catalog.sqlite"
    coordination = await SqliteCoordination.open(file)
    await coordination.commit(change(a=b"1"))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        (pages,) = other.execute("PRAGMA page_count").fetchone()
    await coordination._in_thread(
        lambda: coordination._database.execute(f"PRAGMA main.max_page_count = {pages}").fetchall()
    )

    refused = await coordination.commit(change(a=b"2", large=bytes(100_000)))

    assert isinstance(refused, Unavailable)
    assert "full" in refused.reason
    assert await snapshot(coordination) == Snapshot(1, [Record("a", b"1", 1)])
    await coordination.close()


class FailsAfterCommit:
    """A connection whose next commit fails although the file has it, as when there is no space for
    the second copy's part."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._fails = True
        self.executemany = database.executemany

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        found = self._database.execute(statement, *values)
        if statement == "COMMIT" and self._fails:
            self._fails = False
            raise sqlite3.OperationalError("database or disk is full")
        return found

    def __enter__(self) -> sqlite3.Connection:
        return self._database.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._database.__exit__(*raised)


async def test_a_commit_that_failed_in_the_second_copy_only_is_told(tmp_path: Path) -> None:
    """Else the view would lack it, and refuse each later change."""
    coordination = await SqliteCoordination.open(tmp_path / "catalog.sqlite")
    await coordination.commit(change(a=b"1"))
    heard = list[Change]()
    await coordination.watch(await snapshot(coordination), heard.append)
    database = coordination._database
    coordination._database = FailsAfterCommit(database)  # type: ignore[assignment]

    failed = await coordination.commit(change(b=b"2"))
    done = await coordination.commit(change(c=b"3"))

    assert isinstance(failed, Unknown)
    assert done == Done(3)
    assert heard == [Change(2, {"b": b"2"}), Change(3, {"c": b"3"})]
    await coordination.close()


async def test_a_second_copy_that_lacks_a_transaction_is_mended_before_the_next(
    tmp_path: Path,
) -> None:
    """Else it would be neither of before nor of after, and useless if one bit flips later."""
    file = tmp_path / "catalog.sqlite"
    coordination = await SqliteCoordination.open(file)
    for name in ("a", "b", "c"):
        await coordination.commit(change(**{name: bytes(5_000)}))
    await coordination._in_thread(
        lambda: coordination._database.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()
    )
    log = copy_of(file).with_name(f"{copy_of(file).name}-wal")

    with full_disk(log.stat().st_size + 2_000):
        refused = await coordination.commit(change(a=b"2", d=b"2"))
        assert isinstance(refused, Unknown)
        assert look(file, check_database).state != look(copy_of(file), check_copy).state
        again = await coordination.commit(change(e=b"3"))
        assert isinstance(again, Unavailable), "not before the copy is mended"
    assert isinstance(await coordination.commit(change(a=b"4", b=None)), Done)

    sound = look(file, check_database).state
    assert sound is not None
    assert look(copy_of(file), check_copy).state == sound
    there = await snapshot(coordination)
    await coordination.close()
    damaged = file.read_bytes()
    file.write_bytes(damaged[:5_000] + bytes([damaged[5_000] ^ 1]) + damaged[5_001:])
    coordination = await SqliteCoordination.open(file)
    assert await snapshot(coordination) == there
    await coordination.close()
