"""Bodies with a Content-Encoding, and the headers that answers do not have."""

from __future__ import annotations

import gzip
import logging
import re

import pytest

from sqs_api.tests.serving import Service, json_request, query_request, request_bytes

ENCODED = (b"gzip", b"GZIP", b"deflate", b"br", b"gzip, identity")
PLAIN = (b"identity", b"amz-1.0", b"")


def encoded(request: bytes, encoding: bytes) -> bytes:
    """The request with its body as it is, but for the header."""
    return request.replace(b"\r\nHost:", b"\r\nContent-Encoding: " + encoding + b"\r\nHost:", 1)


@pytest.mark.parametrize("encoding", ENCODED)
async def test_an_encoded_body_is_refused_by_the_name_of_the_header(
    service: Service, encoding: bytes
) -> None:
    requests = (
        encoded(json_request("CreateQueue", QueueName="q"), encoding),
        encoded(query_request("CreateQueue", QueueName="q"), encoding),
        encoded(request_bytes(gzip.compress(b"{}"), {"X-Amz-Target": "AmazonSQS.Foo"}), encoding),
    )
    for request in requests:
        client = await service.connect()
        for _ in range(2):  # the connection goes on
            answer = await client.ask(request)
            assert answer.status == 400
            assert b"Content-Encoding" in answer.body
            assert answer.headers["Date"]

    assert list(service.catalog) == []


@pytest.mark.parametrize("encoding", PLAIN)
async def test_a_header_for_a_plain_body_is_no_encoding(service: Service, encoding: bytes) -> None:
    answer = await service.ask(encoded(json_request("CreateQueue", QueueName="q"), encoding))

    assert answer.status == 200


ANSWERS = {
    "sqs": (json_request("ListQueues"), 200),
    "sqs by GET": (request_bytes(line="GET /?Action=ListQueues HTTP/1.1", length=False), 200),
    "refused method": (request_bytes(line="PUT / HTTP/1.1"), 405),
    "health": (request_bytes(line="GET /healthz HTTP/1.1", length=False), 200),
    "no page": (request_bytes(line="GET /_holdfast/none HTTP/1.1", length=False), 404),
    "metrics": (request_bytes(line="GET /_holdfast/metrics HTTP/1.1", length=False), 200),
    "two lengths": (request_bytes(b"x", {"content-length": "2"}), 400),
    "no http": (b"hello\r\n\r\n", 400),
    "long line": (request_bytes(b"", {"X": "x" * 10_000}), 400),
    "bad header": (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    "old version": (b"GET / HTTP/3.7\r\nHost: h\r\n\r\n", 400),
    "body too large": (request_bytes(b"", {"Content-Length": "99999999"}, length=False), 413),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_no_answer_names_the_software(
    service: Service, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aiohttp.server")
    request, status = ANSWERS[kind]
    for port in (service.port, service.aiohttp_port):
        client = await service.connect(port)
        await client.send(request)
        answer = await client.answer()

        assert answer.status == status
        assert "server" not in map(str.lower, answer.headers)
        assert status == 200 or not re.search(b"python|aiohttp", answer.body, re.IGNORECASE)
