"""The content of messages, from request to storage and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from visibility.content.content import (
    Delivery,
    contents_of,
    contents_of_sends,
    message_of,
    selection_of,
)
from visibility.contract import errors, limits
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.death import Death
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import (
    MessageAttributeValue,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.results import Message

URL = "q"
LIMIT = 1_048_576
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


def queue_with(name: str = "q", **given: str) -> QueueDefinition:
    attributes = initial_attributes(name, given)
    return QueueDefinition(
        queue_id=1,
        account="000000000000",
        region="us-east-1",
        name=name,
        version=1,
        shard=0,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"",
        attributes=attributes,
        tags={},
        settings=settings_of(attributes),
    )


STANDARD = queue_with()
FIFO = queue_with("q.fifo", FifoQueue="true")
FIFO_BY_CONTENT = queue_with("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")


def text(value: str, data_type: str = "String") -> MessageAttributeValue:
    return MessageAttributeValue(data_type, value)


def sent(
    operation: SendMessage, queue: QueueDefinition = STANDARD, trace: str | None = None
) -> Content:
    (content,) = contents_of(operation, queue, "AIDA", trace)
    assert isinstance(content, Content)
    return content


def received(
    content: Content,
    system: Sequence[str] = (),
    user: Sequence[str] = (),
    source: str | None = None,
    death: Death | None = None,
) -> Message:
    selection = selection_of(
        ReceiveMessage(
            message_system_attribute_names=list(system), message_attribute_names=list(user)
        )
    )
    delivery = Delivery(
        message_id="id",
        receipt_handle="handle",
        sent_at_ms=1_700_000_000_123,
        receive_count=2,
        first_received_at_ms=1_700_000_000_456,
        dead_letter_source_arn=source,
        data=content.data,
        death=death,
    )
    return message_of(delivery, selection)


def refusal_of(operation: SendMessage, queue: QueueDefinition = STANDARD) -> errors.QueueError:
    with pytest.raises(errors.QueueError) as refusal:
        contents_of(operation, queue, "AIDA", None)
    return refusal.value


# -- sizes -----------------------------------------------------------------------------------------


def test_a_body_of_exactly_the_limit_is_accepted_and_one_byte_more_refused() -> None:
    assert sent(SendMessage(URL, "x" * LIMIT)).size == LIMIT

    refusal = refusal_of(SendMessage(URL, "x" * (LIMIT + 1)))

    assert isinstance(refusal, errors.InvalidParameterValue)
    assert refusal.message == (
        "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
    )


def test_size_counts_utf8_bytes_and_name_type_and_value_of_attributes() -> None:
    attributes = {"name": text("€"), "bin": MessageAttributeValue("Binary.x", None, b"\x00\x01")}

    content = sent(
        SendMessage(
            URL,
            "äb",
            message_attributes=attributes,
            message_system_attributes={"AWSTraceHeader": text(TRACE)},
        )
    )

    assert content.size == 3 + (4 + 6 + 3) + (3 + 8 + 2)


def test_attributes_count_towards_the_limit_of_the_queue() -> None:
    queue = queue_with(MaximumMessageSize="1024")
    attributes = {"k": text("x")}

    assert sent(SendMessage(URL, "x" * 1016, message_attributes=attributes), queue).size == 1024
    refusal = refusal_of(SendMessage(URL, "x" * 1017, message_attributes=attributes), queue)
    assert refusal.message.endswith("Message must be shorter than 1024 bytes.")


def test_an_oversized_entry_fails_alone_with_its_own_wording() -> None:
    queue = queue_with(MaximumMessageSize="1024")
    entries = [
        SendMessageBatchRequestEntry("a", "x" * 1024),
        SendMessageBatchRequestEntry("b", "x" * 1025),
        SendMessageBatchRequestEntry("c", "\x00"),
        SendMessageBatchRequestEntry("d", "x", 901),
        SendMessageBatchRequestEntry("e", "x" * 1024),
    ]

    a, b, c, d, e = contents_of(SendMessageBatch(URL, entries), queue, "AIDA", None)

    assert isinstance(a, Content)
    assert isinstance(e, Content)
    assert isinstance(b, errors.InvalidParameterValue)
    assert b.message == (
        "One or more parameters cannot be validated. "
        "Reason: Message must be shorter than 1024 bytes."
    )
    assert isinstance(c, errors.InvalidMessageContents)
    assert isinstance(d, errors.InvalidParameterValue)


@pytest.mark.parametrize("last", ["x" * 26, "é" * 13, "x" * (LIMIT + 26)])
def test_a_batch_one_byte_too_long_is_refused_with_its_exact_total(last: str) -> None:
    entries = [
        SendMessageBatchRequestEntry("a", "x" * (LIMIT - 33), None, {"k": text("x")}),
        SendMessageBatchRequestEntry("b", last),
    ]
    total = LIMIT - 33 + 8 + len(last.encode())

    with pytest.raises(errors.BatchRequestTooLong) as refusal:
        contents_of(SendMessageBatch(URL, entries), STANDARD, "AIDA", None)

    assert total in (LIMIT + 1, 2 * LIMIT + 1)
    assert refusal.value.message == (
        f"Batch requests cannot be longer than 1048576 bytes. You have sent {total} bytes."
    )


def test_a_batch_of_exactly_the_limit_is_accepted() -> None:
    for queue, group in ((STANDARD, None), (FIFO_BY_CONTENT, "g")):
        entries = [
            SendMessageBatchRequestEntry("a", "x" * (LIMIT - 1), message_group_id=group),
            SendMessageBatchRequestEntry("b", "x", message_group_id=group),
        ]

        assert len(contents_of(SendMessageBatch(URL, entries), queue, "AIDA", None)) == 2


def test_an_entry_that_is_refused_counts_for_the_size_of_its_batch() -> None:
    entries = [
        SendMessageBatchRequestEntry("a", "x" * (LIMIT - 5), None, {"k": text("")}),
        SendMessageBatchRequestEntry("b", "\x00" * 5),
    ]

    with pytest.raises(errors.BatchRequestTooLong, match=f"You have sent {LIMIT + 7} bytes"):
        contents_of(SendMessageBatch(URL, entries), STANDARD, "AIDA", None)


def test_a_delay_out_of_range_refuses_its_entry_in_a_batch_without_others() -> None:
    for delay_s in (-1, 901):
        batch = SendMessageBatch(URL, [SendMessageBatchRequestEntry("a", "x", delay_s)])
        (refusal,) = contents_of(batch, STANDARD, "AIDA", None)
        assert isinstance(refusal, errors.InvalidParameterValue)


# -- characters ------------------------------------------------------------------------------------

FORBIDDEN = ["\x00", "\x01", "\x08", "\x0b", "\x13", "\x1f", "\ufffe", "\uffff", "\ud800", "\udfff"]
ALLOWED = [
    "\t",
    "\n",
    "\r",
    " ",
    "\x7f",
    "\x80",
    "\ud7ff",
    "\ue000",
    "\ufffd",
    "\U00010000",
    "\U0010ffff",
]


@pytest.mark.parametrize("character", FORBIDDEN)
def test_characters_outside_xml_are_refused_in_bodies_and_attributes(character: str) -> None:
    body = refusal_of(SendMessage(URL, "a" + character))
    attribute = refusal_of(SendMessage(URL, "a", message_attributes={"k": text("a" + character)}))

    assert isinstance(body, errors.InvalidMessageContents)
    assert isinstance(attribute, errors.InvalidParameterValue)
    assert "Invalid" in attribute.message


@pytest.mark.parametrize("character", ALLOWED)
def test_characters_of_xml_are_kept(character: str) -> None:
    assert received(sent(SendMessage(URL, "a" + character))).body == "a" + character


# -- message attributes ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-b_9.c", "x" * 256, "awsome", "amazonas.x", "øßäÀſ"])
def test_names_of_the_alphabet_are_accepted(name: str) -> None:
    assert sent(SendMessage(URL, "b", message_attributes={name: text("x")}))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "aws.x",
        "AWS.x",
        "amazon.x",
        "Amazon.x",
        ".x",
        "x.",
        "a..b",
        "x" * 257,
        "\ud800",
        "a\n",
        "×",
        "имя",
    ]
    + [f"a{c}" for c in '!"§(? '],
)
def test_other_names_are_refused(name: str) -> None:
    refusal = refusal_of(SendMessage(URL, "b", message_attributes={name: text("x")}))

    assert type(refusal) is errors.InvalidParameterValue


@pytest.mark.parametrize(
    "value",
    [
        MessageAttributeValue(None, "x"),
        text("x", ""),
        text("x", "Text"),
        text("x", "string"),
        text("x", "Stringy"),
        text("1", "Number." + "x" * 256),
        text("1", "Number."),
        text("1", "Number.x y"),
        text("x", "String. x"),
        text("x", "String.x "),
        text("one", "Number"),
        text("x", "Binary"),
        MessageAttributeValue("String", None, b"x"),
        MessageAttributeValue("String", "x", b"x"),
        MessageAttributeValue("String"),
        MessageAttributeValue("Binary", None, b""),
    ],
)
def test_malformed_attribute_values_are_refused(value: MessageAttributeValue) -> None:
    refusal = refusal_of(SendMessage(URL, "b", message_attributes={"k": value}))

    assert type(refusal) is errors.InvalidParameterValue


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-0.0",
        "007",
        "1" * 38,
        "-1" + "0" * 126,
        "1E126",
        "+1e-128",
        "." + "0" * 127 + "1",
        "0e999999999999999999999",
        "230.000000000000000001",
        "9." + "9" * 37 + "e125",
    ],
)
def test_numbers_within_the_range_of_aws_are_accepted(number: str) -> None:
    assert sent(SendMessage(URL, "b", message_attributes={"k": text(number, "Number")}))


@pytest.mark.parametrize(
    "number",
    [
        "",
        " 1",
        "0x1",
        "1_0",
        "١",
        "NaN",
        "Infinity",
        "e5",
        "1e",
        "1" * 39,
        "1." + "0" * 37 + "1",
        "-1.1e126",
        "1e127",
        "9e-129",
        "1e999999999999999999999",
        "1e-999999999999999999999",
        "1e" + "9" * 100000,
    ],
)
def test_other_numbers_are_refused(number: str) -> None:
    refusal = refusal_of(SendMessage(URL, "b", message_attributes={"k": text(number, "Number")}))

    assert type(refusal) is errors.InvalidParameterValue
    assert refusal.message in (
        "Can't cast the value of message (user) attribute 'k' to a number.",
        "Message (user) attribute 'k' must contain a non-empty value of type 'Number'.",
    )


def test_an_empty_string_attribute_is_refused_in_the_words_of_aws() -> None:
    refusal = refusal_of(SendMessage(URL, "b", message_attributes={"Name": text("")}))

    assert refusal.message == (
        "Message (user) attribute 'Name' must contain a non-empty value of type 'String'."
    )


def test_lists_and_an_eleventh_attribute_are_refused() -> None:
    listed = MessageAttributeValue("String", string_list_values=["x"])
    eleven = {f"k{n}": text("x") for n in range(11)}

    assert isinstance(
        refusal_of(SendMessage(URL, "b", message_attributes={"k": listed})),
        errors.UnsupportedOperation,
    )
    assert "[11]" in refusal_of(SendMessage(URL, "b", message_attributes=eleven)).message
    del eleven["k0"]
    eleven["k1"] = text("1", "Number." + "x" * 249)  # the longest type
    assert sent(SendMessage(URL, "b", message_attributes=eleven))
    by_python = SendMessage(URL, "b", message_attributes=eleven, message_group_id="g")
    assert sent(by_python, FIFO_BY_CONTENT)


def test_only_a_trace_header_of_type_string_is_a_system_attribute() -> None:
    for given_attributes in ({"Other": text("x")}, {"AWSTraceHeader": text("1", "Number")}):
        operation = SendMessage(URL, "b", message_system_attributes=given_attributes)
        assert isinstance(refusal_of(operation), errors.InvalidParameterValue)


# -- groups, deduplication, delay ------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "é"])
@pytest.mark.parametrize("queue", [STANDARD, FIFO], ids=["standard", "fifo"])
def test_a_malformed_group_is_echoed_on_both_types_of_queue(
    value: str, queue: QueueDefinition
) -> None:
    deduplication_id = "d" if queue is FIFO else None

    refusal = refusal_of(
        SendMessage(URL, "b", message_group_id=value, message_deduplication_id=deduplication_id),
        queue,
    )

    assert type(refusal) is errors.InvalidParameterValue
    assert refusal.message == (
        f"Value {value} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only "
        "include alphanumeric and punctuation characters. 1 to 128 in length."
    )


@pytest.mark.parametrize(
    ("body", "named"),
    [("a\x07b\x01", "#x7"), ("\t\n\r\x1f", "#x1F"), ("é\uffff", "#xFFFF"), ("\ud800", "#xD800")],
)
def test_the_first_character_that_a_body_may_not_hold_is_named(body: str, named: str) -> None:
    refused = refusal_of(SendMessage(URL, body))

    assert refused.code == "InvalidMessageContents"
    assert refused.message == (
        f"Invalid binary character '{named}' was found in the message body, the set of allowed "
        "characters is #x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]."
    )


@pytest.mark.parametrize("value", ["", "x" * 129, "a b"])
def test_a_malformed_deduplication_id_is_refused_on_fifo_and_any_on_standard(value: str) -> None:
    fifo = refusal_of(
        SendMessage(URL, "b", message_group_id="g", message_deduplication_id=value), FIFO
    )
    standard = refusal_of(SendMessage(URL, "b", message_deduplication_id="x"))

    assert fifo.message == (
        f"Value {value} for parameter MessageDeduplicationId is invalid. Reason: "
        "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 "
        "in length."
    )
    assert standard.message == (
        "Value x for parameter MessageDeduplicationId is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )


def test_the_scope_of_deduplication_is_the_queue_or_the_group() -> None:
    grouped = replace(FIFO, deduplication_scope="messageGroup")
    for queue, ids in ((FIFO, 1), (grouped, 2)):
        contents = [
            sent(SendMessage(URL, "b", None, None, None, "d", group), queue)
            for group in ("g", "h", "g")
        ]
        assert len({content.deduplication for content in contents}) == ids


def test_a_parameter_of_the_other_type_has_its_reason_alone_in_a_batch() -> None:
    entry = SendMessageBatchRequestEntry("1", "b", message_deduplication_id="d")
    (refusal,) = contents_of(SendMessageBatch(URL, [entry]), STANDARD, "AIDA", None)

    assert isinstance(refusal, errors.InvalidParameterValue)
    assert refusal.message == "The request include parameter that is not valid for this queue type"


def test_a_missing_group_has_another_code_in_a_batch() -> None:
    single = refusal_of(SendMessage(URL, "b", message_deduplication_id="d"), FIFO)
    entries = [
        SendMessageBatchRequestEntry("1", "b", message_group_id="g", message_deduplication_id="d"),
        SendMessageBatchRequestEntry("2", "b", message_deduplication_id="d"),
    ]

    with pytest.raises(errors.InvalidParameterValue) as whole:
        contents_of(SendMessageBatch(URL, entries), FIFO, "AIDA", None)

    assert type(single) is errors.MissingParameter
    assert single.message == "The request must contain the parameter MessageGroupId."
    assert whole.value.message == single.message


def test_a_missing_deduplication_id_refuses_the_whole_request() -> None:
    wording = (
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )
    entry = SendMessageBatchRequestEntry("1", "b", message_group_id="g")

    with pytest.raises(errors.InvalidParameterValue) as whole:
        contents_of(SendMessageBatch(URL, [entry]), FIFO, "AIDA", None)

    assert whole.value.message == wording
    assert refusal_of(SendMessage(URL, "b", message_group_id="g"), FIFO).message == wording


def test_content_gives_the_deduplication_id_unless_one_is_given() -> None:
    by_content = sent(SendMessage(URL, "b", message_group_id="g"), FIFO_BY_CONTENT)
    explicit = sent(
        SendMessage(URL, "b", message_group_id="g", message_deduplication_id="d"), FIFO_BY_CONTENT
    )
    names = ["MessageDeduplicationId", "MessageGroupId"]

    assert received(by_content, names).attributes == {
        "MessageDeduplicationId": hashlib.sha256(b"b").hexdigest(),
        "MessageGroupId": "g",
    }
    assert received(explicit, names).attributes == {
        "MessageDeduplicationId": "d",
        "MessageGroupId": "g",
    }


def test_a_fifo_queue_refuses_a_delay_of_its_own_but_accepts_zero() -> None:
    assert sent(
        SendMessage(URL, "b", delay_seconds=0, message_group_id="g", message_deduplication_id="d"),
        FIFO,
    )
    assert refusal_of(
        SendMessage(URL, "b", delay_seconds=5, message_group_id="g", message_deduplication_id="d"),
        FIFO,
    ).message == (
        "Value 5 for parameter DelaySeconds is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )


@pytest.mark.parametrize("queue", [STANDARD, FIFO_BY_CONTENT], ids=["standard", "fifo"])
def test_several_sends_are_packed_as_each_alone_and_a_refusal_is_in_its_place(
    queue: QueueDefinition,
) -> None:
    group = "g" if queue.settings.fifo else None
    bodies = ("one", "x" * (limits.MAXIMUM_MESSAGE_SIZE.high + 1), "two", "\x00")
    sends = [SendMessage(URL, body, message_group_id=group) for body in bodies]

    one, too_long, two, outside_xml = contents_of_sends(sends, queue, "sender", None)

    assert (one,) == contents_of(sends[0], queue, "sender", None)
    assert (two,) == contents_of(sends[2], queue, "sender", None)
    assert isinstance(too_long, errors.InvalidParameterValue)
    assert isinstance(outside_xml, errors.InvalidMessageContents)
    plain = contents_of_sends([sends[0], sends[2]], queue, "sender", None)
    assert plain == (one, two)
