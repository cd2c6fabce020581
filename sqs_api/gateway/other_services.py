"""The services beside SQS at the same endpoint, as the gateway knows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from auth.caller import Caller
from sqs_api.gateway.access import Sender
from sqs_api.protocol.reply import HeaderLines
from visibility.contract.actions import Action


class OtherRequest(NamedTuple):
    """A request that is not SQS's; header names are in lower case."""

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes
    sender: Sender
    request_id: str
    caller: Caller | None = None
    """The signer, where the service's `targets` name it; else the service looks."""


class OtherAnswer(msgspec.Struct, frozen=True):
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
    is_denied: bool = False
    """It was refused to the caller, or for its signature: the audit log has it."""
    caller: Caller | None = None
    """Of a denied request, if its signature is known."""


OnOtherAnswer = Callable[[OtherAnswer], None]


class OtherService(Protocol):
    """Belongs to the event loop's thread."""

    targets: ClassVar[frozenset[bytes]] = frozenset()
    """Values of X-Amz-Target that are its own."""

    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        """The answer to come, which raises nothing; None if the request is not for this service."""

    def begin(self, request: OtherRequest, on_answer: OnOtherAnswer) -> None:
        """Answer a request to one of `targets`, now or later. Raises nothing."""
        assert not self.targets  # else it defines this method
