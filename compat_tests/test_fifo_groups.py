"""Message groups of a FIFO queue: order, turns, and what an in-flight message holds back.

A message is named by its group and its place in it: `g1-m2` is the second message of g1. Timeouts that take a real
second are tested through one client; which client asks does not change the clock.
"""

from __future__ import annotations

import queue as threads
import threading
import time
from collections.abc import Callable

import pytest

from compat_tests.facade import (
    PATIENCE_S,
    SHORT_S,
    Client,
    Members,
    bodies,
    counts,
    create_fifo_queue,
    receive,
    receive_count,
    send_in_order,
)
from compat_tests.test_visibility import change, delete

Names = Callable[[], str]
MakeFifo = Callable[..., str]


@pytest.fixture
def make_fifo(current: Client, fresh_name: Names) -> MakeFifo:
    """Makes a FIFO queue that holds the named messages."""

    def make(names: str = "", **attributes: str) -> str:
        url = create_fifo_queue(current, fresh_name(), **attributes)
        if names:
            send_in_order(current, url, names)
        return url

    return make


def delete_all(client: Client, url: str, messages: list[Members]) -> None:
    for message in messages:
        delete(client, url, message["ReceiptHandle"])


def show(client: Client, url: str, *messages: Members) -> None:
    """End the visibility timeouts of the messages now."""
    for message in messages:
        change(client, url, message["ReceiptHandle"], 0)


# -- turns of the groups ----------------------------------------------------------------------------------------------


