"""A FIFO queue that moves between two clusters while clients use it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from compat_tests.cluster_process import GATEWAY
from compat_tests.facade import counts, eventually, receive
from compat_tests.fleet_process import FleetProcess
from compat_tests.pages import ask
from compat_tests.test_fifo_parts import Load, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
MOVED_S = 600.0
"""Longest wait for a part that consumers hold up."""


def moved(fleet: FleetProcess, name: str, shard: int) -> None:
    """Move the queue, once its former part has no more messages."""

    def is_moved() -> bool:
        url, page = fleet.parts.cluster().hosts["a"], f"api/queues/{name}/parts/move"
        status, said = ask(url, fleet.credentials, page, {"shard": shard})
        assert status == 200 or "is still given the messages of part" in said["error"], said
        return status == 200

    eventually(is_moved, within=MOVED_S)


def test_groups_stay_in_order_while_their_queue_moves_between_clusters(
    fleet: FleetProcess,
) -> None:
    client = fleet.client(GATEWAY)
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "20"}
    created: Any = client.call("CreateQueue", QueueName="q.fifo", Attributes=attributes)
    url: str = created["QueueUrl"]
    (first,) = send(client, url, "held", "held_1")
    (held,) = receive(client, url, 1)
    client.call(
        "ChangeMessageVisibility",
        QueueUrl=url,
        ReceiptHandle=held["ReceiptHandle"],
        VisibilityTimeout=0,
    )
    moved(fleet, "q.fifo", 4)
    (again,) = send(client, url, "held", "held_1")
    assert again["MessageId"] == first["MessageId"], "sent before the move"
    attempt = {"ReceiveRequestAttemptId": "attempt", "WaitTimeSeconds": 20}
    (kept,) = receive(client, url, 1, AttributeNames=["All"], **attempt)
    assert kept["MessageId"] == held["MessageId"]
    assert kept["Attributes"]["ApproximateReceiveCount"] == "2"
    assert kept["Attributes"]["SequenceNumber"] == first["SequenceNumber"]

    load = Load(fleet, url)
    for shard in (1, 5, 2):
        time.sleep(2.0)
        moved(fleet, "q.fifo", shard)
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=kept["ReceiptHandle"])
    load.end()

    assert load.failures == []
    load.received.pop("held", None)
    assert dict(load.received) == dict(load.sent), "each message once, each group in order"
    for numbers in load.numbers.values():
        assert numbers == sorted(numbers)
    assert counts(client, url) == (0, 0, 0)
