"""Open mode: requests that a web page may have sent are refused, those of clients are not."""

from __future__ import annotations

import pytest

from auth.auth_errors import AccessDenied
from auth.unverified import refuse_browsers

BROWSER = b"Mozilla/5.0 (X11; Linux x86_64)"
NODE = {
    b"host": b"queue.example:9324",
    b"accept": b"*/*",
    b"accept-language": b"*",
    b"sec-fetch-mode": b"cors",
    b"user-agent": b"node",
    b"accept-encoding": b"gzip, deflate",
}
"""Headers of a request by fetch of Node 20."""


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"127.0.0.1:9324", b"user-agent": b"Boto3/1.44.5"},
        {b"host": b"queue.example:9324", b"user-agent": b"aws-cli/1.46.2"},
        NODE,
        NODE | {b"user-agent": b"undici"},
        {b"host": b"localhost:9324", b"user-agent": BROWSER},
        {b"host": b"localhost:9324", b"accept-language": b"de", b"referer": b"http://localhost/"},
        {b"host": b"localhost:9324", b"user-agent": BROWSER, b"sec-fetch-site": b"none"},
        {},
    ],
)
def test_clients_and_an_address_typed_by_hand_are_served(headers: dict[bytes, bytes]) -> None:
    for method in (b"GET", b"POST"):
        refuse_browsers(method, headers)


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"same-origin"])
def test_pages_of_allowed_origins_are_served_and_those_of_others_are_not(site: bytes) -> None:
    headers = {b"host": b"127.0.0.1:9324", b"user-agent": BROWSER, b"sec-fetch-site": site}
    allowed = frozenset((b"https://app.example",))

    refuse_browsers(b"GET", headers | {b"origin": b"https://app.example"}, allowed)

    for origin in (b"https://evil.example", b"https://app.example.evil.example", b"null", b""):
        with pytest.raises(AccessDenied, match="web pages"):
            refuse_browsers(b"GET", headers | {b"origin": origin}, allowed)


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"127.0.0.1:9324", b"origin": b"https://evil.example"},
        {b"host": b"127.0.0.1:9324", b"origin": b"null"},
        {b"host": b"127.0.0.1:9324", b"sec-fetch-site": b"cross-site"},
        {b"host": b"127.0.0.1:9324", b"sec-fetch-site": b"same-site"},
        {b"host": b"evil.example:9324", b"user-agent": BROWSER},
        {b"host": b"127.0.0.1.evil.example:9324", b"user-agent": BROWSER},
        {b"user-agent": BROWSER},
        {b"host": b"evil.example:9324", b"user-agent": b"Boto3/1.44.5", b"accept-language": b"de"},
        {b"host": b"evil.example:9324", b"accept-language": b"*"},
        {b"host": b"evil.example:9324", b"accept-language": b""},
        {b"host": b"evil.example:9324", b"referer": b"http://evil.example:9324/"},
        {b"accept-language": b"de"},
        NODE | {b"user-agent": BROWSER},
        NODE | {b"referer": b"https://evil.example/"},
        NODE | {b"sec-fetch-site": b"same-origin"},
    ],
)
def test_what_a_web_page_may_have_sent_is_refused(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(AccessDenied, match="web pages"):
        refuse_browsers(b"GET", headers)


@pytest.mark.parametrize(
    "headers", [{b"accept-language": b"*"}, {b"referer": b"http://app.example/"}]
)
def test_other_clients_send_a_language_and_a_referer_too(headers: dict[bytes, bytes]) -> None:
    """Deno's fetch has a language; a page's POST has an Origin."""
    refuse_browsers(b"POST", headers | {b"host": b"queue.example:9324", b"user-agent": b"Deno/2"})
    with pytest.raises(AccessDenied, match="web pages"):
        refuse_browsers(b"POST", headers | {b"origin": b"http://queue.example:9324"})