def test_receive_takes_all_of_one_group_before_the_next(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g2-m1 g1-m2 g1-m3")

    assert bodies(receive(sqs, url, 10)) == "g1-m1 g1-m2 g1-m3 g2-m1"


def test_group_received_from_goes_behind_the_others(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g2-m1 g2-m2 g3-m1 g1-m2")

    assert bodies(receive(sqs, url, 3, VisibilityTimeout=0)) == "g1-m1 g1-m2 g2-m1"

    assert bodies(receive(sqs, url, 10)) == "g3-m1 g1-m1 g1-m2 g2-m1 g2-m2"


def test_deleting_what_is_in_flight_gives_the_group_its_turn_again(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3 g1-m4 g2-m1 g2-m2 g3-m1")
    first = receive(sqs, url, 2)
    assert bodies(first) == "g1-m1 g1-m2"
    delete_all(sqs, url, first)

    got = bodies(receive(sqs, url, 10))

    assert got in {"g2-m1 g2-m2 g1-m3 g1-m4 g3-m1", "g2-m1 g2-m2 g3-m1 g1-m3 g1-m4"}


def test_groups_take_turns_over_single_receives(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g2-m1 g2-m2 g3-m1")

    got = [message for _ in range(3) for message in receive(sqs, url, 1)]

    assert bodies(got) == "g1-m1 g2-m1 g3-m1", "each group has one in flight"
    assert receive(sqs, url, 10) == []


def test_different_groups_are_received_at_the_same_time(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g2-m1 g2-m2")

    mine, yours = receive(sqs, url, 2), receive(sqs, url, 2)

    assert bodies(mine) == "g1-m1 g1-m2"
    assert bodies(yours) == "g2-m1 g2-m2"
    delete_all(sqs, url, yours)
    assert counts(sqs, url) == (0, 2, 0)


# -- what is in flight blocks its group -------------------------------------------------------------------------------


def test_group_in_flight_hands_out_nothing_more(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3 g2-m1")

    assert bodies(receive(sqs, url, 2)) == "g1-m1 g1-m2"

    assert bodies(receive(sqs, url, 10)) == "g2-m1"
    assert receive(sqs, url, 10) == []


def test_new_messages_do_not_unblock_their_group(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2")
    receive(sqs, url, 1)

    send_in_order(sqs, url, "g1-m3 g1-m4")

    assert receive(sqs, url, 10) == []
    send_in_order(sqs, url, "g2-m1")
    assert bodies(receive(sqs, url, 10)) == "g2-m1"


def test_only_deleting_everything_in_flight_unblocks_the_group(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3 g1-m4")
    first, second = receive(sqs, url, 2)

    delete(sqs, url, first["ReceiptHandle"])
    assert receive(sqs, url, 10) == []

    delete(sqs, url, second["ReceiptHandle"])
    assert bodies(receive(sqs, url, 10)) == "g1-m3 g1-m4"


def test_deleting_the_later_one_leaves_the_group_blocked(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3")
    first, second = receive(sqs, url, 2)

    delete(sqs, url, second["ReceiptHandle"])
    assert receive(sqs, url, 10) == []

    show(sqs, url, first)
    assert bodies(receive(sqs, url, 10)) == "g1-m1 g1-m3"


def test_single_receives_with_deletes_between_give_strict_order(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    names = [f"g1-m{number}" for number in range(1, 8)]
    url = make_fifo(" ".join(names))

    got = []
    for _ in names:
        (message,) = receive(sqs, url, 1)
        got.append(message["Body"])
        delete(sqs, url, message["ReceiptHandle"])

    assert got == names
    assert receive(sqs, url) == []


def test_emptied_group_keeps_working(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1")
    delete_all(sqs, url, receive(sqs, url))
    assert receive(sqs, url) == []

    send_in_order(sqs, url, "g1-m2 g1-m3")

    assert bodies(receive(sqs, url)) == "g1-m2 g1-m3"


# -- given back -------------------------------------------------------------------------------------------------------


def test_message_given_back_comes_in_front_of_the_groups_later_ones(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3 g1-m4")
    first, second = receive(sqs, url, 2)

    show(sqs, url, second, first)

    assert bodies(receive(sqs, url, 10)) == "g1-m1 g1-m2 g1-m3 g1-m4"


def test_timeout_of_zero_keeps_the_order(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3")

    for _ in range(3):
        assert bodies(receive(sqs, url, 2, VisibilityTimeout=0)) == "g1-m1 g1-m2"

    assert bodies(receive(sqs, url, 10)) == "g1-m1 g1-m2 g1-m3"


def test_timeouts_are_per_message(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g2-m1")
    first, _ = receive(sqs, url, 2)

    show(sqs, url, first)

    got = {message["Body"] for message in receive(sqs, url, 3)}
    assert got == {"g1-m1", "g2-m1"}, "g1-m2 is still hidden"


def test_given_back_behind_a_hidden_one_waits_for_it(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3")
    first, second = receive(sqs, url, 2)

    show(sqs, url, second)
    assert receive(sqs, url, 10) == []

    show(sqs, url, first)
    assert bodies(receive(sqs, url, 10)) == "g1-m1 g1-m2 g1-m3"


@pytest.mark.parametrize(
    ("position", "expected"), [(0, ""), (1, "g1-m1"), (2, "g1-m1 g1-m2")], ids=str
)
def test_only_those_before_a_hidden_one_are_given_back(
    sqs: Client, make_fifo: MakeFifo, position: int, expected: str
) -> None:
    url = make_fifo("g1-m1 g1-m2 g1-m3")
    got = receive(sqs, url, 3)

    show(sqs, url, *got[:position], *got[position + 1 :])

    assert bodies(receive(sqs, url, 10)) == expected


# -- timeouts that end by themselves ----------------------------------------------------------------------------------


def test_timeouts_end_by_themselves(current: Client, make_fifo: MakeFifo) -> None:
    """The short time is waited for, once, by all the stories that need it."""
    extended = [make_fifo("g1-m1 g1-m2 g1-m3") for _ in range(3)]
    for position, url in enumerate(extended):
        got = receive(current, url, 3, VisibilityTimeout=SHORT_S)
        assert bodies(got) == "g1-m1 g1-m2 g1-m3"
        change(current, url, got[position]["ReceiptHandle"], 60)

    rotation = make_fifo("g1-m1 g1-m2 g1-m3 g1-m4 g2-m1 g3-m1")
    assert bodies(receive(current, rotation, 2, VisibilityTimeout=SHORT_S)) == "g1-m1 g1-m2"
    assert bodies(receive(current, rotation, 1, VisibilityTimeout=SHORT_S)) == "g2-m1"

    partial = make_fifo("g1-m1 g1-m2 g2-m1")
    _, second = receive(current, partial, 2, VisibilityTimeout=SHORT_S)
    change(current, partial, second["ReceiptHandle"], 60)

    order = make_fifo("g1-m1 g1-m2 g1-m3 g1-m4")
    receive(current, order, 2, VisibilityTimeout=SHORT_S)
    send_in_order(current, order, "g1-m5")

    blocked = make_fifo("g1-m1 g1-m2")
    receive(current, blocked, 1, VisibilityTimeout=60)

    time.sleep(SHORT_S + 0.3)

    assert [bodies(receive(current, url, 10)) for url in extended] == ["", "g1-m1", "g1-m1 g1-m2"]
    assert bodies(receive(current, rotation, 10)) in {
        "g3-m1 g1-m1 g1-m2 g1-m3 g1-m4 g2-m1",
        "g3-m1 g2-m1 g1-m1 g1-m2 g1-m3 g1-m4",
    }
    assert {message["Body"] for message in receive(current, partial, 3)} == {"g1-m1", "g2-m1"}
    assert bodies(receive(current, order, 10)) == "g1-m1 g1-m2 g1-m3 g1-m4 g1-m5"
    assert receive(current, blocked, 10) == []


def test_poll_wakes_when_a_timeout_unblocks_the_group(current: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo("g1-m1 g1-m2")
    start = time.monotonic()
    receive(current, url, 1, VisibilityTimeout=1)

    got = receive_count(current, url, 2)

    assert bodies(got) == "g1-m1 g1-m2"
    assert time.monotonic() - start > 0.9


# -- long polls -------------------------------------------------------------------------------------------------------


def test_waiting_receivers_get_the_group_one_after_the_other(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo()
    woken: threads.Queue[list[Members]] = threads.Queue()

    def poll() -> None:
        woken.put(receive(sqs, url, WaitTimeSeconds=20))

    polls = [threading.Thread(target=poll) for _ in range(3)]
    for each in polls:
        each.start()
    time.sleep(0.2)

    send_in_order(sqs, url, "g1-m1")
    first = woken.get(timeout=PATIENCE_S)
    send_in_order(sqs, url, "g1-m2 g1-m3")
    with pytest.raises(threads.Empty):
        woken.get(timeout=0.3)
    delete_all(sqs, url, first)
    second = woken.get(timeout=PATIENCE_S)

    assert (bodies(first), bodies(second)) == ("g1-m1", "g1-m2 g1-m3")
    with pytest.raises(threads.Empty):
        woken.get(timeout=0.3)
    send_in_order(sqs, url, "g2-m1")
    assert bodies(woken.get(timeout=PATIENCE_S)) == "g2-m1"
    for each in polls:
        each.join()


def test_waiting_receivers_of_different_groups_do_not_wait_for_each_other(
    current: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo("g1-m1 g1-m2")
    receive(current, url, 1)
    woken: threads.Queue[str] = threads.Queue()
    poll = threading.Thread(
        target=lambda: woken.put(bodies(receive(current, url, WaitTimeSeconds=20)))
    )
    poll.start()
    time.sleep(0.2)

    send_in_order(current, url, "g2-m1")

    assert woken.get(timeout=PATIENCE_S) == "g2-m1"
    poll.join()
