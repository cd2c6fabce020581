"""The protocol of a request, and the meaning of its path."""

from __future__ import annotations

import pytest

from sqs_api.protocol.codec import Wire, content_type, decode_request, detect_wire
from visibility.contract.errors import InvalidAction, QueueError, UnknownOperation
from visibility.contract.operations import (
    DeleteQueue,
    GetQueueUrl,
    ListQueues,
    PurgeQueue,
    ReceiveMessage,
    SendMessage,
)

FORM = b"application/x-www-form-urlencoded; charset=utf-8"
JSON = b"application/x-amz-json-1.0"
TARGET = b"AmazonSQS.PurgeQueue"


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        ({b"x-amz-target": TARGET, b"content-type": JSON}, Wire.JSON),
        ({b"x-amz-target": TARGET}, Wire.JSON),
        ({b"content-type": JSON}, Wire.JSON),
        ({b"content-type": b"Application/X-Amz-Json-1.0 ; charset=UTF-8"}, Wire.JSON),
        ({b"content-type": JSON, b"accept": b"application/json"}, Wire.JSON),
        ({}, Wire.QUERY_XML),
        ({b"content-type": FORM}, Wire.QUERY_XML),
        ({b"accept": b"*/*"}, Wire.QUERY_XML),
        ({b"accept": b"application/json"}, Wire.QUERY_JSON),
        ({b"accept": b"Application/JSON, text/plain, */*", b"content-type": FORM}, Wire.QUERY_JSON),
        ({b"content-type": b"\xff\x00"}, Wire.QUERY_XML),
        (
            {b"x-amz-target": b"AmazonSQSv20121105.PurgeQueue", b"content-type": FORM},
            Wire.QUERY_XML,
        ),
        ({b"x-amz-target": b"AmazonSQSv20121105.PurgeQueue"}, Wire.JSON),
        ({b"x-amz-target": b"AmazonSQS.Unknown", b"content-type": FORM}, Wire.JSON),
    ],
)
def test_headers_choose_the_protocol(headers: dict[bytes, bytes], chosen: Wire) -> None:
    assert detect_wire(headers) is chosen


def test_content_types_of_answers() -> None:
    assert content_type(Wire.JSON) == b"application/x-amz-json-1.0"
    assert content_type(Wire.QUERY_XML) == b"text/xml"
    assert content_type(Wire.QUERY_JSON) == b"application/json"


@pytest.mark.parametrize("target", [b"/", b"", b"/1/q", b"/some/other/path?x=y", b"*"])
def test_json_works_at_any_path(target: bytes) -> None:
    headers = {b"x-amz-target": TARGET, b"content-type": JSON}

    decoded = decode_request(b"POST", target, headers, b'{"QueueUrl":"q"}')

    assert (decoded.operation, decoded.wire) == (PurgeQueue("q"), Wire.JSON)


@pytest.mark.parametrize("target", [b"/", b"/1/q", b"/1/q/", b"/region/1/q"])
def test_json_never_takes_the_queue_from_the_path(target: bytes) -> None:
    decoded = decode_request(b"POST", target, {b"x-amz-target": TARGET}, b"{}")

    assert decoded.operation == PurgeQueue()


@pytest.mark.parametrize(
    ("target", "queue_url"),
    [
        (b"/000000000000/q?Action=DeleteQueue", "/000000000000/q"),
        (b"/000000000000/q.fifo/?Action=DeleteQueue&Version=2012-11-05", "/000000000000/q.fifo"),
        (b"/queue/us-east-1/000000000000/q?Action=DeleteQueue", "/queue/us-east-1/000000000000/q"),
        (b"//000000000000//q//?Action=DeleteQueue", "/000000000000/q"),
        (b"/1/a%2Db+c?Action=DeleteQueue", "/1/a-b+c"),
        (b"/1/q?Action=DeleteQueue&QueueUrl=http%3A%2F%2Fh%2F2%2Fother", "http://h/2/other"),
        (b"/1/q?Action=DeleteQueue&QueueUrl=other", "other"),
        (b"/?Action=DeleteQueue", None),
        (b"?Action=DeleteQueue", None),
        (b"/q?Action=DeleteQueue", None),
    ],
)
def test_path_names_the_queue_unless_a_parameter_does(target: bytes, queue_url: str | None) -> None:
    decoded = decode_request(b"GET", target, {}, b"")

    assert decoded.operation == DeleteQueue(queue_url)
    assert decoded.action == "DeleteQueue"


