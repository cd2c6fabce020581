"""Below the reserve sends are refused, receives and deletes work, and the state does not flap."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs

from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.measures import StallWatch
from sqs_api.settings.config import Settings
from sqs_api.settings.reserve import check_reserve, flush_bytes
from sqs_api.tests.serving import json_request, running
from storage.engines.store_options import FLUSH_BYTES
from storage.files.folder import FolderRefused
from visibility.contract import operations as op
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.resend import ResendMessage
from visibility.rules.transactions import FindTransaction, TransactMessages


class Disk:
    """A disk whose free space a test sets."""

    free = 0
    asked = 0

    def statvfs(self, folder: Path) -> SimpleNamespace:
        self.asked += 1
        if self.free < 0:
            raise OSError("gone")
        return SimpleNamespace(f_bavail=self.free, f_frsize=1, f_blocks=3000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


def _seen(disk: Disk, space: DiskSpace, *free: int) -> list[bool]:
    states = []
    for disk.free in free:
        space.look()
        states.append(space.is_short)
    return states


def test_it_is_short_below_the_reserve_until_there_is_a_tenth_more(disk: Disk) -> None:
    space = DiskSpace(Path("/"), 1000)

    assert _seen(disk, space, 1000, 999, 1000, 1099, 1100, 1000, 999) == [
        *(False, True, True, True, False, False, True)
    ]


def test_without_a_reserve_there_is_always_enough(disk: Disk) -> None:
    assert _seen(disk, DiskSpace(Path("/"), 0), 1, 0) == [False, False]


def test_it_knows_if_half_of_the_disk_is_free(disk: Disk) -> None:
    space = DiskSpace(Path("/"), 0)
    halves = []
    for disk.free in (1500, 1499, 1500):
        space.look()
        halves.append(space.has_much_space())

    assert halves == [True, False, True]


def test_it_looks_less_often_the_more_is_free(disk: Disk) -> None:
    space = DiskSpace(Path("/"), 1000)

    def looks(free: int, count: int = 40) -> int:
        disk.free, before = free, disk.asked
        for _ in range(count):
            space.look_if_due(0.05, can_grow=True)
        return disk.asked - before

    assert looks(2000) == 40, "it may be full at the next moment"
    assert looks(500) == 40, "it is short"
    assert looks(1 << 40) <= 3, "once a second"
    assert looks(2000) >= 20, "seen within a second"
    disk.free = 1 << 40
    space.look()
    space.look_if_due(0.05, can_grow=False)
    assert space.is_short, "seen at once"


def test_a_disk_that_cannot_be_asked_changes_nothing(disk: Disk) -> None:
    space = DiskSpace(Path("/"), 1000)

    with capture_logs() as logs:
        assert _seen(disk, space, 1, -1, -1, -1, 2, -1) == [True] * 6

    told = [line["event"] for line in logs]
    assert told == ["disk_short_sends_refused", "disk_unreadable", "disk_unreadable"]


async def test_a_short_disk_refuses_what_takes_space_and_nothing_else() -> None:
    async with running() as service:
        url = await service.make_queue()
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
        service.disk.is_short = True

        for action, members in (
            ("SendMessage", {"QueueUrl": url, "MessageBody": "y"}),
            ("SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "1", "MessageBody": "y"}]}),
        ):
            answer = await service.ask(json_request(action, **members))
            assert answer.status == 503
            assert answer.headers["x-amzn-query-error"] == "ServiceUnavailable;Receiver"
        received = await service.call("ReceiveMessage", QueueUrl=url)
        handle = received["Messages"][0]["ReceiptHandle"]
        await service.call(
            "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0
        )
        received = await service.call("ReceiveMessage", QueueUrl=url)
        handle = received["Messages"][0]["ReceiptHandle"]
        await service.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
        await service.call("PurgeQueue", QueueUrl=url)
        assert service.disk.refused == 2

        service.disk.is_short = False
        await service.call("SendMessage", QueueUrl=url, MessageBody="y")


_ARRIVAL = Arrival(b"origin", 1, 1, "arn", StoredMessage("id", 1, 1, b"a"))


@pytest.mark.parametrize(
    "takes",
    [
        op.SendMessage(),
        MoveSelected(),
        ResendMessage(),
        AcceptMessages([_ARRIVAL], [(b"origin", 1)]),
        TransactMessages([], b"", b""),
        FindTransaction(b"", b"", takes_space=True),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_an_operation_that_takes_space_is_refused_while_there_is_little(
    disk: Disk, takes: op.Operation
) -> None:
    space = DiskSpace(Path("/"), 1000)
    question = AcceptMessages([msgspec.structs.replace(_ARRIVAL, asks=True)])
    others = [
        op.ReceiveMessage(),
        AcceptMessages([], [(b"origin", 2)]),
        question,
        TransactMessages([], b"", b"", takes_space=False),
        FindTransaction(b"", b""),
    ]

    _seen(disk, space, 1000)
    assert [space.refusal(each) for each in (takes, *others)] == [None] * 6
    _seen(disk, space, 1)
    assert isinstance(space.refusal(takes), ServiceUnavailable)
    assert [space.refusal(each) for each in others] == [None] * 5
    assert space.refused == 1


def test_queues_can_be_made_down_to_half_of_the_reserve(disk: Disk) -> None:
    space = DiskSpace(Path("/"), 1000)

    refused = []
    for disk.free in (1000, 999, 500, 499):
        space.look()
        refused.append(space.refuses(op.CreateQueue))

    assert refused == [False, False, False, True]
    assert space.refuses(op.SendMessage)


@pytest.mark.parametrize(("shards", "least"), [(1, 32), (2, 32), (3, 48), (16, 256)])
def test_a_reserve_that_the_log_needs_itself_is_refused(shards: int, least: int) -> None:
    check_reserve(Settings(disk_reserve_mib=least), shards)
    with pytest.raises(FolderRefused, match=f"disk_reserve_mib: must be at least {least} "):
        check_reserve(Settings(disk_reserve_mib=least - 1), shards)


def test_rows_are_flushed_while_half_of_the_reserve_has_room_for_them() -> None:
    assert flush_bytes(Settings(disk_reserve_mib=128)) == FLUSH_BYTES
    assert flush_bytes(Settings(disk_reserve_mib=32)) == 16 << 20


def test_stalls_are_counted_and_the_longest_is_kept() -> None:
    watch = StallWatch(lambda: 0.0)

    for late_s in (0.0, 0.002, 1.5, 0.2):
        watch.note(late_s)

    assert watch.longest_s == 1.5
    assert (watch.late_s.count, watch.late_s.buckets[-1]) == (4, 1)
