"""Web pages of allowed origins may use the service from a browser; others, by default all, may
not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from auth.caller import Caller
from auth.credentials import CredentialSet
from auth.sigv4 import Verifier
from auth.tests.signed_requests import KEY, NOW_S, sign_header
from auth.unverified import refuse_browsers
from sqs_api.http.http_limits import BODY_BYTES_MAX
from sqs_api.settings.origins import AllowedOrigins
from sqs_api.tests.listening import listening
from sqs_api.tests.serving import (
    Answer,
    Service,
    json_request,
    open_authenticate,
    query_request,
    request_bytes,
    running,
)

APP, DEV, EVIL = "https://app.example", "http://localhost:3000", "https://evil.example"
ALLOWED = f"{APP}, {DEV}"
EXPOSED = "x-amzn-RequestId, x-amzn-query-error, x-amzn-ErrorType, x-amz-crc32, Date"
_REQUEST_ID = re.compile(rb"<RequestId>[^<]*</RequestId>")
ASKED = "amz-sdk-invocation-id,authorization,content-type,x-amz-date,x-amz-target"


def _verified(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    verifier = Verifier(CredentialSet([KEY]))
    return verifier.verify(method, target, headers, body, NOW_S)


def _open(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    """As `Node` has it."""
    refuse_browsers(method, headers, AllowedOrigins(ALLOWED).names)
    return open_authenticate(method, target, headers, body, now_s)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with running(authenticate=_open, browser_origins=ALLOWED) as parts:
        yield parts


def _from(origin: str, **more: str) -> dict[str, str]:
    """Headers that a browser adds."""
    return {"Origin": origin, "Sec-Fetch-Site": "cross-site", "User-Agent": "Mozilla/5.0", **more}


async def _both_ways(service: Service, request: bytes) -> Answer:
    """The answer, the same with and without the short cut but for its request id and date, which
    come in one order."""
    answers = []
    for port in (service.port, service.aiohttp_port):
        client = await service.connect(port)
        answers.append(await client.ask(request))
        await client.close()
    assert _without_its_own(answers[0]) == _without_its_own(answers[1])
    return answers[0]


def _without_its_own(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """Leaves out the parts in which two equal answers differ."""
    changing = ("x-amzn-RequestId", "Date")
    headers = [(name, "" if name in changing else value) for name, value in answer.headers.items()]
    return answer.status, headers, _REQUEST_ID.sub(b"", answer.body)


def _letting(answer: Answer) -> dict[str, str]:
    """The headers of CORS."""
    return {
        name: value
        for name, value in answer.headers.items()
        if name.startswith("Access-Control") or name == "Vary"
    }


def _lets(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [APP, DEV])
@pytest.mark.parametrize(
    ("make", "status"),
    [
        (partial(json_request, "ListQueues"), 200),
        (partial(query_request, "ListQueues"), 200),
        (partial(json_request, "SendMessage", QueueUrl="missing", MessageBody="x"), 400),
        (partial(query_request, "SendMessage", QueueUrl="missing", MessageBody="x"), 400),
        (partial(json_request, "Nonsense"), 400),
        (partial(request_bytes, b"{"), 404),
        (partial(request_bytes, line="GET /?Action=ListQueues HTTP/1.1"), 200),
        (partial(request_bytes, line="PUT / HTTP/1.1"), 405),
    ],
)
async def test_every_answer_lets_the_page_read_it_on_both_ways(
    service: Service, make: Any, status: int, origin: str
) -> None:
    answer = await _both_ways(service, make(headers=_from(origin)))

    assert (answer.status, _letting(answer)) == (status, _lets(origin))


async def test_an_answer_that_waits_lets_the_page_read_it(service: Service) -> None:
    url = await service.make_queue()
    client = await service.connect()
    poll = json_request("ReceiveMessage", headers=_from(APP), QueueUrl=url, WaitTimeSeconds=20)
    await client.send(poll)
    await service.call("SendMessage", QueueUrl=url, MessageBody="x")

    answer = await client.answer()

    assert answer.json["Messages"][0]["Body"] == "x"
    assert _letting(answer) == _lets(APP)


async def test_refusals_of_large_requests_let_the_page_read_them(service: Service) -> None:
    headers = _from(APP, **{"Content-Length": str(BODY_BYTES_MAX + 1)})
    too_large = request_bytes(headers=headers, length=False)
    assert (await service.ask(too_large)).status == 413
    assert _letting(await service.ask(too_large)) == _lets(APP)

    body = json_request("SendMessage", headers=_from(APP), QueueUrl="q", MessageBody="x" * 200_000)
    for with_short_cut in (True, False):
        async with listening(service, memory_bytes=100_000, with_short_cut=with_short_cut) as port:
            client = await port.connect()
            client.writer.write(body)
            answer = await client.answer()
            assert (answer.status, _letting(answer)) == (503, _lets(APP))


async def test_pages_of_other_origins_are_refused_in_open_mode_and_read_nothing(
    service: Service,
) -> None:
    for origin in (EVIL, "null", APP + ".evil.example", APP.upper(), f"{APP}, {DEV}"):
        answer = await _both_ways(service, json_request("ListQueues", headers=_from(origin)))
        assert (answer.status, _letting(answer)) == (403, {})


async def test_clients_that_are_no_browsers_get_the_same_bytes_as_without_the_setting(
    service: Service,
) -> None:
    requests = (json_request("ListQueues"), query_request("ListQueues"), json_request("Nonsense"))
    async with running() as without:
        for request in requests:
            expected, answer = await without.ask(request), await service.ask(request)
            assert _without_its_own(answer) == _without_its_own(expected)


async def test_by_default_no_page_is_let_in() -> None:
    async with running() as service:
        for make in (json_request, query_request):
            answer = await _both_ways(service, make("ListQueues", headers=_from(APP)))
            assert _letting(answer) == {}
        preflight = await _both_ways(service, _preflight(APP))
        assert (preflight.status, _letting(preflight)) == (405, {})


# -- preflights ------------------------------------------------------------------------------------


def _preflight(origin: str, *, path: str = "/", names: str | None = ASKED, **more: str) -> bytes:
    headers = _from(origin, **{"Access-Control-Request-Method": "POST"}, **more)
    if names is not None:
        headers["Access-Control-Request-Headers"] = names
    return request_bytes(headers=headers, line=f"OPTIONS {path} HTTP/1.1", length=False)


@pytest.mark.parametrize("path", ["/", "/000000000000/q", "/000000000000/q/?a=b"])
@pytest.mark.parametrize("names", [ASKED, "X-Anything, Else", None])
async def test_a_preflight_is_let_through_with_the_headers_it_asks_for(
    service: Service, path: str, names: str | None
) -> None:
    answer = await _both_ways(service, _preflight(APP, path=path, names=names))

    expected = {
        "Access-Control-Allow-Origin": APP,
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Max-Age": "7200",
        "Vary": "Origin",
    }
    if names is not None:
        expected["Access-Control-Allow-Headers"] = names
    assert (answer.status, answer.body, _letting(answer)) == (204, b"", expected)


async def test_a_preflight_of_another_origin_is_any_other_method(service: Service) -> None:
    other = await _both_ways(service, _preflight(EVIL))
    none = await _both_ways(service, request_bytes(headers=_from(APP), line="OPTIONS / HTTP/1.1"))

    assert (other.status, _letting(other)) == (405, {})
    assert (none.status, _letting(none)) == (405, _lets(APP)), "it asks for no method"


async def test_pages_of_the_service_itself_are_for_no_other_page(service: Service) -> None:
    for path in ("/_holdfast/metrics", "/healthz"):
        preflight = await service.ask(_preflight(APP, path=path))
        page = await service.ask(
            request_bytes(headers=_from(APP), line=f"GET {path} HTTP/1.1", length=False)
        )
        assert _letting(preflight) == _letting(page) == {}


# -- signed requests -------------------------------------------------------------------------------


def _signed(action: str, origin: str, **members: object) -> bytes:
    """The request of an SDK in a page of that origin: the browser's headers are not signed."""
    body = json.dumps(members).encode()
    named = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    request = sign_header(key=KEY, headers=named, body=body)
    sent: Mapping[str, str] = {
        name.decode(): value.decode() for name, value in request.headers.items() if name != b"host"
    }
    return request_bytes(body, {**sent, **_from(origin)})