@pytest.mark.parametrize("action", [b"CreateQueue", b"ListQueues"])
def test_account_actions_are_not_valid_on_a_queue_url(action: bytes) -> None:
    with pytest.raises(InvalidAction) as refusal:
        decode_request(b"GET", b"/1/q?Action=" + action, {}, b"")

    assert refusal.value.message == f"The action {action.decode()} is not valid for this endpoint."
    assert decode_request(b"GET", b"/?Action=" + action, {}, b"").action == action.decode()


def test_get_queue_url_is_valid_on_a_queue_url() -> None:
    decoded = decode_request(b"GET", b"/1/q?Action=GetQueueUrl&QueueName=other", {}, b"")

    assert decoded.operation == GetQueueUrl("other")


def test_unknown_action_is_refused_by_name() -> None:
    with pytest.raises(InvalidAction) as refusal:
        decode_request(b"POST", b"/", {b"content-type": FORM}, b"Action=FooBar&Version=2012-11-05")

    assert refusal.value.message == "The action FooBar is not valid for this endpoint."
    with pytest.raises(InvalidAction) as refusal:
        decode_request(b"POST", b"/", {b"x-amz-target": b"AmazonSQS.FooBar"}, b"{}")
    assert refusal.value.message == "The action FooBar is not valid for this endpoint."


@pytest.mark.parametrize("target", [b"/1/q", b"/", b"/1/q?", b"/?Action=", b"/?Version=2012-11-05"])
@pytest.mark.parametrize("method", [b"GET", b"POST", b"PUT"])
def test_no_action_at_all_is_an_unknown_operation(method: bytes, target: bytes) -> None:
    with pytest.raises(UnknownOperation):
        decode_request(method, target, {}, b"")


def test_form_body_is_merged_with_the_query_string_and_wins() -> None:
    decoded = decode_request(
        b"POST", b"/?Action=SendMessage&QueueUrl=a&DelaySeconds=1", {}, b"QueueUrl=b&MessageBody=c"
    )

    assert decoded.operation == SendMessage("b", "c", 1)


def test_a_form_with_a_target_of_its_own_kind_is_read_as_a_form() -> None:
    headers = {b"x-amz-target": b"AmazonSQSv20121105.PurgeQueue", b"content-type": FORM}

    decoded = decode_request(b"POST", b"/", headers, b"Action=PurgeQueue&QueueUrl=a")

    assert (decoded.operation, decoded.wire) == (PurgeQueue("a"), Wire.QUERY_XML)


def test_get_ignores_a_body() -> None:
    decoded = decode_request(b"GET", b"/?Action=ListQueues", {}, b"MaxResults=1")

    assert decoded.operation == ListQueues()


def test_query_answers_in_json_when_asked() -> None:
    decoded = decode_request(
        b"GET", b"/1/q?Action=ReceiveMessage", {b"accept": b"application/json"}, b""
    )

    assert (decoded.operation, decoded.wire) == (ReceiveMessage("/1/q"), Wire.QUERY_JSON)


def test_presigned_parameters_are_not_read() -> None:
    signature = b"&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2Fb&X-Amz-Signature=00"

    decoded = decode_request(b"GET", b"/1/q?Action=PurgeQueue" + signature, {}, b"")

    assert decoded.operation == PurgeQueue("/1/q")


def test_unknown_action_is_not_echoed_without_bound() -> None:
    with pytest.raises(QueueError) as refusal:
        decode_request(b"POST", b"/", {}, b"Action=" + b"A" * 100_000)

    assert len(refusal.value.message) < 200
