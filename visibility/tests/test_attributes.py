"""Attributes of queues: create, change, compare, show."""

from __future__ import annotations

import json

import pytest

from visibility.contract import errors
from visibility.contract.attributes import (
    ATTRIBUTES,
    changed_attributes,
    checked_tags,
    conflicting_attribute,
    initial_attributes,
    needs_counters,
    settings_of,
    shown_attributes,
)
from visibility.contract.model import QueueCounters, QueueDefinition, RedrivePolicy
from visibility.contract.redrive_policies import redrive_allowed

FIFO = {"FifoQueue": "true"}
DLQ = "arn:aws:sqs:us-east-1:000000000000:dlq"
TEN = ",".join([f'"{DLQ}"'] * 10)
REDRIVE = json.dumps({"deadLetterTargetArn": DLQ, "maxReceiveCount": 3})
COUNTERS = QueueCounters(visible=4, in_flight=2, delayed=1)


def queue_with(attributes: dict[str, str]) -> QueueDefinition:
    return QueueDefinition(
        queue_id=1,
        account="000000000000",
        region="us-east-1",
        name="q",
        version=1,
        shard=0,
        created_at_ms=1_700_000_000_999,
        modified_at_ms=1_700_000_001_001,
        receipt_key=b"",
        attributes=attributes,
        tags={},
        settings=settings_of(attributes),
    )


def test_a_fresh_standard_queue_shows_exactly_the_recorded_attributes() -> None:
    queue = queue_with(initial_attributes("q", {}))

    assert shown_attributes(queue, ["All"], COUNTERS) == {
        "ApproximateNumberOfMessages": "4",
        "ApproximateNumberOfMessagesDelayed": "1",
        "ApproximateNumberOfMessagesNotVisible": "2",
        "CreatedTimestamp": "1700000000",
        "LastModifiedTimestamp": "1700000001",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:q",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }


def test_the_table_has_the_21_attributes_of_the_model() -> None:
    assert len(ATTRIBUTES) == 21
    assert [row.name for row in ATTRIBUTES.values() if row.fifo_only] == [
        "FifoQueue",
        "ContentBasedDeduplication",
        "DeduplicationScope",
        "FifoThroughputLimit",
    ]


REFUSED_AT_CREATE: list[tuple[str, dict[str, str], type[errors.QueueError], str]] = [
    ("q", {"FifoQueue": "false"}, errors.InvalidAttributeName, "Unknown Attribute FifoQueue."),
    (
        "q",
        {"ContentBasedDeduplication": "false"},
        errors.InvalidAttributeName,
        "Unknown Attribute ContentBasedDeduplication.",
    ),
    (
        "q",
        {"DeduplicationScope": "queue"},
        errors.InvalidAttributeName,
        "You can specify the DeduplicationScope only when FifoQueue is set to true.",
    ),
    (
        "q",
        {"FifoThroughputLimit": "perQueue"},
        errors.InvalidAttributeName,
        "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
    ),
    ("q", {"Foobar": "1"}, errors.InvalidAttributeName, "Unknown Attribute Foobar."),
    ("q", {"QueueArn": "1"}, errors.InvalidAttributeName, "Unknown Attribute QueueArn."),
    (
        "q",
        {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"},
        errors.InvalidAttributeName,
        "You can use one type of server-side encryption (SSE) at one time. "
        "You can either enable KMS SSE or SQS SSE.",
    ),
    (
        "q",
        {"RedrivePolicy": "{}"},
        errors.InvalidParameterValue,
        "Value {} for parameter RedrivePolicy is invalid. "
        "Reason: Redrive policy does not contain mandatory attribute: maxReceiveCount.",
    ),
    (
        "q",
        {"RedrivePolicy": '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}'},
        errors.InvalidParameterValue,
        'Value {"deadLetterTargetArn": "dummy", "maxReceiveCount": 42} for parameter RedrivePolicy '
        "is invalid. Reason: Invalid value for deadLetterTargetArn.",
    ),
]


@pytest.mark.parametrize(("name", "given", "kind", "message"), REFUSED_AT_CREATE)
def test_create_refuses_in_the_words_of_aws(
    name: str, given: dict[str, str], kind: type[errors.QueueError], message: str
) -> None:
    with pytest.raises(kind) as refusal:
        initial_attributes(name, given)

    assert type(refusal.value) is kind
    assert refusal.value.message == message


@pytest.mark.parametrize(
    ("name", "given"),
    [("q.fifo", {}), ("q.fifo", {"FifoQueue": "false"}), ("q", FIFO), ("a/b", {})],
)
def test_name_and_type_must_agree(name: str, given: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        initial_attributes(name, given)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
    ],
)
def test_numbers_are_accepted_to_both_ends_of_their_range(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert initial_attributes("q", {name: str(value)})[name] == str(value)

    for text in (str(low - 1), str(high + 1), "", " 5", "5.0", "x", "٣٠", "9" * 5000):
        with pytest.raises(errors.InvalidAttributeValue) as refusal:
            initial_attributes("q", {name: text})
        assert refusal.value.message == f"Invalid value for the parameter {name}."


@pytest.mark.parametrize("text", ["[]", "1", "null", "{", "\ud800", "[" * 8_000])
@pytest.mark.parametrize("name", ["Policy", "RedrivePolicy", "RedriveAllowPolicy"])
def test_policies_must_be_json_objects(name: str, text: str) -> None:
    with pytest.raises(errors.QueueError) as refusal:
        initial_attributes("q", {name: text})

    assert refusal.value.message.startswith(f"Invalid value for the parameter {name}.")


def test_a_policy_has_as_many_bytes_as_awss_quota() -> None:
    longest = '{"Id": "%s"}' % ("é" * 4_091)
    assert len(longest.encode()) == 8_192

    initial_attributes("q", {"Policy": longest})
    with pytest.raises(errors.OverLimit) as refusal:
        initial_attributes("q", {"Policy": longest + " "})
    assert refusal.value.message == "Submitted policy is over max allowed size."


def test_booleans_come_back_in_lower_case() -> None:
    assert (
        initial_attributes("q", {"SqsManagedSseEnabled": "False"})["SqsManagedSseEnabled"]
        == "false"
    )


@pytest.mark.parametrize(
    "policy",
    [
        {"maxReceiveCount": 3},
        {"deadLetterTargetArn": DLQ},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": "x"},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": True},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": None},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": 0},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": 1001},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": -1},
        {"deadLetterTargetArn": DLQ, "maxReceiveCount": 3, "more": 1},
        {"deadLetterTargetArn": "dlq", "maxReceiveCount": 3},
        {"deadLetterTargetArn": 7, "maxReceiveCount": 3},
        {"deadLetterTargetArn": DLQ + ".fifo", "maxReceiveCount": 3},
    ],
)
def test_an_incomplete_redrive_policy_is_an_invalid_parameter_value(policy: object) -> None:
    text = json.dumps(policy)

    with pytest.raises(errors.InvalidParameterValue) as refusal:
        initial_attributes("q", {"RedrivePolicy": text})

    assert refusal.value.message.startswith(f"Value {text} for parameter RedrivePolicy is invalid.")


