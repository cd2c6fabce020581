"""The query protocol byte by byte, beyond the SDKs: GET, queue URLs, JSON answers, exact XML."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.clients.raw import JSON, NAMESPACE, RawClient
from compat_tests.facade import Client, receive, refusal

MakeQueue = Callable[..., str]
Names = Callable[[], str]

AS_JSON = {"Accept": "application/json"}


def name_of(url: str) -> str:
    return url.rsplit("/", 1)[1]


# -- XML -------------------------------------------------------------------------------------------


def test_answer_has_namespace_result_and_request_id(raw: RawClient, queue: str) -> None:
    answer = raw.query("GetQueueUrl", QueueName=name_of(queue))

    assert answer.status == 200
    assert answer.headers["content-type"].split(";")[0] == "text/xml"
    request_id = answer.value("RequestId")
    assert (
        f'<GetQueueUrlResponse xmlns="{NAMESPACE}"><GetQueueUrlResult><QueueUrl>{queue}</QueueUrl>'
        "</GetQueueUrlResult><ResponseMetadata>"
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></GetQueueUrlResponse>"
    ) in answer.text
    assert answer.headers["x-amzn-requestid"] == request_id


def test_void_answer_has_only_metadata(raw: RawClient, queue: str) -> None:
    answer = raw.query("DeleteQueue", QueueUrl=queue)

    assert "<DeleteQueueResponse " in answer.text
    assert "DeleteQueueResult" not in answer.text
    assert answer.value("RequestId")


def test_carriage_return_and_entities_survive(raw: RawClient, current: Client, queue: str) -> None:
    body = 'a\r\nb &quot; "c"'
    raw.query("SendMessage", QueueUrl=queue, MessageBody=body)

    answer = raw.query("ReceiveMessage", QueueUrl=queue, VisibilityTimeout="0")

    assert "&#xD;" in answer.text
    assert answer.value("Body") == body
    assert receive(current, queue)[0]["Body"] == body


def test_numbered_lists_and_maps(raw: RawClient, fresh_name: Names) -> None:
    made = raw.query(
        "CreateQueue",
        QueueName=fresh_name(),
        Attribute__1__Name="DelaySeconds",
        Attribute__1__Value="0",
        Attribute__2__Name="VisibilityTimeout",
        Attribute__2__Value="7",
        Tag__1__Key="team",
        Tag__1__Value="a",
    )
    url = made.value("QueueUrl")

    sent = raw.query(
        "SendMessage",
        QueueUrl=url,
        MessageBody="x",
        MessageAttribute__1__Name="k",
        MessageAttribute__1__Value__DataType="Binary",
        MessageAttribute__1__Value__BinaryValue="AP8=",
    )
    got = raw.query(
        "ReceiveMessage",
        QueueUrl=url,
        MessageAttributeName__1="All",
        AttributeName__1="SenderId",
        AttributeName__2="ApproximateReceiveCount",
    )

    tags = raw.query("ListQueueTags", QueueUrl=url)
    assert "<Tag><Key>team</Key><Value>a</Value></Tag>" in tags.text
    assert got.value("MD5OfMessageAttributes") == sent.value("MD5OfMessageAttributes")
    assert got.value("BinaryValue") == "AP8="
    assert {"SenderId", "ApproximateReceiveCount"} <= set(got.values("Name"))


def test_batch_entries_by_their_element_names(raw: RawClient, queue: str) -> None:
    sent = raw.query(
        "SendMessageBatch",
        QueueUrl=queue,
        SendMessageBatchRequestEntry__1__Id="a",
        SendMessageBatchRequestEntry__1__MessageBody="x",
        SendMessageBatchRequestEntry__2__Id="b",
        SendMessageBatchRequestEntry__2__MessageBody="y",
    )
    gone = raw.query(
        "DeleteMessageBatch",
        QueueUrl=queue,
        DeleteMessageBatchRequestEntry__1__Id="c",
        DeleteMessageBatchRequestEntry__1__ReceiptHandle="garbage",
    )

    assert sent.text.count("<SendMessageBatchResultEntry>") == 2
    assert sent.values("Id") == ["a", "b"]
    assert "<BatchResultErrorEntry>" in gone.text
    assert gone.value("SenderFault") == "true"


# -- GET and queue URLs ----------------------------------------------------------------------------


def test_get_works_at_the_root_and_at_the_queue(raw: RawClient, queue: str) -> None:
    at_root = raw.query_get("SendMessage", QueueUrl=queue, MessageBody="a b+c&d")
    at_queue = raw.query_get("SendMessage", to=queue, MessageBody="x")

    assert (at_root.status, at_queue.status) == (200, 200)
    assert at_root.value("MessageId") != at_queue.value("MessageId")
    assert raw.query_get("ReceiveMessage", to=queue).value("Body") == "a b+c&d"


def test_version_may_be_left_out_on_a_queue_url(raw: RawClient, queue: str) -> None:
    answer = raw.send("GET", f"{queue}?Action=GetQueueAttributes&AttributeName.1=All")

    assert answer.status == 200
    assert "QueueArn" in answer.values("Name")


def test_post_to_the_queue_url(raw: RawClient, queue: str) -> None:
    assert raw.query("SendMessage", to=queue, MessageBody="x").status == 200
    assert raw.query("ReceiveMessage", to=queue).value("Body") == "x"


def test_a_queue_url_may_end_with_a_slash(raw: RawClient, queue: str) -> None:
    with_slash = queue + "/"

    assert raw.query("SendMessage", to=with_slash, MessageBody="x").status == 200
    assert raw.query("SendMessage", QueueUrl=with_slash, MessageBody="y").status == 200
    got = raw.query_get("ReceiveMessage", to=with_slash, MaxNumberOfMessages="10").values("Body")
    assert sorted(got) == ["x", "y"]


def test_json_to_the_queue_url(raw: RawClient, queue: str) -> None:
    answer = raw.json_call("SendMessage", to=queue, QueueUrl=queue, MessageBody="x")

    assert answer.status == 200
    assert answer.headers["content-type"] == JSON
    assert set(answer.json) == {"MessageId", "MD5OfMessageBody"}


def test_queue_url_parameter_overrides_the_path(
    raw: RawClient, queue: str, make_queue: MakeQueue
) -> None:
    other = make_queue()

    raw.query("SendMessage", to=queue, QueueUrl=other, MessageBody="x")

    assert raw.query("ReceiveMessage", to=other).value("Body") == "x"
    assert raw.query("ReceiveMessage", to=queue).values("Body") == []


def test_get_queue_url_on_a_queue_url(raw: RawClient, queue: str, make_queue: MakeQueue) -> None:
    other = make_queue()

    for url in (queue, other):
        assert (
            raw.query_get("GetQueueUrl", to=queue, QueueName=name_of(url)).value("QueueUrl") == url
        )


def test_delete_queue_by_get(raw: RawClient, current: Client, queue: str) -> None:
    assert raw.query_get("DeleteQueue", to=queue).status == 200

    assert refusal(current, "GetQueueUrl", QueueName=name_of(queue)).status == 400


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "Frobnicate"])
def test_invalid_action_on_a_queue_url(raw: RawClient, queue: str, action: str) -> None:
    answer = raw.query_get(action, to=queue, QueueName="x")

    assert answer.status == 400
    assert answer.value("Code") == "InvalidAction"
    assert answer.value("Message") == f"The action {action} is not valid for this endpoint."


@pytest.mark.parametrize("headers", [{}, AS_JSON], ids=["xml", "json"])
def test_no_action_on_a_queue_url(raw: RawClient, queue: str, headers: dict[str, str]) -> None:
    answer = raw.query_get(None, to=queue, headers=headers)

    assert answer.status == 404
    assert "<UnknownOperationException" in answer.text
    assert "<Error>" not in answer.text


# -- JSON answers to query GETs --------------------------------------------------------------------


def test_accept_json_gives_json(raw: RawClient, queue: str) -> None:
    raw.query("SendMessage", QueueUrl=queue, MessageBody="x")

    got = raw.query_get("ReceiveMessage", to=queue, headers=AS_JSON).json
    asked = {"AttributeName__1": "DelaySeconds"}
    found = raw.query_get("GetQueueAttributes", to=queue, headers=AS_JSON, **asked).json
    listed = raw.query_get("ListQueues", headers=AS_JSON, QueueNamePrefix=name_of(queue)).json

    (message,) = got["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert message["Body"] == "x"
    attributes = found["GetQueueAttributesResponse"]["GetQueueAttributesResult"]["Attributes"]
    assert attributes == [{"Name": "DelaySeconds", "Value": "0"}]
    assert "ListQueuesResponse" in listed


def test_accept_json_gives_json_errors(raw: RawClient, queue: str) -> None:
    answer = raw.query_get("ReceiveMessage", to=queue + "-not", headers=AS_JSON)

    assert answer.status == 400
    assert answer.json["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert answer.json["Error"]["Message"]


# -- both protocols on one queue -------------------------------------------------------------------


def test_one_queue_through_both_protocols(raw: RawClient, current: Client, queue: str) -> None:
    sent = raw.query("SendMessage", QueueUrl=queue, MessageBody="by query")

    (got,) = receive(current, queue)

    assert got["MessageId"] == sent.value("MessageId")
    handle = got["ReceiptHandle"]
    assert raw.query("DeleteMessage", QueueUrl=queue, ReceiptHandle=handle).status == 200


def test_void_json_answer_is_an_empty_object(raw: RawClient, queue: str) -> None:
    answer = raw.json_call("TagQueue", QueueUrl=queue, Tags={"a": "b"})

    assert answer.status == 200
    assert answer.body in {b"", b"{}"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"QueueUrl": 1}', b"\xff"])
def test_broken_json_is_refused_with_an_error(raw: RawClient, body: bytes) -> None:
    headers = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.SendMessage"}

    answer = raw.send("POST", raw.url + "/", headers=headers, body=body)

    assert answer.status == 400
    assert answer.json["__type"]
