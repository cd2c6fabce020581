"""Damaged or missing files beside the shards: a second copy is used, or the start is refused."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cluster.copies.backup import back_up_closed
from cluster.copies.restore import restore
from cluster.copies.verify import FolderCheck
from sqs_api.node import start_node
from sqs_api.settings.config import Settings
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import run
from sqs_api.tests.served import Served, filled, names, serving
from storage.copies.manifest import BackupRefused
from storage.tests.on_disk import changing
from visibility.rows.row_keys import message_key

RECORDS = "records.sqlite"


def _refusal(data: Path) -> str:
    return asyncio.run(_start(data))


async def _start(data: Path) -> str:
    with pytest.raises(NodeRefused) as refused:
        await start_node(Settings(port=0, data=data))
    return str(refused.value)


def test_lost_records_are_not_replaced_by_new_ones(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    for file in data.glob("records.sqlite*"):
        file.unlink()

    assert "its records.sqlite is missing" in _refusal(data)


LOOP = "Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("name", "is_link", "reason"),
    [
        ("records.lock", False, "Is a directory"),
        ("records.lock", True, LOOP),
        ("records.sqlite", False, "Is a directory"),
        ("format.json", False, "Is a directory"),
        ("format.json", True, LOOP),
        ("audit.log", False, "Is a directory"),
        ("master.key", True, LOOP),
        ("shard-0", True, LOOP),
        ("shard-0.log/identity", False, "Is a directory"),
        ("shard-0.log/answered", True, LOOP),
        ("shard-0/CURRENT", False, "Is a directory"),
        ("shard-0/LOCK", True, LOOP),
    ],
)
def test_a_folder_or_a_link_in_the_place_of_a_file_is_named_in_one_line(
    tmp_path: Path, name: str, is_link: bool, reason: str
) -> None:
    data = filled(tmp_path / "data")
    place = data / name
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    if is_link:
        place.symlink_to(place.name)
    else:
        place.mkdir(mode=0o700)

    text = _refusal(data)

    assert reason in text
    assert "\n" not in text
    assert "accept-loss" not in text, "nothing is lost yet"


async def _served(data: Path) -> list[str]:
    """The bodies that a start on the folder serves."""
    async with serving(data) as served:
        bodies: list[str] = []
        for queue in ("q", "other"):
            answer = await served.call(
                "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=0
            )
            bodies += [message["Body"] for message in answer["Messages"]]
    return sorted(bodies)


def _places(file: Path) -> Iterator[int]:
    """Bytes that are certainly live: header, schema, last rows of the last page."""
    size = file.stat().st_size
    yield from (0, 18, 100, size - 1)


def test_a_flipped_bit_in_a_small_file_loses_no_queue_and_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = filled(tmp_path / "data")
    file = data / RECORDS
    for at in _places(file):
        flipped = bytearray(file.read_bytes())
        flipped[at] ^= 1 << at % 8
        file.write_bytes(flipped)

        assert asyncio.run(_served(data)) == ["a", "b", "c"], at
    lines = [line for line in caplog.messages if line.startswith("second_copy_used")]
    said = f"second_copy_used: {file} was written anew from {RECORDS}.copy: "
    assert lines
    assert all(line.startswith(said) for line in lines)


def test_a_small_file_of_which_both_copies_are_damaged_names_a_way_out(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    for file in (data / RECORDS, data / f"{RECORDS}.copy"):
        file.write_bytes(b"no database" * 1000)

    text = _refusal(data)

    assert str(data) in text
    assert f"{RECORDS}.copy is damaged too" in text
    assert "Restore a backup with holdfast restore" in text
    assert "\n" not in text


def test_a_backup_of_a_damaged_small_file_is_sound_and_its_restore_has_both_copies(
    tmp_path: Path,
) -> None:
    data = filled(tmp_path / "data")
    for damaged in (b"no database" * 1000, None):
        if damaged is None:
            (data / RECORDS).unlink()
        else:
            (data / RECORDS).write_bytes(damaged)
        target = tmp_path / f"backup {damaged is None}"
        made = back_up_closed(data, target, version="0", made_at_ms=0, with_master_key=True)
        restored = tmp_path / f"restored {damaged is None}"
        restore(target, restored)

        assert f"{RECORDS}.copy" not in {file.path for file in made.files}
        assert f"{RECORDS}.copy" in names(restored)
        assert not list(FolderCheck(restored).findings())
        assert asyncio.run(_served(restored)) == ["a", "b", "c"]


def test_no_backup_is_made_of_a_small_file_of_which_both_copies_are_damaged(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    for file in ("records.sqlite", "records.sqlite.copy"):
        (data / file).write_bytes(b"no database" * 1000)

    with pytest.raises(BackupRefused, match=r"records\.sqlite\.copy is damaged too"):
        back_up_closed(data, tmp_path / "backup", version="0", made_at_ms=0, with_master_key=False)

    assert names(tmp_path / "backup") == set()


async def _quarantined(served: Served) -> tuple[float, str, set[str]]:
    """Values of the first queue: the metric, the count that clients see, and the bodies they can
    receive."""
    bodies = set(await served.receive("q"))
    names = ["ApproximateNumberOfMessages"]
    counts = await served.call("GetQueueAttributes", QueueUrl="q", AttributeNames=names)
    page = (await served.ask_page("GET", "metrics")).body.decode()
    (metric,) = re.findall(r'^holdfast_messages_quarantined{.*queue="q".*} (\S+)$', page, re.M)
    return float(metric), counts["Attributes"]["ApproximateNumberOfMessages"], bodies


async def test_a_damaged_message_is_quarantined_with_its_count_until_a_purge(
    tmp_path: Path,
) -> None:
    data = await asyncio.to_thread(filled, tmp_path / "data")
    with changing(data / "shard-0") as changes:
        changes.put(message_key(1, 1), b"\x01rubbish")

    with structlog.testing.capture_logs() as logs:
        async with serving(data) as served:
            assert await _quarantined(served) == (1, "0", {"b"})
    (said,) = [line for line in logs if line["event"] == "damage_found"]
    assert (said["queue"], said["messages_quarantined"], said["log_level"]) == ("q", 1, "error")

    with structlog.testing.capture_logs() as logs:
        async with serving(data) as served:
            assert await _quarantined(served) == (1, "0", set())
            verified = await asyncio.to_thread(run, "verify", data)
            assert "shard 0, queue 1 (q): 1 messages are quarantined" in verified.out.splitlines()
            assert verified.status == 1
            await served.call("PurgeQueue", QueueUrl="q")
            assert await _quarantined(served) == (0, "0", set())
    assert "damage_found" not in [line["event"] for line in logs], "it is known"


async def _quarantined_and_kept(served: Served) -> float:
    page = (await served.ask_page("GET", "metrics")).body.decode()
    (metric,) = re.findall(r"^holdfast_kept_messages_quarantined (\S+)$", page, re.M)
    return float(metric)


async def test_a_restore_leaves_damaged_messages_behind_and_names_their_queue(
    tmp_path: Path,
) -> None:
    data = await asyncio.to_thread(filled, tmp_path / "data")
    with changing(data / "shard-0") as changes:
        changes.put(message_key(1, 1), b"\x01rubbish")

    with structlog.testing.capture_logs() as logs:
        async with serving(data) as served:
            await served.call("PurgeQueue", QueueUrl="q")
            (purged,) = served.node.owner.catalog.kept
            await served.node.owner.deletions.restore(purged.queue.queue_id)
            assert set(await served.receive("q")) == {"b"}
            assert await _quarantined_and_kept(served) == 1
    (said,) = [line for line in logs if line["event"] == "messages_not_restored"]
    assert (said["queue"], said["messages"]) == ("q", 1)
