"""Sending: entries of a request, rate, and outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.replay.ledger import Named
from spark_jobs.replay.sending import (
    BATCH_BYTES_MAX,
    ENTRIES_MAX,
    Attributes,
    Destination,
    Message,
    Outcome,
    Rate,
    batches,
    deduplication_id,
    entry,
    group_of,
    send,
)
from storage.lake.archive_schema import attribute_bytes, row_checksum

STANDARD = "arn:aws:sqs:us-east-1:000000000000:orders"


def message(
    position: int,
    body: str | None = "body",
    *,
    group: str | None = None,
    attributes: Attributes | None = None,
    trace_header: str | None = None,
) -> Message:
    attributes = attributes or {}
    message_id = f"id-{position}"
    checksum = row_checksum(
        message_id, (body or "").encode(), attribute_bytes(list(attributes.items()))
    )
    name = Named("data-1", 0, position)
    return Message(name, message_id, body, attributes, trace_header, group, checksum)


def text(value: str, kind: str = "String") -> dict[str, Any]:
    return {"data_type": kind, "string_value": value, "binary_value": None}


def binary(value: bytes, kind: str = "Binary") -> dict[str, Any]:
    return {"data_type": kind, "string_value": None, "binary_value": value}


# -- content of a request --------------------------------------------------------------------------

_SIZES = st.one_of(
    st.integers(1, 2_000), st.integers(90_000, 120_000), st.integers(1_000_000, BATCH_BYTES_MAX)
)


@given(
    sizes=st.lists(st.tuples(_SIZES, st.sampled_from("abc")), max_size=30),
    entries_max=st.integers(1, ENTRIES_MAX),
    is_fifo=st.booleans(),
)
def test_requests_keep_the_order_and_the_limits_and_are_as_full_as_they_can_be(
    sizes: list[tuple[int, str]], entries_max: int, is_fifo: bool
) -> None:
    given_messages = [
        message(position, "x" * size, group=group) for position, (size, group) in enumerate(sizes)
    ]

    found = list(batches(given_messages, entries_max=entries_max, is_fifo=is_fifo))

    assert [each for batch in found for each in batch] == given_messages
    for batch in found:
        assert 1 <= len(batch) <= entries_max
        assert sum(each.size for each in batch) <= BATCH_BYTES_MAX
        assert not is_fifo or len({group_of(each) for each in batch}) == len(batch)
    for batch, following in pairwise(found):
        assert (
            len(batch) == entries_max
            or sum(each.size for each in [*batch, following[0]]) > BATCH_BYTES_MAX
            or (is_fifo and group_of(following[0]) in {group_of(each) for each in batch})
        )


def test_size_counts_bytes_of_body_names_types_and_values() -> None:
    sized = message(1, "ä", attributes={"kind": text("é"), "raw": binary(b"\0\1\2")})

    assert sized.size == 2 + len("kind") + len("String") + 2 + len("raw") + len("Binary") + 3


def test_entry_has_the_attributes_as_they_were() -> None:
    attributes = {
        "kind": text("card", "String.foo"),
        "count": text("12", "Number"),
        "raw": binary(b"\0\xff", "Binary.png"),
    }

    made = entry(
        message(1, attributes=attributes, trace_header="Root=1"), "7", "default", is_fifo=False
    )

    assert made == {
        "Id": "7",
        "MessageBody": "body",
        "MessageAttributes": {
            "kind": {"DataType": "String.foo", "StringValue": "card"},
            "count": {"DataType": "Number", "StringValue": "12"},
            "raw": {"DataType": "Binary.png", "BinaryValue": b"\0\xff"},
        },
        "MessageSystemAttributes": {
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}
        },
    }


def test_standard_queue_gets_the_group_that_the_message_had() -> None:
    grouped = entry(message(1, group="g"), "0", "default", is_fifo=False)
    alone = entry(message(1), "0", "default", is_fifo=False)

    assert grouped["MessageGroupId"] == "g"
    assert "MessageDeduplicationId" not in grouped
    assert "MessageGroupId" not in alone


def test_fifo_queue_gets_a_group_for_each_message_that_had_none() -> None:
    grouped = entry(message(1, group="g"), "0", "default", is_fifo=True)
    alone = entry(message(1), "0", "default", is_fifo=True)

    assert grouped["MessageGroupId"] == "g"
    assert alone["MessageGroupId"] == "id-1"


def test_deduplication_id_is_that_of_message_and_replay() -> None:
    first = deduplication_id(message(1), "default")

    assert first == deduplication_id(message(1, "another body", group="g"), "default")
    assert first != deduplication_id(message(2), "default")
    twice = replace(message(1), name=message(2).name)  # archived in another place, too
    assert first != deduplication_id(twice, "default")
    assert first != deduplication_id(message(1), "again")
    assert len(first) <= 128


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (message(1), None),
        (message(1, attributes={"raw": binary(b"\0")}), None),
        (message(1, ""), "it has no body"),
        (message(1, None), "it has no body"),
        (Message(Named("s", 0, 1), "id-1", "other", {}, None, None, 1), "checksum"),
    ],
)
def test_damage_is_named(damaged: Message, what: str | None) -> None:
    assert damaged.damage is None if what is None else what in str(damaged.damage)


# -- rate ------------------------------------------------------------------------------------------


class Time:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("per_second", [0.5, 3, 10, 25.5, 1_000])
def test_rate_is_kept_at_any_time(per_second: float) -> None:
    time = Time()
    rate = Rate(per_second, lambda: time.now_s, time.wait)
    sent = 0

    for _ in range(200):
        rate.wait_for(rate.entries_max)
        sent += rate.entries_max
        assert sent <= per_second * (time.now_s - 1_000) + rate.entries_max + 1e-6

    assert sent >= per_second * (time.now_s - 1_000)


def test_rate_does_not_make_up_for_time_that_was_not_used() -> None:
    time = Time()
    rate = Rate(10, lambda: time.now_s, time.wait)
    time.wait(100)

    rate.wait_for(10)
    begun_s = time.now_s
    rate.wait_for(10)

    assert time.now_s - begun_s == pytest.approx(1)


def test_slow_rate_sends_single_messages() -> None:
    assert Rate(0.1).entries_max == 1
    assert Rate(4.9).entries_max == 4
    assert Rate(None).entries_max == ENTRIES_MAX


# -- outcome of a request --------------------------------------------------------------------------

Answer = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Service:
    """Answers SendMessageBatch as the test prescribes, once for each request."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[list[str]] = []
        self._answers = list(answers)

    def send_message_batch(self, **members: Any) -> dict[str, Any]:
        self.requests.append([each["MessageBody"] for each in members["Entries"]])
        return self._answers.pop(0)(members["Entries"])