@pytest.mark.parametrize(
    "given",
    [
        json.dumps({"deadLetterTargetArn": DLQ, "maxReceiveCount": 3}),
        json.dumps({"maxReceiveCount": "3", "deadLetterTargetArn": DLQ}, indent=2),
        json.dumps({"maxReceiveCount": "003", "deadLetterTargetArn": DLQ}),
    ],
)
def test_a_redrive_policy_comes_back_compact_with_a_number(given: str) -> None:
    compact = f'{{"deadLetterTargetArn":"{DLQ}","maxReceiveCount":3}}'

    stored = initial_attributes("q", {"RedrivePolicy": given})

    assert stored["RedrivePolicy"] == compact
    assert settings_of(stored).redrive_policy == RedrivePolicy(DLQ, 3)
    assert conflicting_attribute(stored, {"RedrivePolicy": given}) is None
    assert changed_attributes(stored, {"RedrivePolicy": given}) == stored


def test_a_redrive_policy_may_name_the_regions_own_partition() -> None:
    given = {"RedrivePolicy": REDRIVE.replace("arn:aws:", "arn:aws-us-gov:")}
    stored = initial_attributes("q", given)

    shown = shown_attributes(queue_with(stored), ["RedrivePolicy"], COUNTERS)
    assert shown == {"RedrivePolicy": given["RedrivePolicy"].replace(" ", "")}
    assert settings_of(stored).redrive_policy == RedrivePolicy(DLQ, 3)
    assert conflicting_attribute(stored, {"RedrivePolicy": REDRIVE}) is None


