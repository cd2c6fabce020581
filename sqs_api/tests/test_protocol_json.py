"""AWS JSON 1.0: requests read, requests refused with their wording, and written answers."""

from __future__ import annotations

import json

import msgspec
import pytest

from sqs_api.protocol.codec import Decoded, Wire, decode_request, encode_result
from visibility.contract import results
from visibility.contract.actions import ACTIONS, check
from visibility.contract.errors import (
    InvalidAction,
    InvalidParameterValue,
    InvalidRequest,
    RequestTooLarge,
    TooManyEntriesInBatchRequest,
)
from visibility.contract.operations import (
    MessageAttributeValue,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)


def _decode(action: str, body: bytes) -> Decoded:
    headers = {
        b"content-type": b"application/x-amz-json-1.0",
        b"x-amz-target": f"AmazonSQS.{action}".encode(),
    }
    return decode_request(b"POST", b"/", headers, body)


def test_send_message_decodes() -> None:
    body = (
        b'{"QueueUrl":"http://h/1/q","MessageBody":"hi","MessageAttributes":'
        b'{"b":{"DataType":"Binary","BinaryValue":"AP8="}}}'
    )

    assert _decode("SendMessage", body) == Decoded(
        SendMessage(
            queue_url="http://h/1/q",
            message_body="hi",
            message_attributes={
                "b": MessageAttributeValue(data_type="Binary", binary_value=b"\x00\xff")
            },
        ),
        "SendMessage",
        Wire.JSON,
    )


@pytest.mark.parametrize(
    "body", [b"", b"{}", b' {"Unknown":{"deep":[1,null]},"QueueUrl":null,"queueurl":"q"} ']
)
def test_unknown_and_null_and_missing_members_are_absent(body: bytes) -> None:
    assert _decode("SendMessage", body).operation == SendMessage()


def test_old_and_new_attribute_names_stay_apart() -> None:
    body = b'{"AttributeNames":["All"],"MessageSystemAttributeNames":["SenderId"]}'

    assert _decode("ReceiveMessage", body).operation == ReceiveMessage(
        attribute_names=["All"], message_system_attribute_names=["SenderId"]
    )


def test_present_and_empty_is_not_absent() -> None:
    body = b'{"MessageBody":"","MessageAttributes":{}}'

    assert _decode("SendMessage", body).operation == SendMessage(
        message_body="", message_attributes={}
    )
    assert _decode("SendMessageBatch", b'{"Entries":[]}').operation == SendMessageBatch(entries=[])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"DelaySeconds":"1"}', "STRING_VALUE can not be converted to an Integer"),
        (b'{"MessageBody":1}', "NUMBER_VALUE can not be converted to a String"),
        (b'{"MessageBody":1.5}', "NUMBER_VALUE can not be converted to a String"),
        (b'{"MessageBody":[]}', "Start of list found where not expected"),
        (b"[]", "Start of list found where not expected"),
        (b'{"MessageBody":{}}', "Start of structure or map found where not expected."),
        (b'{"DelaySeconds":{}}', "Start of structure or map found where not expected."),
        (b'{"MessageAttributes":"x"}', "Expected null"),
        (b'{"MessageAttributes":{"a":{"StringListValues":"x"}}}', "Expected list or null"),
    ],
)
def test_wrong_types_are_refused_in_the_words_of_aws(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        _decode("SendMessage", body)

    assert refusal.value.message == message


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{} x",
        b"null",
        b'"a"',
        b"<xml/>",
        b"Action=SendMessage",
        b'{"MessageBody":"\xff"}',
        b'{"MessageBody":"\\ud800"}',
        b'{"MessageAttributes":{"a":null}}',
        b'{"MessageAttributes":{"a":{"BinaryValue":"!!"}}}',
        b'{"MessageAttributes":{"a":{"BinaryValue":"YQ"}}}',
        b'{"DelaySeconds":1e400}',
        b'{"DelaySeconds":true}',
        b'{"DelaySeconds":' + b"9" * 10_000 + b"}",
        b'{"Unknown":' + b"[" * 100_000,
        b'{"Unknown":' + b'{"a":' * 100_000,
    ],
)
def test_what_is_not_a_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        _decode("SendMessage", body)


