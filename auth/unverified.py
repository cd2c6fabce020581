"""The caller that a request claims, for `--auth open`: nothing is verified and nothing is
refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from auth.auth_errors import AccessDenied
from auth.caller import Caller
from auth.canonical import split_query

_CREDENTIAL = re.compile(rb"([!-+.0-~-]{1,128})/[0-9]{8}/([^/]*)/[^/]*/aws4_request")
_AUTHORIZATION = re.compile(rb"Credential=" + _CREDENTIAL.pattern)
_REGION = re.compile(rb"[a-z0-9-]{1,32}")
_LOOPBACK = re.compile(rb"(localhost|[a-z0-9.-]+\.localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")
_ACCOUNT = re.compile(r"[0-9]{12}")
_READS = (b"GET", b"HEAD")
"""Methods of requests to its own host in which a browser names no Origin."""


def open_caller(
    method: bytes,
    target: bytes,
    headers: Mapping[bytes, bytes],
    account: str,
    region: str,
) -> Caller:
    """The Caller that a request claims to be; `account` and `region` are the defaults.

    A credential names the region, and the account too if its access key id is a 12-digit account
    id. The principal is the account.
    """
    credential = _find_credential(target, headers.get(b"authorization"))
    if credential is None:
        return Caller(account, region, account)
    access_key_id = credential[1].decode("ascii")
    if _ACCOUNT.fullmatch(access_key_id):
        account = access_key_id
    if _REGION.fullmatch(credential[2]):
        region = credential[2].decode("ascii")
    return Caller(account, region, account, access_key_id)


def _find_credential(target: bytes, authorization: bytes | None) -> re.Match[bytes] | None:
    if authorization:
        return _AUTHORIZATION.search(authorization)
    if b"X-Amz-Credential" not in target:
        return None
    fields = dict(split_query(target.partition(b"?")[2]))
    return _CREDENTIAL.fullmatch(fields.get(b"X-Amz-Credential", b""))


def refuse_browsers(
    method: bytes, headers: Mapping[bytes, bytes], allowed: Collection[bytes] = frozenset()
) -> None:
    """Refuse requests that a web page may have sent, unless its origin is allowed: without
    signatures, any page that a developer visits could empty their queues.

    Pages of other sites are recognised by Origin or Sec-Fetch-Site, which no SDK sends; a page that
    reaches this address under its own name (DNS rebinding), by a browser that asks for a host other
    than this machine. Raises AccessDenied.
    """
    if headers.get(b"origin") in allowed:
        return
    foreign = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
    renamed = _may_be_browser(method, headers) and not _LOOPBACK.fullmatch(
        headers.get(b"host", b"")
    )
    if foreign or renamed or b"origin" in headers:
        raise AccessDenied("Requests of web pages are refused in open mode.")


def _may_be_browser(method: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """True for what a browser sends to a host of any name, also if the page sets its User-Agent.

    A page can change Accept-Language but not leave it out. Some clients send it, too; so it counts
    for reads only: with any other method a browser sends the Origin. Node's fetch sends a
    Sec-Fetch-Mode but no Sec-Fetch-Site: browsers send both or neither, and no page can set them.
    """
    if headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
        return True
    if method not in _READS:
        return False
    is_node = b"sec-fetch-mode" in headers and b"sec-fetch-site" not in headers
    return b"referer" in headers or (b"accept-language" in headers and not is_node)
