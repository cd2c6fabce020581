"""Refusals that need no queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from visibility.contract import errors
from visibility.contract import operations as ops
from visibility.contract.actions import ACTIONS, Action, check

URL = "http://localhost/000000000000/q"
ARN = "arn:aws:sqs:us-east-1:000000000000:q"

ACCEPTED: list[ops.Operation] = [
    ops.SendMessage(URL, "body"),
    ops.SendMessage(URL, "body", delay_seconds=0),
    ops.SendMessage(URL, "body", delay_seconds=900),
    ops.SendMessageBatch(
        URL,
        [ops.SendMessageBatchRequestEntry(id=str(n), message_body="b") for n in range(10)],
    ),
    ops.ReceiveMessage(URL),
    ops.ReceiveMessage(
        URL,
        attribute_names=["All", "SenderId"],
        message_system_attribute_names=["AWSTraceHeader"],
        message_attribute_names=["AWS.x", "..foo", "*"],
        max_number_of_messages=10,
        visibility_timeout=43_200,
        wait_time_seconds=20,
        receive_request_attempt_id="~" * 128,
    ),
    ops.ReceiveMessage(
        URL, max_number_of_messages=1, visibility_timeout=0, wait_time_seconds=0, attribute_names=[]
    ),
    ops.DeleteMessage(URL, "handle"),
    ops.DeleteMessageBatch(
        URL, [ops.DeleteMessageBatchRequestEntry(id="a_B-" * 20, receipt_handle="h")]
    ),
    ops.ChangeMessageVisibility(URL, "handle", 0),
    ops.ChangeMessageVisibilityBatch(
        URL, [ops.ChangeMessageVisibilityBatchRequestEntry("1", "h", 50_000)]
    ),
    ops.PurgeQueue(URL),
    ops.CreateQueue("q", {}, {"key": ""}),
    ops.DeleteQueue(URL),
    ops.GetQueueUrl("q"),
    ops.ListQueues(),
    ops.ListQueues(max_results=1000),
    ops.GetQueueAttributes(URL),
    ops.SetQueueAttributes(URL, {"Policy": ""}),
    ops.ListQueueTags(URL),
    ops.TagQueue(URL, {"key": ""}),
    ops.UntagQueue(URL, ["unknown", "k" * 128]),
    ops.ListDeadLetterSourceQueues(URL, max_results=1),
    ops.AddPermission(URL, "l" * 80, ["123456789012"], ["SendMessage", "*"]),
    ops.RemovePermission(URL, "label"),
    ops.StartMessageMoveTask(ARN, ARN, 500),
    ops.CancelMessageMoveTask("handle"),
    ops.ListMessageMoveTasks(ARN, 10),
]


@pytest.mark.parametrize("operation", ACCEPTED, ids=lambda operation: type(operation).__name__)
def test_what_sqs_accepts_passes(operation: ops.Operation) -> None:
    check(operation)


def test_every_action_of_the_table_has_its_rules() -> None:
    assert {type(operation).__name__ for operation in ACCEPTED} == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: str(action.name))
def test_the_first_required_member_is_reported_in_the_words_of_aws(action: Action) -> None:
    if not action.required:
        return

    with pytest.raises(errors.MissingParameter) as refusal:
        check(action.request())

    member = ops.member_name(action.required[0])
    assert refusal.value.message == f"The request must contain the parameter {member}."


MISSING: list[tuple[ops.Operation, str]] = [
    (ops.SendMessage(URL), "MessageBody"),
    (ops.SendMessage(URL, ""), "MessageBody"),
    (ops.DeleteMessage(URL), "ReceiptHandle"),
    (ops.ChangeMessageVisibility(URL, "h"), "VisibilityTimeout"),
    (ops.SetQueueAttributes(URL, {}), "Attributes"),
    (ops.TagQueue(URL, {}), "Tags"),
    (ops.UntagQueue(None, ["a"]), "QueueUrl"),
    (ops.AddPermission(URL, "l"), "Actions"),
    (
        ops.SendMessageBatch(URL, [ops.SendMessageBatchRequestEntry("1")]),
        "SendMessageBatchRequestEntry.1.MessageBody",
    ),
    (
        ops.SendMessageBatch(URL, [ops.SendMessageBatchRequestEntry(message_body="b")]),
        "SendMessageBatchRequestEntry.1.Id",
    ),
    (
        ops.DeleteMessageBatch(
            URL,
            [
                ops.DeleteMessageBatchRequestEntry("1", "h"),
                ops.DeleteMessageBatchRequestEntry("2"),
            ],
        ),
        "DeleteMessageBatchRequestEntry.2.ReceiptHandle",
    ),
    (
        ops.ChangeMessageVisibilityBatch(
            URL, [ops.ChangeMessageVisibilityBatchRequestEntry("1", None, 0)]
        ),
        "ChangeMessageVisibilityBatchRequestEntry.1.ReceiptHandle",
    ),
]


@pytest.mark.parametrize(("operation", "member"), MISSING)
def test_a_missing_member_is_named(operation: ops.Operation, member: str) -> None:
    with pytest.raises(errors.MissingParameter) as refusal:
        check(operation)

    assert refusal.value.message == f"The request must contain the parameter {member}."


INVALID: list[tuple[ops.Operation, str]] = (
    [
        (
            ops.ReceiveMessage(URL, max_number_of_messages=n),
            f"Value {n} for parameter MaxNumberOfMessages is invalid. "
            "Reason: Must be between 1 and 10, if provided.",
        )
        for n in (0, 11, -1)
    ]
    + [
        (
            ops.ReceiveMessage(URL, wait_time_seconds=n),
            f"Value {n} for parameter WaitTimeSeconds is invalid. "
            "Reason: Must be >= 0 and <= 20, if provided.",
        )
        for n in (21, -1)
    ]
    + [
        (
            ops.ReceiveMessage(URL, visibility_timeout=43_201),
            "Value 43201 for parameter VisibilityTimeout is invalid. "
            "Reason: Must be >= 0 and <= 43200, if provided.",
        ),
        (
            ops.ChangeMessageVisibility(URL, "h", -1),
            "Value -1 for parameter VisibilityTimeout is invalid. "
            "Reason: Must be between 0 and 43200.",
        ),
        (
            ops.ListQueues(max_results=0),
            "Value for parameter MaxResults is invalid. "
            "Reason: MaxResults must be an integer between 1 and 1000.",
        ),
        (
            ops.ListMessageMoveTasks(ARN, 11),
            "Value for parameter MaxResults is invalid. "
            "Reason: You must enter a number that's between 1 and 10.",
        ),
        (
            ops.StartMessageMoveTask("q"),
            "You must use this format to specify the SourceArn: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>",
        ),
        (ops.CreateQueue(""), "Queue name cannot be empty"),
        (
            ops.AddPermission(URL, "l", ["123456789012"], ["Bad"]),
            "Value SQS:Bad for parameter ActionName is invalid. "
            "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
        ),
        (
            ops.AddPermission(URL, "l", ["123456789012"], ["CreateQueue"]),
            "Value SQS:CreateQueue for parameter ActionName is invalid. "
            "Reason: Only the queue owner is allowed to invoke this action.",
        ),
        (
            ops.AddPermission(URL, "l", ["*"], ["*"]),
            "Value [*] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (
            ops.AddPermission(URL, "l", ["123456789012", "me"], ["*"]),
            "Value [123456789012, me] for parameter PrincipalId is invalid. "
            "Reason: Unable to verify.",
        ),
        (
            ops.RemovePermission(URL, "a b"),
            "Value a b for parameter Label is invalid. Reason: Can only include alphanumeric "
            "characters, hyphens, or underscores. 1 to 80 in length.",
        ),
    ]
    + [
        (
            ops.AddPermission(URL, "l", accounts, ["*"]),
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        )
        for accounts in (list[str](), None)
    ]
    + [
        (
            ops.AddPermission(URL, label, ["123456789012"], ["*"]),
            f"Value {label} for parameter Label is invalid. Reason: Can only include alphanumeric "
            "characters, hyphens, or underscores. 1 to 80 in length.",
        )
        for label in ("a" * 81, "a:b")
    ]
    + [
        (
            ops.ReceiveMessage(URL, receive_request_attempt_id=attempt),
            f"Value {attempt} for parameter ReceiveRequestAttemptId is invalid. Reason: "
            "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. "
            "1 to 128 in length.",
        )
        for attempt in ("", "a" * 129, "a b")
    ]
    + [
        (
            ops.SendMessage(URL, "b", delay_seconds=n),
            f"Value {n} for parameter DelaySeconds is invalid. "
            "Reason: DelaySeconds must be >= 0 and <= 900.",
        )
        for n in (901, -1)
    ]
    + [
        (
            ops.StartMessageMoveTask(ARN, None, n),
            "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
            "Reason: You must enter a number that's between 1 and 500.",
        )
        for n in (0, -1, 501)
    ]
    + [
        (
            ops.UntagQueue(URL, keys),
            "Tag keys must be between 1 and 128 characters in length.",
        )
        for keys in (None, [], ["a", ""], ["a", "k" * 129])
    ]
)


@pytest.mark.parametrize(("operation", "message"), INVALID)
def test_a_value_out_of_range_is_refused_in_the_words_of_aws(
    operation: ops.Operation, message: str
) -> None:
    with pytest.raises(errors.InvalidParameterValue) as refusal:
        check(operation)

    assert refusal.value.message == message


@pytest.mark.parametrize(
    "operation",
    [
        ops.ReceiveMessage(URL, attribute_names=["Foobar"]),
        ops.ReceiveMessage(URL, message_system_attribute_names=["All", "Foobar"]),
    ],
)
def test_an_unknown_system_attribute_is_named(operation: ops.ReceiveMessage) -> None:
    with pytest.raises(errors.InvalidAttributeName, match=r"^Unknown Attribute Foobar\.$"):
        check(operation)


def test_more_than_seven_actions_are_over_the_limit() -> None:
    with pytest.raises(errors.OverLimit):
        check(ops.AddPermission(URL, "l", ["123456789012"], ["SendMessage"] * 8))


class Unread(list[str]):
    """A list whose elements must not be looked at."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a list that is too long was read")

    __getitem__ = None  # type: ignore[assignment]


