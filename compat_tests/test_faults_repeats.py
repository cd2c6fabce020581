"""Messages that boto3 sent again by itself: copies are no broken promise, losses still are."""

from __future__ import annotations

from compat_tests.faults.fault_history import Delete, Delivery, History, Outcome, Queue, Send
from compat_tests.faults.judge import judge

DRAIN = 100.0


def _send(name: str, at: float, message_id: str, queue: str = "plain") -> Send:
    outcome = Outcome.DONE if message_id else Outcome.UNKNOWN
    return Send(name, queue, "content", at, at + 1, outcome, message_id)


def _delivery(name: str, at: float, message_id: str, count: int = 1) -> Delivery:
    return Delivery(name, "plain", "content", message_id, count, at, at + 0.1, 30.0)


def _delete(delivery: Delivery, at: float) -> Delete:
    return Delete(delivery, at, at + 0.1, Outcome.DONE)


def _history(*, repeated: bool = True) -> History:
    history = History(drain_begun=DRAIN, repeated={"m"} if repeated else set())
    history.queues["plain"] = Queue("plain", "url")
    history.sends.append(_send("m", 0, "second"))
    return history


def _broken(history: History) -> list[str]:
    return judge(history).broken()


def _with_copies(*, repeated: bool) -> History:
    """Both copies of a message were received, and each was deleted."""
    history = _history(repeated=repeated)
    for at, message_id in ((2.0, "first"), (5.0, "second")):
        delivery = _delivery("m", at, message_id)
        history.deliveries.append(delivery)
        history.deletes.append(_delete(delivery, at + 1))
    return history


def test_two_copies_of_a_repeated_send_are_two_messages() -> None:
    assert _broken(_with_copies(repeated=True)) == []
    assert _broken(_with_copies(repeated=False)) != []


def test_a_copy_that_comes_back_after_its_delete_is_found() -> None:
    history = _with_copies(repeated=True)
    history.deliveries.append(_delivery("m", 50.0, "second", count=2))

    (line,) = _broken(history)

    assert line.startswith("returned: m#second came back")


def test_the_copy_that_was_acknowledged_is_not_lost_for_another() -> None:
    history = _history()
    delivery = _delivery("m", 2.0, "first")
    history.deliveries.append(delivery)
    history.deletes.append(_delete(delivery, 3.0))

    assert _broken(history) == ["lost: m#second"]


def test_a_repeated_send_that_nobody_received_is_lost() -> None:
    assert _broken(_history()) == ["lost: m#second"]


def test_in_a_queue_whose_messages_move_copies_are_not_told_apart() -> None:
    history = _with_copies(repeated=True)
    history.queues["plain"] = Queue("plain", "url", frozenset({"letters"}))
    history.deliveries.append(_delivery("m", 110.0, "third", count=2))

    assert _broken(history) == []


def test_but_they_are_not_lost_either() -> None:
    history = _history()
    history.queues["plain"] = Queue("plain", "url", frozenset({"letters"}))

    assert _broken(history) == ["lost: m"]