@pytest.mark.parametrize(
    "text",
    [
        r"\ud800",
        r"\ud800x",
        r"a\uDBff is half of a character, and this text goes on",
        r"\ud800\u0041",
        r"\ud83d\ude00\ud83d",
        r"\\\ud83d",
        r"\udc00",
        r"\ud83d\ude00 \\ud800 \uDFFF",
    ],
)
def test_half_a_surrogate_pair_is_named(text: str) -> None:
    for body in (f'{{"MessageBody":"{text}"}}', f'{{"{text}":1}}'):
        with pytest.raises(InvalidRequest) as refusal:
            _decode("SendMessage", body.encode())

        assert refusal.value.message == (
            "A string of the request has half of a UTF-16 surrogate pair, which is no character."
        )


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud800", r"\\\\ud800"])
def test_whole_pairs_and_escaped_backslashes_are_not_taken_for_one(text: str) -> None:
    whole = f'{{"MessageBody":"{text}"}}'.encode()
    expected = SendMessage(message_body=json.loads(f'"{text}"'))
    assert _decode("SendMessage", whole).operation == expected

    for body in (whole[:-1], whole + b"x"):
        with pytest.raises(InvalidRequest) as refusal:
            _decode("SendMessage", body)
        assert "surrogate" not in refusal.value.message


@pytest.mark.parametrize("target", [b"AmazonSQS.Nonsense", b"AmazonSNS.Publish", b"", b"\xff"])
def test_unknown_target_is_refused(target: bytes) -> None:
    headers = {b"content-type": b"application/x-amz-json-1.0", b"x-amz-target": target}

    with pytest.raises(InvalidAction):
        decode_request(b"POST", b"/", headers, b"{}")


def _encode(action: str, result: results.Result | None) -> bytes:
    return encode_result(action, Wire.JSON, result, "request-1")


def test_empty_answers_are_empty_objects() -> None:
    assert _encode("DeleteMessage", None) == b"{}"
    assert _encode("ReceiveMessage", results.ReceiveMessageResult()) == b"{}"
    assert _encode("ListQueues", results.ListQueuesResult()) == b"{}"


def test_absent_lists_of_a_batch_stay_absent() -> None:
    result = results.SendMessageBatchResult(
        failed=[results.BatchResultErrorEntry("a", True, "InvalidParameterValue", "why")]
    )

    assert _encode("SendMessageBatch", result) == (
        b'{"Failed":[{"Id":"a","SenderFault":true,"Code":"InvalidParameterValue","Message":"why"}]}'
    )


def test_irregular_member_names() -> None:
    message = results.Message("id", "handle", "md5", "body", md5_of_message_attributes="md5a")

    assert _encode("ReceiveMessage", results.ReceiveMessageResult([message])) == (
        b'{"Messages":[{"MessageId":"id","ReceiptHandle":"handle","MD5OfBody":"md5",'
        b'"Body":"body","MD5OfMessageAttributes":"md5a"}]}'
    )
    sources = results.ListDeadLetterSourceQueuesResult([])
    assert _encode("ListDeadLetterSourceQueues", sources) == b'{"queueUrls":[]}'


def test_numbers_are_numbers_and_blobs_are_base64() -> None:
    cancelled = results.CancelMessageMoveTaskResult(2)
    attribute = results.ReceivedAttributeValue(binary_value=b"\x00\xff", data_type="Binary")
    message = results.Message("i", "h", "m", "b", message_attributes={"x": attribute})

    assert _encode("CancelMessageMoveTask", cancelled) == (
        b'{"ApproximateNumberOfMessagesMoved":2}'
    )
    assert b'"MessageAttributes":{"x":{"BinaryValue":"AP8=","DataType":"Binary"}}' in _encode(
        "ReceiveMessage", results.ReceiveMessageResult([message])
    )