class UnreadTags(dict[str, str]):
    """Tags that must not be looked at."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a map that is too large was read")

    items = keys = values = __iter__  # type: ignore[assignment]


MANY_TAGS = UnreadTags({str(number): "" for number in range(51)})
NAMES = "Value for parameter {} is invalid. Reason: A request cannot have more than 200 names."


@pytest.mark.parametrize(
    ("operation", "refused", "message"),
    [
        (
            ops.AddPermission(URL, "l", ["123456789012"], Unread(["SendMessage"] * 8)),
            errors.OverLimit,
            "8 Actions were found, maximum allowed is 7.",
        ),
        (
            ops.AddPermission(URL, "l", Unread(["1"] * 700), ["SendMessage"]),
            errors.OverLimit,
            "Submitted policy is over max allowed size.",
        ),
        (
            ops.CreateQueue("q", {}, MANY_TAGS),
            errors.InvalidParameterValue,
            "Too many tags added for queue q.",
        ),
        (
            ops.TagQueue(URL, MANY_TAGS),
            errors.InvalidParameterValue,
            "Too many tags added for queue q.",
        ),
        (
            ops.UntagQueue(URL, Unread(["a"] * 51)),
            errors.InvalidParameterValue,
            "Too many tag keys for queue q.",
        ),
        *(
            (
                replace(make(URL), **{field: Unread(["All"] * 201)}),
                errors.InvalidParameterValue,
                text,
            )
            for make, field, text in (
                (ops.ReceiveMessage, "attribute_names", NAMES.format("AttributeNames")),
                (
                    ops.ReceiveMessage,
                    "message_system_attribute_names",
                    NAMES.format("MessageSystemAttributeNames"),
                ),
                (
                    ops.ReceiveMessage,
                    "message_attribute_names",
                    NAMES.format("MessageAttributeNames"),
                ),
                (ops.GetQueueAttributes, "attribute_names", NAMES.format("AttributeNames")),
            )
        ),
    ],
)
def test_what_is_too_long_is_refused_before_its_elements_are_read(
    operation: ops.Operation, refused: type[errors.QueueError], message: str
) -> None:
    with pytest.raises(errors.QueueError) as refusal:
        check(operation)

    assert (type(refusal.value), refusal.value.message) == (refused, message)


def test_as_many_as_are_allowed_are_accepted() -> None:
    check(ops.TagQueue(URL, {str(number): "" for number in range(50)}))
    check(ops.UntagQueue(URL, ["a"] * 50))
    check(ops.ReceiveMessage(URL, ["All"] * 200, ["All"] * 200, ["All"] * 200))
    check(ops.GetQueueAttributes(URL, ["All"] * 200))
    check(ops.AddPermission(URL, "l", ["123456789012"] * 682, ["SendMessage"] * 7))


def batch_of(kind: str, ids: list[str]) -> ops.Operation:
    if kind == "Send":
        return ops.SendMessageBatch(
            URL, [ops.SendMessageBatchRequestEntry(id, "body") for id in ids]
        )
    if kind == "Delete":
        return ops.DeleteMessageBatch(
            URL, [ops.DeleteMessageBatchRequestEntry(id, "handle") for id in ids]
        )
    return ops.ChangeMessageVisibilityBatch(
        URL, [ops.ChangeMessageVisibilityBatchRequestEntry(id, "handle", 1) for id in ids]
    )


@pytest.mark.parametrize("kind", ["Send", "Delete", "ChangeVisibility"])
def test_all_three_batches_keep_the_rules_of_batches(kind: str) -> None:
    with pytest.raises(errors.EmptyBatchRequest, match=r"^There should be at least one .*Entry in"):
        check(batch_of(kind, []))

    with pytest.raises(errors.TooManyEntriesInBatchRequest) as too_many:
        check(batch_of(kind, [str(n) for n in range(11)]))
    assert too_many.value.message == (
        "Maximum number of entries per request are 10. You have sent 11."
    )

    for bad in ("", "x" * 81, "a:b", "a\n", "é"):
        with pytest.raises(errors.InvalidBatchEntryId):
            check(batch_of(kind, ["ok", "ok", bad]))

    with pytest.raises(errors.BatchEntryIdsNotDistinct, match=r"^Id a repeated\.$"):
        check(batch_of(kind, ["a", "b", "a", "b"]))
