"""Attributes of FIFO queues, and differences of the common ones there."""

from __future__ import annotations

import json
from functools import partial

import pytest

from visibility.contract import errors
from visibility.contract.attributes import (
    changed_attributes,
    conflicting_attribute,
    initial_attributes,
    settings_of,
    shown_attributes,
)
from visibility.tests.test_attributes import COUNTERS, DLQ, FIFO, queue_with


def test_a_fifo_queue_adds_its_four_attributes() -> None:
    standard, fifo = initial_attributes("q", {}), initial_attributes("q.fifo", FIFO)

    assert {name: fifo[name] for name in fifo.keys() - standard.keys()} == {
        "FifoQueue": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
        "ContentBasedDeduplication": "false",
    }


def test_all_shows_the_four_attributes_of_a_fifo_queue_as_they_were_given() -> None:
    given = {
        "FifoQueue": "True",
        "ContentBasedDeduplication": "TRUE",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    fifo = queue_with(initial_attributes("q.fifo", given))
    standard = queue_with(initial_attributes("q", {}))

    shown, plain = (shown_attributes(queue, ["All"], COUNTERS) for queue in (fifo, standard))

    assert shown is not None
    assert plain is not None
    assert {name: shown[name] for name in shown.keys() - plain.keys()} == given | {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
    }


@pytest.mark.parametrize(
    ("name", "given", "target"), [("q", {}, DLQ + ".fifo"), ("q.fifo", FIFO, DLQ)]
)
def test_a_dead_letter_queue_of_another_type_is_refused_with_two_full_stops(
    name: str, given: dict[str, str], target: str
) -> None:
    text = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 3})

    policy = {"RedrivePolicy": text}
    for refused in (
        partial(initial_attributes, name, given | policy),
        partial(changed_attributes, initial_attributes(name, given), policy),
    ):
        with pytest.raises(errors.InvalidParameterValue) as refusal:
            refused()
        assert refusal.value.message == (
            f"Value {text} for parameter RedrivePolicy is invalid. "
            "Reason: Dead-letter queue must be same type of queue as the source.."
        )


def test_the_type_of_a_queue_cannot_change() -> None:
    standard, fifo = initial_attributes("q", {}), initial_attributes("q.fifo", FIFO)

    assert changed_attributes(fifo, FIFO) == fifo
    with pytest.raises(errors.InvalidAttributeValue) as modified:
        changed_attributes(fifo, {"FifoQueue": "false"})
    assert modified.value.message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    for value in ("true", "false"):
        with pytest.raises(errors.InvalidAttributeName) as unknown:
            changed_attributes(standard, {"FifoQueue": value})
        assert unknown.value.message == "Unknown Attribute FifoQueue."


def test_a_throughput_per_group_needs_the_scope_per_group() -> None:
    per_group = {"FifoThroughputLimit": "perMessageGroupId"}

    assert initial_attributes("q.fifo", FIFO | per_group | {"DeduplicationScope": "messageGroup"})
    with pytest.raises(errors.InvalidParameterValue):
        initial_attributes("q.fifo", FIFO | per_group)


def test_scope_and_throughput_must_fit_after_every_change() -> None:
    high = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    low = {"FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"}
    fifo = initial_attributes("q.fifo", FIFO)

    fast = changed_attributes(fifo, high)

    assert changed_attributes(fast, low) == fifo
    assert changed_attributes(fifo, {"DeduplicationScope": "messageGroup"})
    for current, given in (
        (fifo, {"FifoThroughputLimit": "perMessageGroupId"}),
        (fast, {"DeduplicationScope": "queue"}),
    ):
        with pytest.raises(errors.InvalidParameterValue) as refusal:
            changed_attributes(current, given)
        assert refusal.value.message == (
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is "
            "messageGroup"
        )


@pytest.mark.parametrize("name", ["DeduplicationScope", "FifoThroughputLimit"])
@pytest.mark.parametrize("text", ["", "Queue", "perqueue", "messageGroupId"])
def test_choices_are_spelled_as_aws_does(name: str, text: str) -> None:
    with pytest.raises(errors.InvalidAttributeValue) as refusal:
        initial_attributes("q.fifo", FIFO | {name: text})

    assert refusal.value.message == f"Invalid value for the parameter {name}."


def test_content_based_deduplication_can_be_switched() -> None:
    fifo = initial_attributes("q.fifo", FIFO)
    for value in ("true", "false"):
        fifo = changed_attributes(fifo, {"ContentBasedDeduplication": value})
        assert settings_of(fifo).content_based_deduplication is (value == "true")


def test_creating_a_fifo_queue_again_compares_its_attributes() -> None:
    fifo = initial_attributes("q.fifo", FIFO)

    assert conflicting_attribute(fifo, FIFO | {"DeduplicationScope": "queue"}) is None
    given = FIFO | {"ContentBasedDeduplication": "true"}
    assert conflicting_attribute(fifo, given) == "ContentBasedDeduplication"
