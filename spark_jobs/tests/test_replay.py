"""Replay from an archive in a folder to a service in a separate process, through boto3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Members, create_fifo_queue, receive
from compat_tests.node_process import NodeProcess
from spark_jobs.archive.delta_archive import read_archive
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.spark import OpenSession
from spark_jobs.replay.ledger import Ledger
from spark_jobs.replay.replay import Plan, Sending, Tally, dry_run, find, run_replay, send_all
from spark_jobs.replay.replay_claim import Claim, Timing
from spark_jobs.replay.selection import Selection, in_order, selected_files
from spark_jobs.replay.sending import Destination, Message, Rate, find_destination
from spark_jobs.tests import replaying
from spark_jobs.tests.archives import BEGINNING, Row, archived, attributes, write_archive
from spark_jobs.tests.buckets import bucket
from storage.lake.table import Lake

_numbers = itertools.count(1)


def destination_of(sqs: Boto3Client, url: str) -> Destination:
    answer = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    return Destination(sqs.client, url, answer["Attributes"]["QueueArn"])


@pytest.fixture
def orders(sqs: Boto3Client) -> Destination:
    """A standard queue."""
    answer = sqs.call("CreateQueue", QueueName=f"orders-{next(_numbers)}")
    return destination_of(sqs, answer["QueueUrl"])


@pytest.fixture
def fifo(sqs: Boto3Client) -> Destination:
    """A FIFO queue."""
    return destination_of(sqs, create_fifo_queue(sqs, f"orders-{next(_numbers)}"))


class Run(NamedTuple):
    """The output and result of a run. The summary is that of a queue `orders`."""

    summary: str
    tally: Tally
    warnings: list[str]


Replay = Callable[..., Run]


@pytest.fixture
def replay(open_session: OpenSession, lake: Lake) -> Replay:
    """Replays the queue `orders`."""

    def run(destination: Destination, selection: Selection | None = None, **plan: Any) -> Run:
        warnings: list[str] = []
        made = plan_of(lake, destination, selection, **plan)
        summary, tally = run_replay(made, open_session, warnings.append)
        return Run(summary.replace(destination.queue, "orders"), tally, warnings)

    return run


def plan_of(
    lake: Lake, destination: Destination, selection: Selection | None = None, **plan: Any
) -> Plan:
    selection = selection or Selection("orders")
    return Plan(lake, selection, selected_files(lake, selection), destination, **plan)


def take_all(sqs: Boto3Client, destination: Destination) -> list[Members]:
    """Every message of the queue, in the order of delivery; the queue is empty afterwards."""
    taken: list[Members] = []
    asked = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    while messages := receive(sqs, destination.url, **asked):
        taken += messages
        for message in messages:
            sqs.call(
                "DeleteMessage",
                QueueUrl=destination.url,
                ReceiptHandle=message["ReceiptHandle"],
            )
    return taken


def bodies(messages: list[Members]) -> list[str]:
    return [message["Body"] for message in messages]


def grouped(position: int, group: str, sequence: int, **columns: Any) -> Row:
    return archived(
        position,
        message_group_id=group,
        sequence_number=str(sequence),
        sent_at=BEGINNING,
        **columns,
    )


def test_messages_come_back_as_they_were(
    replay: Replay, lake: Lake, sqs: Boto3Client, orders: Destination
) -> None:
    kinds: dict[str, tuple[str, str | bytes]] = {
        "kind": ("String.foo", "karte ü"),
        "count": ("Number", "12.5"),
        "raw": ("Binary.png", b"\0\xff\x01"),
    }
    write_archive(
        lake,
        [
            archived(1, 'body "ä" \U0001f600\n', attributes=attributes(kinds)),
            archived(2, aws_trace_header="Root=1-5759e988", message_group_id="g"),
        ],
    )

    summary = replay(orders).summary

    first, second = sorted(take_all(sqs, orders), key=lambda message: str(message["Body"]))
    assert summary == "2 sent to orders, 0 refused, 0 sent before, 0 sealed"
    assert first["Body"] == 'body "ä" \U0001f600\n'
    assert first["MessageAttributes"] == {
        "kind": {"DataType": "String.foo", "StringValue": "karte ü"},
        "count": {"DataType": "Number", "StringValue": "12.5"},
        "raw": {"DataType": "Binary.png", "BinaryValue": b"\0\xff\x01"},
    }
    assert "AWSTraceHeader" not in first["Attributes"]
    assert "MessageGroupId" not in first["Attributes"]
    assert second["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"
    assert second["Attributes"]["MessageGroupId"] == "g"
    assert "MessageAttributes" not in second


def test_second_run_sends_what_the_first_did_not(
    replay: Replay, lake: Lake, sqs: Boto3Client, orders: Destination
) -> None:
    write_archive(lake, [archived(position) for position in range(25)])
    replay(orders, limit=12)
    first = bodies(take_all(sqs, orders))

    second_run = replay(orders)
    second = bodies(take_all(sqs, orders))
    third_run = replay(orders)

    assert set(first) == {f"m-{position}" for position in range(12)}
    assert set(second) == {f"m-{position}" for position in range(12, 25)}
    assert "13 sent to orders, 0 refused, 12 sent before" in second_run.summary
    assert "0 sent to orders, 0 refused, 25 sent before" in third_run.summary
    assert third_run.tally.requests == 0
    assert take_all(sqs, orders) == []


def test_another_name_or_queue_gets_them_again(
    replay: Replay, lake: Lake, orders: Destination, fifo: Destination
) -> None:
    write_archive(lake, [archived(1)])

    sent = [
        replay(destination, name=name).tally.sent
        for destination in (orders, fifo)
        for name in ("default", "default", "again")
    ]

    assert sent == [1, 0, 1, 1, 0, 1]


def test_groups_of_a_fifo_queue_keep_their_order(
    replay: Replay, lake: Lake, sqs: Boto3Client, fifo: Destination
) -> None:
    """The numbers have 9, 10 and 20 digits, and the files are written in the wrong order."""
    numbers = [999_999_998, 999_999_999, 1_000_000_000, 18_849_496_460_467_696_128]
    rows = [
        grouped(place * 10 + number, f"g-{number}", sequence, body=f"{number}: {place}")
        for place, sequence in enumerate(numbers)
        for number in range(3)
    ]
    write_archive(lake, reversed(rows))
    write_archive(lake, [archived(99, "alone")])

    replay(fifo)

    taken = take_all(sqs, fifo)
    of_groups: dict[str, list[str]] = {}
    for message in taken:
        group = of_groups.setdefault(message["Attributes"]["MessageGroupId"], [])
        group.append(message["Body"])
    assert of_groups == {
        **{f"g-{number}": [f"{number}: {place}" for place in range(4)] for number in range(3)},
        "id-99": ["alone"],
    }


def test_message_that_sqs_refuses_holds_back_what_follows_in_its_group(
    replay: Replay,
    lake: Lake,
    sqs: Boto3Client,
    fifo: Destination,
) -> None:
    sqs.call("SetQueueAttributes", QueueUrl=fifo.url, Attributes={"MaximumMessageSize": "1024"})
    write_archive(
        lake,
        [
            grouped(1, "a", 1),
            grouped(2, "a", 2, body="x" * 2_000),
            grouped(3, "a", 3),
            grouped(4, "b", 4),
        ],
    )

    summary, tally, warnings = replay(fifo)

    assert bodies(take_all(sqs, fifo)) == ["m-1", "m-4"]
    assert tally.refused == 1
    assert "2 sent to orders, 1 refused, 1 held back behind them, 0 sent before" in summary
    (warning,) = warnings
    assert warning.startswith("id-2 (position 2) is refused: InvalidParameterValue")

    sqs.call("SetQueueAttributes", QueueUrl=fifo.url, Attributes={"MaximumMessageSize": "4096"})
    replay(fifo)
    assert bodies(take_all(sqs, fifo)) == ["x" * 2_000, "m-3"]


def test_sealed_and_damaged_messages_are_not_sent(
    replay: Replay,
    lake: Lake,
    sqs: Boto3Client,
    orders: Destination,
) -> None:
    sealed = archived(2, sealed=b"\1\2", data_key=7) | {"body": None}
    write_archive(lake, [archived(1), sealed, archived(3, checksum=1), archived(4)])

    summary, tally, warnings = replay(orders)

    assert summary == "2 sent to orders, 1 refused, 0 sent before, 1 sealed"
    assert tally.refused == 1
    assert sorted(bodies(take_all(sqs, orders))) == ["m-1", "m-4"]
    assert warnings == ["id-3 (position 3) is refused: its checksum in the archive is wrong"]


def test_messages_of_the_largest_size_go_one_by_one(
    replay: Replay, lake: Lake, sqs: Boto3Client, orders: Destination
) -> None:
    size = (1 << 20) // 2 + 1
    write_archive(lake, [archived(position, "x" * size) for position in range(3)])

    tally = replay(orders).tally

    assert (tally.sent, tally.requests, tally.bytes) == (3, 3, 3 * size)
    assert [len(body) for body in bodies(take_all(sqs, orders))] == [size] * 3


def test_dry_run_counts_and_leaves_everything_alone(
    replay: Replay,
    open_session: OpenSession,
    lake: Lake,
    sqs: Boto3Client,
    orders: Destination,
) -> None:
    sealed = archived(2, sealed=b"\1\2") | {"body": None}
    write_archive(lake, [archived(1), sealed, *(archived(90_000 + n) for n in range(3))])
    replay(orders, limit=1)
    take_all(sqs, orders)
    files_before = lake.list("")
    plan = plan_of(lake, orders, rate=0.5)
    said: list[str] = []

    summary = dry_run(plan, open_session, said.append)

    assert summary == (
        f"dry run: 3 would be sent to {orders.arn}, 0.0 MB, 6 s at 0.5 a second, "
        "1 sent before, 1 sealed"
    )
    assert said == [
        "orders 2026-11-20: 0 to send, 0.0 MB, 1 sent before, 1 sealed",
        "orders 2026-11-21: 3 to send, 0.0 MB, 0 sent before, 0 sealed",
    ]
    assert lake.list("") == files_before
    assert take_all(sqs, orders) == []


@pytest.mark.slow
def test_archive_in_an_object_store_is_replayed_once(
    open_session: OpenSession, sqs: Boto3Client, orders: Destination
) -> None:
    kinds: dict[str, tuple[str, str | bytes]] = {"raw": ("Binary", b"\0\1"), "n": ("Number", "1")}
    with bucket() as store:
        write_archive(store, [archived(n, attributes=attributes(kinds)) for n in range(15)])
        sent = [
            run_replay(plan_of(store, orders, limit=limit), open_session, pytest.fail)[1].sent
            for limit in (12, None, None)
        ]
        files = [file.path.rsplit("/")[-2] for file in store.list("replays")]

    taken = take_all(sqs, orders)
    assert sent == [12, 3, 0]
    assert files == ["sent"]
    assert sorted(bodies(taken)) == sorted(f"m-{n}" for n in range(15))
    assert taken[0]["MessageAttributes"] == {
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
        "n": {"DataType": "Number", "StringValue": "1"},
    }


def test_run_beside_another_of_the_same_name_is_refused(
    replay: Replay, lake: Lake, orders: Destination
) -> None:
    write_archive(lake, [archived(1)])
    plan = plan_of(lake, orders)

    with Claim(lake, f"{plan.folder}/claims", "first", Timing(beat_s=0.05)):
        with pytest.raises(JobFailed, match="another run is active"):
            replay(orders)

        assert replay(orders, name="another").tally.sent == 1


def test_run_that_was_taken_over_sends_no_more(lake: Lake, orders: Destination) -> None:
    folder = "replays/orders/default"
    tally = Tally()

    def taken_over_after_a_request() -> Iterator[Message]:
        yield from map(replaying.message, range(11))
        lake.write(f"{folder}/claims/second.json", b'{"state": "holding"}')
        yield from map(replaying.message, range(11, 30))

    with Claim(lake, f"{folder}/claims", "first", Timing(beat_s=3_600, fresh_s=-1)) as claim:
        ledger = Ledger(lake, folder, "first")
        sending = Sending(orders, ledger, claim, Rate(None), "default", pytest.fail)
        with pytest.raises(JobFailed, match="took over"):
            send_all(taken_over_after_a_request(), sending, tally)

    assert tally.sent == ledger.read().num_rows == 10


def test_queue_that_is_gone_stops_the_run_in_one_line(
    replay: Replay, lake: Lake, sqs: Boto3Client, orders: Destination
) -> None:
    write_archive(lake, [archived(1)])
    sqs.call("DeleteQueue", QueueUrl=orders.url)

    with pytest.raises(JobFailed, match=r"accepts no more: .*NonExistentQueue.* \(0 sent"):
        replay(orders)


def test_order_holds_across_the_partitions_that_the_driver_takes(
    spark: SparkSession, lake: Lake
) -> None:
    rows = [archived(position) for position in range(200)]
    write_archive(lake, rows[::2])
    write_archive(lake, rows[1::2])
    files = selected_files(lake, Selection("orders"))

    ordered = in_order(read_archive(spark, lake, files), 160 << 20)

    assert ordered.rdd.getNumPartitions() == 5
    assert [row.position for row in ordered.toLocalIterator()] == list(range(200))


@pytest.fixture
def signed(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK finds the service's access key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", node.credentials.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", node.credentials.secret_access_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", node.credentials.region)


@pytest.mark.usefixtures("signed")
def test_mistyped_queue_is_an_error_and_a_queue_without_archived_messages_is_none(
    lake: Lake, node: NodeProcess, sqs: Boto3Client, orders: Destination
) -> None:
    write_archive(lake, [archived(1, queue="mails")])
    sqs.call("CreateQueue", QueueName="new-queue")

    (file,), destination = find(lake, Selection("mails"), node.url, orders.queue)
    assert (file.queue, destination.queue) == ("mails", orders.queue)
    assert find(lake, Selection("new-queue"), node.url, orders.queue)[0] == []
    assert find(lake, Selection("new-queue"), node.url, None)[0] == []
    for to in (orders.queue, None):
        with pytest.raises(JobFailed, match=r"queue mials.*; did you mean mails\?$"):
            find(lake, Selection("mials"), node.url, to)
    with pytest.raises(JobFailed, match=r"has a queue something-else$"):
        find(lake, Selection("something-else"), node.url, orders.queue)


@pytest.mark.usefixtures("signed")
def test_destination_is_found_by_name_or_url(node: NodeProcess, orders: Destination) -> None:
    by_name = find_destination(node.url, orders.queue)
    by_url = find_destination("http://127.0.0.1:1", orders.url)

    assert by_name[1:] == by_url[1:] == orders[1:]
    assert by_name.folder == f"us-east-1/000000000000/{orders.queue}"
    with pytest.raises(JobFailed, match=r"cannot find the queue nobody: .*NonExistentQueue"):
        find_destination(node.url, "nobody")
