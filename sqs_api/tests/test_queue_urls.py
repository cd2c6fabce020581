"""The forms of a queue's URL that clients send, as a parameter and as the path that they post
to."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sqs_api.tests.serving import ACCOUNT, Answer, Service, json_request, query_request

_REQUEST_ID = re.compile(rb"<RequestId>[^<]*</RequestId>")
_SLASHES = ("", "/", "//")
NAMED: dict[str, Any] = {"AttributeName.1": "QueueArn"}


async def _ask_both_ways(service: Service, request: bytes) -> Answer:
    """The answer, which must be the same with and without the short cut but for its request id and
    date."""
    answers = []
    for port in (service.port, service.aiohttp_port):
        client = await service.connect(port)
        answer = await client.ask(request)
        await client.close()
        headers = {**answer.headers, "x-amzn-RequestId": "", "Date": ""}
        answers.append(Answer(answer.status, headers, _REQUEST_ID.sub(b"", answer.body)))
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.parametrize("end", _SLASHES)
async def test_a_queue_url_may_end_with_slashes_in_both_protocols(
    service: Service, end: str
) -> None:
    url = await service.make_queue() + end
    as_json = json_request("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    as_form = query_request("GetQueueAttributes", QueueUrl=url, **NAMED)

    for request in (as_json, as_form):
        answer = await _ask_both_ways(service, request)
        assert (answer.status, b":000000000000:q" in answer.body) == (200, True)


@pytest.mark.parametrize("start", ["/", "//", "/queue/us-east-1/"])
@pytest.mark.parametrize("end", [*_SLASHES, "?Version=2012-11-05", "/?Version=2012-11-05"])
async def test_a_posted_path_may_end_with_slashes(service: Service, start: str, end: str) -> None:
    await service.make_queue()
    line = f"POST {start}{ACCOUNT}/q{end} HTTP/1.1"

    answer = await _ask_both_ways(service, query_request("GetQueueAttributes", line=line, **NAMED))

    assert (answer.status, b":000000000000:q" in answer.body) == (200, True)


@pytest.mark.parametrize("url", ["http://localhost:9324", "http://localhost:9324/", "/"])
async def test_a_queue_url_without_a_path_is_a_queue_that_does_not_exist(
    service: Service, url: str
) -> None:
    as_json = await _ask_both_ways(service, json_request("PurgeQueue", QueueUrl=url))
    as_form = await _ask_both_ways(service, query_request("PurgeQueue", QueueUrl=url))

    assert (as_json.status, as_form.status) == (400, 400)
    assert as_json.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert as_json.json["message"] == "The specified queue does not exist."
    assert b"<Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in as_form.body
