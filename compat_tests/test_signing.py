"""Signatures: served are only requests signed by a known key, for now, over exactly these bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.clients.old_boto3 import LIBRARIES, OldBoto3Client
from compat_tests.clients.raw import FORM, JSON, RawClient, exchange
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Client, Credentials, refusal

BODY = b"Action=ListQueues&Version=2012-11-05"
TARGET = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.ListQueues"}


def connect(client: str, url: str, credentials: Credentials) -> Client:
    if client == "json":
        return Boto3Client(url, credentials)
    if not LIBRARIES.exists():
        pytest.skip("the old boto3 is not installed")
    return OldBoto3Client(url, credentials)


@pytest.fixture(params=["json", "query"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The wire protocol of the client under test."""
    return str(request.param)


@pytest.fixture
def wrong_secret(protocol: str, endpoint: str, credentials: Credentials) -> Iterator[Client]:
    """A client that knows the key id but not the secret."""
    client = connect(protocol, endpoint, credentials._replace(secret_access_key="wrong"))
    yield client
    client.close()


def test_wrong_secret_is_refused(wrong_secret: Client) -> None:
    error = refusal(wrong_secret, "ListQueues")

    assert error.status == 403
    assert error.code in {"SignatureDoesNotMatch", "InvalidSignatureException"}


@pytest.mark.parametrize("headers", [{"Content-Type": FORM}, TARGET], ids=["query", "json"])
def test_unsigned_request_is_refused(raw: RawClient, headers: dict[str, str]) -> None:
    body = BODY if headers["Content-Type"] == FORM else b"{}"

    answer = raw.send("POST", raw.url + "/", headers=headers, body=body, sign=False)

    assert answer.status in {400, 403}
    assert "MissingAuthenticationToken" in answer.text


def test_tampered_body_is_refused(raw: RawClient) -> None:
    headers = raw.signed_headers("POST", raw.url + "/", {"Content-Type": FORM}, BODY)

    assert exchange("POST", raw.url + "/", headers, BODY).status == 200
    tampered = exchange("POST", raw.url + "/", headers, BODY + b"&MaxResults=5")

    assert tampered.status == 403
    assert "Signature" in tampered.text


# -- presigned -------------------------------------------------------------------------------------


def test_presigned_url_needs_no_headers(raw: RawClient, queue: str) -> None:
    url = raw.presigned_url("SendMessage", QueueUrl=queue, MessageBody="a b+c/d")

    assert exchange("GET", url, {}).status == 200

    assert raw.query("ReceiveMessage", QueueUrl=queue).value("Body") == "a b+c/d"


# -- without signatures ----------------------------------------------------------------------------


def test_open_mode_serves_unsigned_requests(start_node: NodeFactory) -> None:
    node = start_node("--auth", "open")

    answer = exchange("GET", f"{node.url}/?Action=ListQueues&Version=2012-11-05", {})

    assert answer.status == 200


@pytest.mark.parametrize("mode", ["sigv4", "open"])
def test_pages_of_allowed_origins_may_use_the_service_from_a_browser(
    start_node: NodeFactory, mode: str
) -> None:
    node = start_node("--auth", mode, "--browser-origins", "https://app.example")
    json_headers = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.ListQueues"}
    answers = {}
    for origin in ("https://app.example", "https://evil.example"):
        page = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "User-Agent": "Mozilla/5.0"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
        preflight = exchange("OPTIONS", node.url + "/", page | asked)
        # A browser adds its headers after the SDK has signed.
        headers = json_headers
        if mode == "sigv4":
            signer = RawClient(node.url, node.credentials)
            headers = signer.signed_headers("POST", node.url + "/", json_headers, b"{}")
        sent = exchange("POST", node.url + "/", headers | page, b"{}")
        lets = [answer.headers.get("access-control-allow-origin") for answer in (preflight, sent)]
        answers[origin] = (preflight.status, sent.status, lets)

    assert answers == {
        "https://app.example": (204, 200, ["https://app.example"] * 2),
        "https://evil.example": (405, 200 if mode == "sigv4" else 403, [None, None]),
    }
