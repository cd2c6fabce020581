"""Retention in real time: AWS's shortest is a minute, so one test waits once for everything.

It runs when COMPAT_MINUTES is set. The engine's own tests cover retention on a virtual clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import pytest

from compat_tests.facade import (
    Client,
    bodies,
    counts,
    create_fifo_queue,
    delete,
    eventually,
    receive,
    send_in_order,
)
from compat_tests.test_dead_letter import arn, redrive

Names = Callable[[], str]
MakeQueue = Callable[..., str]

MINUTE = {"MessageRetentionPeriod": "60"}


def is_empty(client: Client, url: str) -> bool:
    return counts(client, url) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif("COMPAT_MINUTES" not in os.environ, reason="takes 62 s: set COMPAT_MINUTES")
def test_messages_expire_after_the_retention_period(
    current: Client, make_queue: MakeQueue, fresh_name: Names
) -> None:
    standard, kept = make_queue(**MINUTE), make_queue()
    fifo = create_fifo_queue(current, fresh_name(), **MINUTE)
    dead = make_queue(**MINUTE)
    dead_fifo = create_fifo_queue(current, fresh_name(), **MINUTE)
    source = make_queue(RedrivePolicy=redrive(arn(current, dead)), **MINUTE)
    policy = redrive(arn(current, dead_fifo))
    source_fifo = create_fifo_queue(current, fresh_name(), RedrivePolicy=policy, **MINUTE)
    for url in (standard, kept, source):
        for body in ("hidden", "waiting"):
            current.call("SendMessage", QueueUrl=url, MessageBody=body)
    for url in (fifo, source_fifo):
        send_in_order(current, url, "g1-m1 g1-m2 g2-m1")
    start = time.monotonic()
    (hidden,) = receive(current, standard, 1, VisibilityTimeout=600)
    receive(current, fifo, 1, VisibilityTimeout=61)
    for url in (source, source_fifo):
        receive(current, url, VisibilityTimeout=0)

    time.sleep(12)
    assert receive(current, source) == receive(current, source_fifo) == [], "they die late"
    eventually(lambda: counts(current, dead) == (2, 0, 0))
    eventually(lambda: counts(current, dead_fifo) == (3, 0, 0))
    time.sleep(56 - (time.monotonic() - start))
    assert counts(current, standard) == (1, 1, 0)
    assert counts(current, fifo) == (2, 1, 0)
    assert counts(current, dead) == (2, 0, 0)
    time.sleep(62 - (time.monotonic() - start))

    for url in (standard, fifo, dead):
        eventually(partial(is_empty, current, url))
        assert receive(current, url) == []
    delete(current, standard, hidden["ReceiptHandle"])
    assert counts(current, kept) == (2, 0, 0)
    assert counts(current, dead_fifo) == (3, 0, 0), "a FIFO queue counts from the move"
    send_in_order(current, fifo, "g1-m3")
    assert bodies(receive(current, fifo)) == "g1-m3", "its group is free"
