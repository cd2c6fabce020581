"""Searches of the archive: the table and the segments beside it, in order, page by page."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sqs_api.archiving import lake_search
from sqs_api.archiving.archive_search import ArchiveSearch, Place, read_place
from sqs_api.archiving.lake_questions import ArchivedMessages
from sqs_api.archiving.lake_search import search
from sqs_api.tests.archived import BEGUN, SOURCE, archived, search_here, write_segment, write_table
from storage.lake.table import Lake, LakeUnusable
from visibility.contract.move_task import MessageFilter


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def wanted(**given: Any) -> ArchiveSearch:
    base: dict[str, Any] = {"lake": "", "account": "0" * 12, "region": "us-east-1", "queue": "q"}
    return ArchiveSearch(**base | {"limit": 100} | given)


def positions(lake: Lake, **given: Any) -> list[int]:
    """Positions of the messages on all pages."""
    found: list[int] = []
    after: Place | None = None
    while True:
        page = search(lake, wanted(after=after, **given))
        assert len(page.rows) <= given.get("limit", 100)
        found += [row.place.position for row in page.rows]
        if page.next is None:
            return found
        after = page.next


def test_the_latest_come_first_from_table_and_segments(lake: Lake) -> None:
    rows = [archived(position) for position in range(1, 41)]
    write_table(lake, rows[0:30:2])
    write_table(lake, rows[1:30:2])
    write_segment(lake, [row | {"batch": 2} for row in rows[30:]])

    assert positions(lake) == list(range(40, 0, -1))
    assert positions(lake, limit=7) == list(range(40, 0, -1))
    assert positions(lake, limit=7, oldest_first=True) == list(range(1, 41))


def test_similar_names_are_told_of_a_queue_that_is_not_there(lake: Lake) -> None:
    others = ["orders", "orders-eu", "mails"]
    rows = [archived(number, queue=name) for number, name in enumerate(others, 1)]
    write_table(lake, [*rows, archived(9, queue="ordered", account="1" * 12)])
    write_segment(lake, [archived(10, batch=2, queue="waiting")])

    assert search(lake, wanted(queue="ordres")).near == ["orders", "orders-eu"]
    assert search(lake, wanted(queue="something-else")).near == []
    assert search(lake, wanted(queue="waiting")).near is None
    assert search(lake, wanted(queue="orders", filter=MessageFilter(text="nowhere"))).near is None


def test_a_queue_that_a_file_may_have_which_was_not_read_is_not_told_to_be_unknown(
    lake: Lake,
) -> None:
    write_table(lake, [archived(1, queue="orders")])
    write_segment(lake, [archived(2, batch=2, queue="waiting")])
    later = MessageFilter(sent_from_ms=int(BEGUN.timestamp() * 1000) + 86_400_000)

    assert search(lake, wanted(queue="waiting", filter=later)).near is None
    assert search(lake, wanted(queue="orders", filter=later)).near is None


def test_a_batch_that_is_in_the_table_is_seen_once(lake: Lake) -> None:
    rows = [archived(position) for position in range(1, 6)]
    write_segment(lake, rows)
    write_table(lake, rows, batch=1)

    assert positions(lake) == [5, 4, 3, 2, 1]


def test_pages_end_at_a_number_of_bytes_and_go_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_search, "READ_BYTES_MAX", 1)
    write_segment(lake, [archived(position) for position in range(1, 41)], row_group_size=5)
    first = search(lake, wanted(filter=MessageFilter(text="nowhere")))

    assert first.scanned < 40
    assert first.next is not None
    for oldest_first in (False, True):
        expected = sorted(range(1, 41), reverse=not oldest_first)
        assert positions(lake, oldest_first=oldest_first) == expected


def test_messages_of_one_instant_are_all_seen(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_search, "READ_BYTES_MAX", 1)
    write_segment(lake, [archived(at, sent_at=BEGUN) for at in range(1, 21)], row_group_size=3)

    for limit in (1, 4, 100):
        assert sorted(positions(lake, limit=limit)) == list(range(1, 21))


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"message_id": "id-0012"}, [12]),
        ({"text": '"N": 7'}, [7]),
        ({"json": "n=9"}, [9]),
        ({"attribute": "tenant=t6"}, [6]),
        ({"received_min": 3}, [19, 15, 11, 7, 3]),
        ({"source": "orders"}, [5]),
        ({"group": "g"}, [4]),
        (
            {
                "sent_from_ms": int((BEGUN + timedelta(seconds=30)).timestamp() * 1000),
                "sent_until_ms": int((BEGUN + timedelta(seconds=36)).timestamp() * 1000),
            },
            [11, 10],
        ),
    ],
)
def test_messages_are_chosen(lake: Lake, criteria: dict[str, Any], expected: list[int]) -> None:
    rows = [archived(position) for position in range(1, 20)]
    rows[3] |= {"message_group_id": "g"}
    rows[4] |= {"dead_letter_queue_source_arn": "arn:aws:sqs:us-east-1:000000000000:orders"}
    write_table(lake, rows)

    assert positions(lake, filter=MessageFilter(**criteria)) == expected


def test_messages_are_chosen_by_place_and_reason(lake: Lake) -> None:
    rows = [archived(at, reason="deleted" if at == 3 else "expired") for at in range(1, 20)]
    write_table(lake, rows)
    place = search(lake, wanted(limit=1, filter=MessageFilter(message_id="id-0007"))).rows[0].place

    assert positions(lake, places=(place,)) == [7]
    assert positions(lake, reason="deleted") == [3]
    assert read_place(str(place)) == place


def test_other_queues_accounts_and_regions_are_not_seen(lake: Lake) -> None:
    others = [{"queue": "r"}, {"account": "1" * 12}, {"region": "eu-west-1"}, {}]
    rows = [archived(at, **given) for at, given in enumerate(others, 1)]
    write_table(lake, rows)
    write_segment(lake, [row | {"batch": 2, "position": row["position"] + 10} for row in rows])

    assert positions(lake) == [14, 4]


def test_contents_are_shown_cut_sealed_or_found_damaged(lake: Lake) -> None:
    sealed = archived(2, body=None, attributes=None, sealed=b"x", data_key=1)
    write_table(lake, [archived(1, body="y" * 50), sealed, archived(3, checksum=7)])

    damaged, hidden, long = search(lake, wanted(body_max=10)).rows

    assert (long.body, long.is_cut, long.is_damaged) == ("y" * 10, True, False)
    assert (hidden.body, hidden.is_sealed, hidden.is_damaged) == (None, True, False)
    assert damaged.is_damaged
    assert damaged.extras.attributes == {"tenant": ("String", b"t3"), "raw": ("Binary", b"\0\xff")}


def test_values_of_attributes_are_cut_like_bodies(lake: Lake) -> None:
    text = {"data_type": "String", "string_value": "é" * 50, "binary_value": None}
    data = {"data_type": "Binary.png", "string_value": None, "binary_value": bytes(50)}
    write_table(lake, [archived(3, attributes=[("text", text), ("data", data)])])

    (cut,), (none,), (whole,) = (search(lake, wanted(body_max=n)).rows for n in (10, 0, None))

    kinds = ("String", "Binary.png")
    for row, size in ((cut, 10), (none, 0), (whole, 50)):
        values = ("é" * size).encode(), bytes(size)
        expected = dict(zip(("text", "data"), zip(kinds, values, strict=True), strict=True))
        assert row.extras.attributes == expected
    assert (cut.body, cut.is_cut, whole.is_cut) == (whole.body, True, False)


def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The files whose footers are read from now on."""
    opened: list[Any] = []
    read = pq.read_metadata

    def read_metadata(file: Any) -> Any:
        opened.append(file)
        return read(file)

    monkeypatch.setattr(pq, "read_metadata", read_metadata)
    return opened


