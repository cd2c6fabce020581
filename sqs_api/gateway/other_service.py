"""OtherService: a service beside SQS on the same endpoint, to which the gateway hands requests that
are not SQS's."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from sqs_api.gateway.access import Sender
from sqs_api.protocol.reply import HeaderLines
from visibility.contract.actions import Action


class OtherRequest(NamedTuple):
    """A request that SQS refused; header names are in lower case."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    sender: Sender
    request_id: str


class OtherAnswer(NamedTuple):
    """An answer, and what is counted of it."""

    action: Action | None
    """None of an action that does not exist."""
    status: int
    kind: bytes
    """The content type."""
    body: bytes
    headers: HeaderLines
    refusal: str | None
    """The error code; None if the request was not refused."""


class OtherService(Protocol):
    """Belongs to the event loop's thread."""

    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        """The answer to come, which raises nothing; None if the request is not for this service."""
