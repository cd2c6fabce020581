"""Single HTTP requests, signed by botocore's signer, for requests that no SDK sends."""

from __future__ import annotations

import http.client
import json
import xml.etree.ElementTree as ElementTree
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from compat_tests.facade import Credentials

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
FORM = "application/x-www-form-urlencoded"
JSON = "application/x-amz-json-1.0"


class Answer(NamedTuple):
    """An HTTP answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def values(self, element: str) -> list[str]:
        """The texts of all XML elements of this name, in order."""
        found = ElementTree.fromstring(self.body).iter(f"{{{NAMESPACE}}}{element}")
        return [each.text or "" for each in found]

    def value(self, element: str) -> str:
        """The text of the one XML element of this name."""
        (text,) = self.values(element)
        return text


class RawClient:
    """Sends requests exactly as given."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.url = url.rstrip("/")
        self.credentials = credentials

    def query(self, action: str | None, *, to: str | None = None, **parameters: str) -> Answer:
        """A query request by POST, to `/` or the given URL. In names, `__` means a dot."""
        return self.send("POST", to or self.url + "/", body=_form(action, parameters))

    def query_get(
        self,
        action: str | None,
        *,
        to: str | None = None,
        headers: dict[str, str] | None = None,
        **parameters: str,
    ) -> Answer:
        """A query request by GET. In names, `__` means a dot."""
        question = _form(action, parameters).decode()
        target = (to or self.url + "/") + (f"?{question}" if question else "")
        return self.send("GET", target, headers=headers)

    def json_call(self, operation: str, *, to: str | None = None, **members: Any) -> Answer:
        """A JSON request."""
        headers = {"Content-Type": JSON, "X-Amz-Target": f"AmazonSQS.{operation}"}
        body = json.dumps(members).encode()
        return self.send("POST", to or self.url + "/", headers=headers, body=body)

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        sign: bool = True,
    ) -> Answer:
        """Sign and send."""
        sent = dict(headers or {})
        if method == "POST":
            sent.setdefault("Content-Type", FORM)
        if sign:
            sent = self.signed_headers(method, url, sent, body)
        return exchange(method, url, sent, body)

    def signed_headers(
        self, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> dict[str, str]:
        """These headers and the signature's."""
        request = AWSRequest(method=method, url=url, data=body, headers=headers)
        auth.SigV4Auth(self._botocore(), "sqs", self.credentials.region).add_auth(request)
        return dict(request.headers.items())

    def presigned_url(self, action: str, *, expires: int = 60, **parameters: str) -> str:
        """A URL that carries its signature and needs no headers."""
        url = f"{self.url}/?{_form(action, parameters).decode()}"
        request = AWSRequest(method="GET", url=url)
        signer = auth.SigV4QueryAuth(
            self._botocore(), "sqs", self.credentials.region, expires=expires
        )
        signer.add_auth(request)
        return str(request.url)

    def _botocore(self) -> BotocoreCredentials:
        mine = self.credentials
        return BotocoreCredentials(mine.access_key_id, mine.secret_access_key, mine.session_token)


def exchange(method: str, url: str, headers: dict[str, str], body: bytes = b"") -> Answer:
    """One HTTP request on its own connection."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=body or None, headers=headers)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())
    finally:
        connection.close()


def _form(action: str | None, parameters: dict[str, str]) -> bytes:
    fields = {"Action": action, "Version": "2012-11-05"} if action else {}
    fields |= {name.replace("__", "."): value for name, value in parameters.items()}
    return urlencode(fields, quote_via=quote).encode()
