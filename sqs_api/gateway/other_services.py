"""The services beside SQS at the same endpoint, and how the gateway hands requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from auth.caller import Caller
from cluster.tasks import start_task
from sqs_api.gateway.access import Sender
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.exchange import Exchange
from sqs_api.protocol.reply import HeaderLines
from visibility.contract.actions import Action

Given = tuple[bytes, bytes, Mapping[bytes, bytes], bytes]
"""Method, target, headers and body of a request."""


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
    """The caller of a denied request, if its signature is known."""


OnOtherAnswer = Callable[[OtherAnswer], None]


class OtherService(Protocol):
    """A service beside SQS."""

    targets: ClassVar[frozenset[bytes]] = frozenset()
    """Values of X-Amz-Target that are its own."""

    def answer(self, request: OtherRequest) -> Awaitable[OtherAnswer] | None:
        """The answer to come, which raises nothing; None if the request is not for this service."""

    def begin(self, request: OtherRequest, on_answer: OnOtherAnswer) -> None:
        """Answer a request to one of `targets`, now or later. Raises nothing."""
        assert not self.targets  # else it defines this method


class OtherServices:
    """All of them."""

    def __init__(self, services: Sequence[OtherService], accounting: Accounting) -> None:
        self.by_target = {target: each for each in services for target in each.targets}
        self._services = services
        self._accounting = accounting
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_signed(
        self, service: OtherService, exchange: Exchange, given: Given, caller: Caller
    ) -> None:
        """Hand a request with a verified caller to a service of `by_target`."""
        asked = OtherRequest(*given, exchange.client, exchange.request_id, caller)
        service.begin(asked, partial(self._write, exchange))

    def begin(self, exchange: Exchange, given: Given) -> bool:
        """Hand a request that is not SQS's to the service that it is for, if any."""
        request = OtherRequest(*given, exchange.client, exchange.request_id)
        for service in self._services:
            answer = service.answer(request)
            if answer is not None:
                start_task(self._tasks, self._answer(exchange, answer))
                return True
        return False

    async def _answer(self, exchange: Exchange, answer: Awaitable[OtherAnswer]) -> None:
        self._write(exchange, await answer)

    def _write(self, exchange: Exchange, written: OtherAnswer) -> None:
        if exchange.answered:
            return  # a bug behind the answer made another one
        exchange.action = written.action
        if written.refusal is not None:
            self._accounting.count_refusal(written.refusal)
            if written.is_denied:
                self._accounting.note_denied(exchange, written.caller, written.refusal)
        gateway = exchange.gateway
        gateway.write(exchange, written.status, written.kind, written.body, written.headers)