@pytest.mark.parametrize(
    ("given", "compact"),
    [
        ('{ "redrivePermission" : "denyAll" }', '{"redrivePermission":"denyAll"}'),
        (
            json.dumps({"sourceQueueArns": [DLQ, DLQ + "2"], "redrivePermission": "byQueue"}),
            f'{{"redrivePermission":"byQueue","sourceQueueArns":["{DLQ}","{DLQ}2"]}}',
        ),
        (
            '{"sourceQueueArns": [], "redrivePermission": "allowAll"}',
            '{"redrivePermission":"allowAll","sourceQueueArns":[]}',
        ),
        (
            json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DLQ] * 10}),
            f'{{"redrivePermission":"byQueue","sourceQueueArns":[{TEN}]}}',
        ),
    ],
)
def test_a_redrive_allow_policy_comes_back_compact(given: str, compact: str) -> None:
    stored = initial_attributes("q", {"RedriveAllowPolicy": given})

    assert stored["RedriveAllowPolicy"] == compact
    assert conflicting_attribute(stored, {"RedriveAllowPolicy": given}) is None


def test_no_more_sources_are_read_than_a_redrive_allow_policy_may_have() -> None:
    arns = [DLQ] * 10 + ["no ARN"] * 500
    text = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": arns})

    with pytest.raises(errors.InvalidParameterValue) as refusal:
        initial_attributes("q", {"RedriveAllowPolicy": text})
    assert refusal.value.message.endswith(
        "The maximum number of source queue ARNs you can specify is 10."
    )


def test_redrive_policies_of_older_versions_come_back_compact_and_compare_by_meaning() -> None:
    old = {
        "RedrivePolicy": json.dumps({"maxReceiveCount": "3", "deadLetterTargetArn": DLQ}),
        "RedriveAllowPolicy": '{ "redrivePermission" : "denyAll" }',
    }
    compact = {
        "RedrivePolicy": f'{{"deadLetterTargetArn":"{DLQ}","maxReceiveCount":3}}',
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
    }
    queue = queue_with(initial_attributes("q", {}) | old)

    assert shown_attributes(queue, [*old], COUNTERS) == compact
    assert conflicting_attribute(queue.attributes, old) is None
    assert conflicting_attribute(queue.attributes, compact) is None
    assert conflicting_attribute(initial_attributes("q", compact), old) is None


@pytest.mark.parametrize("name", ["Policy", "RedrivePolicy", "RedriveAllowPolicy"])
def test_an_empty_policy_removes_it_and_is_accepted_when_none_was_set(name: str) -> None:
    fresh = initial_attributes("q", {})
    allow = '{"redrivePermission":"denyAll"}'
    given = {"Policy": "{}", "RedrivePolicy": REDRIVE, "RedriveAllowPolicy": allow}
    with_policies = changed_attributes(fresh, given)

    assert name not in changed_attributes(with_policies, {name: ""})
    assert changed_attributes(fresh, {name: ""}) == fresh


def test_a_key_turns_managed_encryption_off_for_good() -> None:
    fresh = initial_attributes("q", {})

    with_key = changed_attributes(fresh, {"KmsMasterKeyId": "alias/k"})
    without = changed_attributes(
        with_key, {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}
    )

    assert with_key["SqsManagedSseEnabled"] == "false"
    assert with_key["KmsDataKeyReusePeriodSeconds"] == "300"
    assert without == fresh | {"SqsManagedSseEnabled": "false"}


def test_managed_encryption_removes_the_key() -> None:
    with_key = initial_attributes("q", {"KmsMasterKeyId": "alias/k"})

    managed = changed_attributes(with_key, {"SqsManagedSseEnabled": "true"})

    assert managed == initial_attributes("q", {})


def test_create_compares_only_what_is_given_with_the_present_value() -> None:
    policy = '{"Id": "i", "Statement": []}'
    current = initial_attributes("q", {"VisibilityTimeout": "2", "Policy": policy})

    assert conflicting_attribute(current, {}) is None
    assert conflicting_attribute(current, {"VisibilityTimeout": "02", "DelaySeconds": "0"}) is None
    for same in ('{"Statement":[],"Id":"i"}', '{"Id":"i"}'):
        assert conflicting_attribute(current, {"Policy": same}) is None
    assert conflicting_attribute(current, {"RedrivePolicy": ""}) is None
    assert conflicting_attribute(current, {"KmsDataKeyReusePeriodSeconds": "300"}) is None
    assert conflicting_attribute(current, {"VisibilityTimeout": "1"}) == "VisibilityTimeout"
    assert conflicting_attribute(current, {"Policy": ""}) == "Policy"
    assert conflicting_attribute(current, {"DelaySeconds": "0", "RedrivePolicy": REDRIVE}) == (
        "RedrivePolicy"
    )