def all_but(*bodies: str, code: str = "InternalError", fault: bool = False) -> Answer:
    """Takes every message but these."""

    def answer(entries: list[dict[str, Any]]) -> dict[str, Any]:
        failed = [each for each in entries if each["MessageBody"] in bodies]
        failure = {"Code": code, "Message": "not now", "SenderFault": fault}
        return {
            "Successful": [{"Id": each["Id"]} for each in entries if each not in failed],
            "Failed": [{"Id": each["Id"], **failure} for each in failed],
        }

    return answer


def refuse_all(entries: list[dict[str, Any]]) -> dict[str, Any]:
    raise ClientError(
        {"Error": {"Code": "AccessDenied", "Message": "Access is\ndenied."}}, "SendMessageBatch"
    )


def sent_to(service: Service, *bodies: str) -> tuple[Outcome, list[float]]:
    waits: list[float] = []
    batch = [message(position, body) for position, body in enumerate(bodies)]
    outcome = send(Destination(service, "url", STANDARD), batch, "default", waits.append)
    return outcome, waits


def bodies(messages: list[Message]) -> str:
    return " ".join(str(each.body) for each in messages)


def test_only_what_failed_is_sent_again_after_a_growing_wait() -> None:
    service = Service(all_but("b", "c"), all_but("c"), all_but())

    outcome, waits = sent_to(service, "a", "b", "c")

    assert service.requests == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert bodies(outcome.sent) == "a b c"
    assert (outcome.refused, outcome.stopped) == ([], None)
    assert waits == sorted(set(waits))
    assert len(waits) == 2


def test_what_the_sender_is_to_blame_for_is_refused_with_its_reason() -> None:
    service = Service(all_but("b", code="InvalidMessageContents", fault=True))

    outcome, waits = sent_to(service, "a", "b", "c")

    assert bodies(outcome.sent) == "a c"
    assert [(each.body, why) for each, why in outcome.refused] == [
        ("b", "InvalidMessageContents: not now")
    ]
    assert (outcome.stopped, waits) == (None, [])


def test_throttling_is_no_refusal() -> None:
    service = Service(all_but("b", code="KmsThrottled", fault=True), all_but())

    outcome, _ = sent_to(service, "a", "b")

    assert bodies(outcome.sent) == "a b"


def test_message_without_an_answer_is_sent_again() -> None:
    service = Service(lambda entries: {"Successful": [{"Id": entries[0]["Id"]}]}, all_but())

    outcome, _ = sent_to(service, "a", "b")

    assert service.requests[1] == ["b"]
    assert bodies(outcome.sent) == "a b"


def test_service_that_goes_on_failing_stops_the_run_with_what_was_sent() -> None:
    service = Service(*[all_but("b")] * 6)

    outcome, waits = sent_to(service, "a", "b")

    assert bodies(outcome.sent) == "a"
    assert outcome.stopped == "InternalError: not now"
    assert len(waits) == 5


def test_refused_request_stops_the_run_in_one_line() -> None:
    outcome, _ = sent_to(Service(refuse_all), "a", "b")

    assert outcome.sent == []
    assert "AccessDenied" in str(outcome.stopped)
    assert "\n" not in str(outcome.stopped)