async def test_signed_requests_of_a_page_work_and_unsigned_ones_can_be_read() -> None:
    async with running(authenticate=_verified, browser_origins=ALLOWED) as service:
        made = await _both_ways(service, _signed("CreateQueue", APP, QueueName="q"))
        preflight = await _both_ways(service, _preflight(APP))
        unsigned = await _both_ways(service, json_request("ListQueues", headers=_from(APP)))
        other = await _both_ways(service, _signed("ListQueues", EVIL))

    assert (made.status, _letting(made)) == (200, _lets(APP))
    assert preflight.status == 204
    assert (unsigned.status, _letting(unsigned)) == (403, _lets(APP))
    assert unsigned.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    assert (other.status, _letting(other)) == (200, {}), (
        "the key is what lets in; a page cannot read"
    )


# -- the setting -----------------------------------------------------------------------------------


def test_origins_are_compared_as_browsers_send_them() -> None:
    given = (
        "HTTPS://App.Example:443, http://a:80,http://b:443 ,chrome-extension://abc,http://[::1]:3"
    )

    assert AllowedOrigins(given).names == {
        b"https://app.example",
        b"http://a",
        b"http://b:443",
        b"chrome-extension://abc",
        b"http://[::1]:3",
    }
    assert not AllowedOrigins("")
    assert not AllowedOrigins(" , ")
