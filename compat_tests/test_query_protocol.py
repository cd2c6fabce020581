"""The query protocol byte by byte, beyond the SDKs: exact XML, GET and queue URLs.

What its parameters mean, and its answers in JSON, are in `sqs_api/tests/test_protocol_*.py`.
"""

from __future__ import annotations

from compat_tests.clients.raw import NAMESPACE, RawClient
from compat_tests.facade import Client, receive, refusal


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


# -- GET and queue URLs ----------------------------------------------------------------------------


def test_get_works_at_the_root_and_at_the_queue(raw: RawClient, queue: str) -> None:
    at_root = raw.query_get("SendMessage", QueueUrl=queue, MessageBody="a b+c&d")
    at_queue = raw.query_get("SendMessage", to=queue, MessageBody="x")

    assert (at_root.status, at_queue.status) == (200, 200)
    assert at_root.value("MessageId") != at_queue.value("MessageId")
    assert raw.query_get("ReceiveMessage", to=queue).value("Body") == "a b+c&d"


def test_post_to_the_queue_url(raw: RawClient, queue: str) -> None:
    assert raw.query("SendMessage", to=queue, MessageBody="x").status == 200
    assert raw.query("ReceiveMessage", to=queue).value("Body") == "x"


def test_a_queue_url_may_end_with_a_slash(raw: RawClient, queue: str) -> None:
    with_slash = queue + "/"

    assert raw.query("SendMessage", to=with_slash, MessageBody="x").status == 200
    assert raw.query("SendMessage", QueueUrl=with_slash, MessageBody="y").status == 200
    got = raw.query_get("ReceiveMessage", to=with_slash, MaxNumberOfMessages="10").values("Body")
    assert sorted(got) == ["x", "y"]


def test_delete_queue_by_get(raw: RawClient, current: Client, queue: str) -> None:
    assert raw.query_get("DeleteQueue", to=queue).status == 200

    assert refusal(current, "GetQueueUrl", QueueName=name_of(queue)).status == 400


# -- both protocols on one queue -------------------------------------------------------------------


def test_one_queue_through_both_protocols(raw: RawClient, current: Client, queue: str) -> None:
    sent = raw.query("SendMessage", QueueUrl=queue, MessageBody="by query")

    (got,) = receive(current, queue)

    assert got["MessageId"] == sent.value("MessageId")
    handle = got["ReceiptHandle"]
    assert raw.query("DeleteMessage", QueueUrl=queue, ReceiptHandle=handle).status == 200
