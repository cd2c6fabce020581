"""SQS accepts GET and POST; any other method changes nothing."""

from __future__ import annotations

import pytest

from sqs_api.http.http_limits import TARGET_BYTES_MAX
from sqs_api.tests.serving import Service, json_request, query_request, request_bytes

OTHERS = ("PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")


def creations(method: str) -> tuple[bytes, ...]:
    """Requests that make a queue when GET or POST sends them."""
    line = f"{method} / HTTP/1.1"
    return (
        request_bytes(line=f"{method} /?Action=CreateQueue&QueueName=q HTTP/1.1", length=False),
        query_request("CreateQueue", line=line, QueueName="q"),
        json_request("CreateQueue", line=line, QueueName="q"),
    )


@pytest.mark.parametrize("method", OTHERS)
async def test_other_methods_are_refused_and_change_nothing(service: Service, method: str) -> None:
    for port in (service.port, service.aiohttp_port):
        for request in creations(method):
            client = await service.connect(port)
            await client.send(request)
            answer = await client.answer(has_body=method != "HEAD")

            assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")

    assert list(service.catalog) == []


@pytest.mark.parametrize("number", range(3))
async def test_the_same_requests_make_a_queue_when_sent_as_they_should(
    service: Service, number: int
) -> None:
    method = "GET" if number == 0 else "POST"

    answer = await service.ask(creations(method)[number])

    assert answer.status == 200
    assert [queue.name for queue in service.catalog] == ["q"]


@pytest.mark.parametrize("target", ["http://queue.test/", "HTTPS://queue.test:9324"])
async def test_a_target_may_name_the_host(service: Service, target: str) -> None:
    for number, port in enumerate((service.port, service.aiohttp_port)):
        requests = (
            request_bytes(line=f"GET {target}?Action=CreateQueue&QueueName=g{number} HTTP/1.1"),
            query_request("CreateQueue", line=f"POST {target} HTTP/1.1", QueueName=f"q{number}"),
            json_request("CreateQueue", line=f"POST {target} HTTP/1.1", QueueName=f"j{number}"),
        )
        for request in requests:
            client = await service.connect(port)
            await client.send(request)
            assert (await client.answer()).status == 200

    assert {queue.name for queue in service.catalog} == {"g0", "q0", "j0", "g1", "q1", "j1"}


async def test_a_message_of_64_kb_may_be_sent_by_get(service: Service) -> None:
    """Some clients send all parameters in the target (PyPI's aiosqs, presigned addresses). It may
    come in pieces, beside 8 KB of headers."""
    await service.ask(query_request("CreateQueue", QueueName="q"))
    target = "/?Action=SendMessage&QueueUrl=q&MessageBody="
    target += "x" * (TARGET_BYTES_MAX - len(target))

    for port in (service.port, service.aiohttp_port):
        for more, status in (("", 200), ("x", 400)):
            request = request_bytes(headers={"X": "x" * 8000}, line=f"GET {target}{more} HTTP/1.1")
            client = await service.connect(port)
            await client.send(*(request[at : at + 10_000] for at in range(0, len(request), 10_000)))
            assert (await client.answer()).status == status
