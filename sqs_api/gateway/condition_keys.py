"""Condition keys of callers and tags, by lower-case name. Pure.

Source: AWS, "AWS global condition context keys".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from auth.caller import Caller
from auth.identities import User
from visibility.contract import operations as op
from visibility.contract.operations import Operation

_HEADER_MAX = 1024
"""Bytes of a header that conditions read. A pattern takes up to its length times the header's, and
8 KiB of each hold the event loop for 35 ms. User agents have about 200 bytes."""
_OF_HEADERS = {"aws:useragent": b"user-agent", "aws:referer": b"referer"}


def said_of_caller(
    caller: Caller, user: User | None, tags: Mapping[str, str], now_s: float
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The condition keys of the caller, the time and a queue's tags, by lower-case name."""
    yield "aws:currenttime", (datetime.fromtimestamp(now_s, UTC).isoformat(),)
    yield "aws:epochtime", (str(int(now_s)),)
    yield "aws:requestedregion", (caller.region,)
    yield "aws:viaawsservice", ("false",)
    if caller.arn:
        kind = "Account" if caller.user is None else "User"
        yield "aws:principalarn", (caller.arn,)
        yield "aws:principalaccount", (caller.account,)
        yield "aws:principaltype", (kind,)
        yield "aws:userid", (caller.principal,)
        yield "aws:username", (caller.user or "",)
    else:
        yield "aws:principaltype", ("Anonymous",)
    for key, value in (user.tags if user is not None else {}).items():
        yield f"aws:principaltag/{key.lower()}", (value,)
    for key, value in tags.items():
        yield f"aws:resourcetag/{key.lower()}", (value,)


def said_of_headers(headers: Mapping[bytes, bytes]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The condition keys of a request's headers, by lower-case name."""
    for key, name in _OF_HEADERS.items():
        yield key, (headers.get(name, b"")[:_HEADER_MAX].decode("latin-1"),)


def seen_by_conditions(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The headers that `said_of_headers` reads."""
    return {name: headers[name][:_HEADER_MAX] for name in _OF_HEADERS.values() if name in headers}


def said_of_tags(operation: Operation | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The condition keys of tags in the request, by lower-case name."""
    tags: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()
    if isinstance(operation, op.CreateQueue):
        tags = operation.tags_on_create or {}
    elif isinstance(operation, op.TagQueue):
        tags = operation.tags or {}
    elif isinstance(operation, op.UntagQueue):
        keys = tuple(operation.tag_keys or ())
    for key, value in tags.items():
        yield f"aws:requesttag/{key.lower()}", (value,)
    yield "aws:tagkeys", tuple(tags) or keys
