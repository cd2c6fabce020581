"""SendMessage: stored content, digests, refusals."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from compat_tests.facade import Client, receive, refusal

BODY_BYTES_MAX = 1048576
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


def string(value: str, data_type: str = "String") -> dict[str, str]:
    return {"DataType": data_type, "StringValue": value}


def binary(value: bytes) -> dict[str, Any]:
    return {"DataType": "Binary", "BinaryValue": value}


# The digests are recorded answers of AWS.
DIGESTS: dict[str, tuple[dict[str, Any], str]] = {
    "short": ({"k": string("x")}, "a45daa70926828a2f0a1db3418e6feb4"),
    "string": ({"MyAttribute": string("foobar")}, "adb59cd4678ea5a855436b949cd07ab6"),
    "other": ({"Foo": string("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
    "number": (
        {"timestamp": string("1493147359900", "Number")},
        "235c5c510d26fb653d073faed50ae77c",
    ),
    "binary": (
        {
            "attr1": binary(
                b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
            )
        },
        "8cbe4db156db8a94db8b801b7addb984",
    ),
    "three": (
        {"General": string("Kenobi"), "Hello": string("There"), "Help.Me": string("Me")},
        "4c360f3fdafd970e05fae2f149d997f5",
    ),
}


def test_answer_names_the_message_and_its_digest(sqs: Client, queue: str) -> None:
    sent = sqs.call("SendMessage", QueueUrl=queue, MessageBody="höld fast")

    assert set(sent) == {"MessageId", "MD5OfMessageBody"}
    assert str(uuid.UUID(sent["MessageId"])) == sent["MessageId"]
    assert sent["MD5OfMessageBody"] == hashlib.md5("höld fast".encode()).hexdigest()


@pytest.mark.parametrize("case", DIGESTS)
def test_attributes_are_digested_as_aws_does(sqs: Client, queue: str, case: str) -> None:
    attributes, digest = DIGESTS[case]

    sent = sqs.call("SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    (got,) = receive(sqs, queue, MessageAttributeNames=["All"])

    assert sent["MD5OfMessageAttributes"] == digest
    assert got["MD5OfMessageAttributes"] == digest
    assert got["MessageAttributes"] == attributes


def test_system_attributes_have_a_digest_of_their_own(sqs: Client, queue: str) -> None:
    sent = sqs.call(
        "SendMessage",
        QueueUrl=queue,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": string(TRACE)},
    )
    (got,) = receive(sqs, queue, AttributeNames=["AWSTraceHeader"])

    assert sent["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"
    assert "MD5OfMessageAttributes" not in sent
    assert got["Attributes"] == {"AWSTraceHeader": TRACE}


@pytest.mark.parametrize(
    "body",
    [
        "line\r\nline\ttab",
        'quotes " and &quot; and &#13; and <tag/> & more',
        "  spaces around  ",
        "Umläute, 漢字, 😀, \ufffd",
        "\n",
        " ",
        "%41+%2B=&;",
    ],
)
def test_body_comes_back_exactly(sqs: Client, queue: str, body: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody=body)

    (got,) = receive(sqs, queue)

    assert got["Body"] == body
    assert got["MD5OfBody"] == hashlib.md5(body.encode()).hexdigest()


# -- sizes -----------------------------------------------------------------------------------------


def test_largest_body_is_taken_and_one_byte_more_refused(sqs: Client, queue: str) -> None:
    body = "a" * BODY_BYTES_MAX

    sqs.call("SendMessage", QueueUrl=queue, MessageBody=body)
    error = refusal(sqs, "SendMessage", QueueUrl=queue, MessageBody=body + "a")

    assert receive(sqs, queue)[0]["Body"] == body
    assert error.code == "InvalidParameterValue"
    assert error.message == (
        "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
    )


def test_largest_body_passes_the_form_encoding(sqs: Client, queue: str) -> None:
    body = "é" * (BODY_BYTES_MAX // 2)  # six bytes each when percent-encoded

    sqs.call("SendMessage", QueueUrl=queue, MessageBody=body)

    assert receive(sqs, queue)[0]["Body"] == body


# -- syntax of attributes --------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", ["String.x", "Number.float", "Binary.png"])
def test_data_type_may_have_a_suffix(sqs: Client, queue: str, data_type: str) -> None:
    value = binary(b"\x00\xff") if data_type.startswith("Binary") else string("1")
    attributes = {"k": {**value, "DataType": data_type}}

    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)

    (got,) = receive(sqs, queue, MessageAttributeNames=["All"])
    assert got["MessageAttributes"] == attributes