def test_create_compares_redrive_policies_by_meaning() -> None:
    current = initial_attributes("q", {"RedrivePolicy": REDRIVE})
    spelled = json.dumps({"maxReceiveCount": "3", "deadLetterTargetArn": DLQ})

    assert conflicting_attribute(current, {"RedrivePolicy": spelled}) is None


def test_only_the_asked_attributes_that_are_set_are_shown() -> None:
    queue = queue_with(initial_attributes("q", {}))

    assert shown_attributes(queue, None, COUNTERS) is None
    assert shown_attributes(queue, [], COUNTERS) is None
    assert shown_attributes(queue, ["Policy", "KmsMasterKeyId"], COUNTERS) is None
    assert shown_attributes(queue, ["FifoQueue", "DelaySeconds"], COUNTERS) == {"DelaySeconds": "0"}
    with pytest.raises(errors.InvalidAttributeName, match=r"^Unknown Attribute Foobar\.$"):
        shown_attributes(queue, ["All", "Foobar"], COUNTERS)


def test_counters_are_needed_for_all_and_for_the_three_counts() -> None:
    assert needs_counters(["All"])
    assert needs_counters(["Policy", "ApproximateNumberOfMessagesDelayed"])
    assert not needs_counters(["Policy", "QueueArn"])
    assert not needs_counters(None)


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (None, True),
        ({"redrivePermission": "allowAll"}, True),
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [DLQ]}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [DLQ + "2"]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [DLQ.replace("aws", "aws-cn")]}, True),
    ],
)
def test_a_redrive_allow_policy_decides_about_sources(policy: object, allowed: bool) -> None:
    given = {} if policy is None else {"RedriveAllowPolicy": json.dumps(policy)}

    assert redrive_allowed(initial_attributes("q", given), DLQ) is allowed


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"redrivePermission": "some"},
        {"redrivePermission": "allowAll", "more": 1},
        {"redrivePermission": "allowAll", "sourceQueueArns": [DLQ]},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": []},
        {"redrivePermission": "byQueue", "sourceQueueArns": [DLQ] * 11},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["q"]},
        {"redrivePermission": "byQueue", "sourceQueueArns": DLQ},
        {"redrivePermission": ["byQueue"]},
    ],
)
def test_a_malformed_redrive_allow_policy_is_refused(policy: object) -> None:
    with pytest.raises((errors.InvalidAttributeValue, errors.InvalidParameterValue)):
        initial_attributes("q", {"RedriveAllowPolicy": json.dumps(policy)})


def test_a_null_in_a_redrive_allow_policy_is_not_kept() -> None:
    given = '{"redrivePermission": "denyAll", "sourceQueueArns": null}'

    stored = initial_attributes("q", {"RedriveAllowPolicy": given})

    assert json.loads(stored["RedriveAllowPolicy"]) == {"redrivePermission": "denyAll"}


def test_settings_are_in_our_units() -> None:
    settings = settings_of(initial_attributes("q.fifo", FIFO | {"DelaySeconds": "7"}))

    assert (settings.delay_ms, settings.visibility_timeout_ms) == (7_000, 30_000)
    assert (settings.retention_ms, settings.wait_ms) == (345_600_000, 0)
    assert settings.fifo
    assert settings.redrive_policy is None


def test_tags_merge_keep_empty_values_and_are_bounded() -> None:
    assert checked_tags("q", {"a": "1", "b": "2"}, {"b": "", "B": "3"}) == {
        "a": "1",
        "b": "",
        "B": "3",
    }
    for bad in ({"": "x"}, {"k" * 129: "x"}, {"k": "v" * 257}, {"AWS:x": "y"}):
        with pytest.raises(errors.InvalidParameterValue):
            checked_tags("q", {}, bad)
    with pytest.raises(errors.InvalidParameterValue, match=r"^Too many tags added for queue q\.$"):
        checked_tags("q", {str(n): "" for n in range(50)}, {"one more": ""})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KmsMasterKeyId", "k" * 2049),
        ("RedrivePolicy", '{"k":' + "[" * 8192 + "}"),
        ("RedriveAllowPolicy", '{"redrivePermission":"allowAll"' + " " * 8192 + "}"),
    ],
)
def test_a_long_text_is_refused_without_being_read_or_repeated(name: str, text: str) -> None:
    with pytest.raises(
        errors.InvalidAttributeValue, match=f"^Invalid value for the parameter {name}.$"
    ):
        initial_attributes("q", {name: text})