async def test_segments_that_cannot_match_are_opened_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_here(monkeypatch)
    opened = opened_files(monkeypatch)
    for batch in range(1, 4):
        rows = [archived(10 * batch + number, batch=batch) for number in range(3)]
        write_segment(lake, rows)
    archive = ArchivedMessages(lake.url, keys=())
    first_ms = int((BEGUN + timedelta(seconds=90)).timestamp() * 1000)
    latest = wanted(lake=lake.url, filter=MessageFilter(sent_from_ms=first_ms))

    assert len((await archive.search(latest)).rows) == 3
    assert len(opened) == 3
    found = await archive.search(latest)
    assert (len(found.rows), len(opened)) == (3, 4)

    write_table(lake, [archived(10)], batch=2)
    found = await archive.search(latest)
    assert [path.rpartition("-")[2] for path in found.spans] == ["000000000003.parquet"]


def test_a_lake_without_archive_is_empty(lake: Lake) -> None:
    assert positions(lake) == []


def test_a_file_that_is_damaged_is_reported(lake: Lake) -> None:
    write_segment(lake, [archived(1)])
    (segment,) = Path(lake.url).glob("segments/*/*/*.parquet")
    segment.write_bytes(b"PAR1" + bytes(100) + b"PAR1")

    with pytest.raises(LakeUnusable):
        positions(lake)


@pytest.mark.parametrize("text", ["", "1", "1.a.0", f"1.{SOURCE}.0.-1", f"x.{SOURCE}.0.1"])
def test_other_texts_are_no_places(text: str) -> None:
    assert read_place(text) is None