# -- large bodies ----------------------------------------------------------------------------------

BRACES = '{"' * 1_000
LARGE = BRACES * 200
"""Text of a message that looks like many objects."""


def _many(*entries: str) -> bytes:
    return f'{{"QueueUrl":"q","Entries":[{",".join(entries)}]}}'.encode()


@pytest.mark.parametrize("number", [1, 10, 11, 1_000])
def test_a_large_batch_is_counted_exactly(number: int) -> None:
    entries = [{"Id": str(place), "MessageBody": "b"} for place in range(number)]
    entries[-1]["MessageBody"] = LARGE
    decoded = _decode("SendMessageBatch", json.dumps({"Entries": entries}).encode())

    assert isinstance(decoded.operation, SendMessageBatch)
    assert len(decoded.operation.entries or ()) == number
    if number > 10:
        exact = f"Maximum number of entries per request are 10. You have sent {number}."
        queued = msgspec.structs.replace(decoded.operation, queue_url="q")
        with pytest.raises(TooManyEntriesInBatchRequest) as refusal:
            check(queued)
        assert refusal.value.message == exact


@pytest.mark.parametrize("rest", ["", "}", "\\udc00", "[" * 5_000])
def test_hundreds_of_thousands_of_entries_are_not_decoded(rest: str) -> None:
    body = _many(*["{}"] * 300_000) + rest.encode()  # what is behind them does not matter

    with pytest.raises(TooManyEntriesInBatchRequest) as refusal:
        _decode("SendMessageBatch", body)
    assert refusal.value.message == (
        "Maximum number of entries per request are 10. You have sent more than 1000."
    )


@pytest.mark.parametrize("member", ["MessageAttributes", "MessageSystemAttributes"])
@pytest.mark.parametrize("action", ["SendMessage", "SendMessageBatch"])
def test_hundreds_of_thousands_of_attributes_are_not_decoded(action: str, member: str) -> None:
    values = ",".join(f'"{number}":{{}}' for number in range(100_000))
    other = "Entries" if action == "SendMessage" else "Else"
    sent = f'{{"{other}":3,"{member}":{{{values}}}}}'  # a member that the action does not have
    body = sent.encode() if action == "SendMessage" else _many(sent)

    with pytest.raises(InvalidParameterValue, match="more than 1000"):
        _decode(action, body)


def test_a_large_message_that_looks_like_many_objects_is_read() -> None:
    many = {str(number): {"DataType": "String"} for number in range(900)}
    sent = {"MessageBody": LARGE, "MessageAttributes": many, "Entries": "unknown here"}
    body = json.dumps({name: sent[name] for name in ("MessageBody", "MessageAttributes")}).encode()

    decoded = _decode("SendMessage", body).operation
    assert isinstance(decoded, SendMessage)
    assert decoded.message_body == LARGE
    assert len(decoded.message_attributes or ()) == 900
    assert isinstance(_decode("SendMessage", json.dumps(sent).encode()).operation, SendMessage)


def test_large_bodies_that_cannot_be_read_are_refused_by_their_decoder() -> None:
    for body, message in (
        (_many(json.dumps({"MessageBody": LARGE}), "3"), "Expected null"),
        (_many(json.dumps({"MessageBody": LARGE}))[:-1], "truncated"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            _decode("SendMessageBatch", body)


def test_only_sends_may_be_large() -> None:
    for name in ACTIONS:
        body = b'{"a":"' + b"x" * (256 << 10) + b'"}'
        if name in ("SendMessage", "SendMessageBatch"):
            assert _decode(name, body).action == name
        else:
            with pytest.raises(RequestTooLarge):
                _decode(name, body)
            assert _decode(name, body[:6] + body[14:]).action == name
