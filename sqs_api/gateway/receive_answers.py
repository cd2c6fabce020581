"""ReceiveAnswers: messages on their way to a client, which come back if they do not reach it."""

from __future__ import annotations

from functools import partial

import msgspec

from auth.auth_errors import AuthError
from cluster.parts.split_queues import SplitQueues
from cluster.parts.split_receives import SplitReceive
from cluster.shards.router import Router
from sqs_api.gateway.access import Access
from sqs_api.gateway.exchange import JSON, Exchange
from sqs_api.gateway.payload import Payloads, receipts_of
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.request_memory import COUNTED_BYTES_MIN
from sqs_api.protocol.codec import content_type, encode_result
from sqs_api.protocol.json_codec import encode_json
from sqs_api.protocol.wire_names import CONTENT_TYPE_AWS_JSON
from visibility.contract.errors import QueueError, RequestThrottled
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, ReceiveMessage
from visibility.contract.outcomes import Answer, Deliveries
from visibility.contract.results import Result
from visibility.rules.acknowledge import ReturnMessages
from visibility.rules.at_most_once import RemoveTaken
from visibility.rules.handing_out import NO_ROOM
from visibility.rules.receive import wait_ms
from visibility.state.waiters import Ticket

_TOO_MANY_POLLS = "Too many requests wait for messages. Try again later."


class ReceiveAnswers:
    """Answers receives."""

    def __init__(
        self,
        access: Access,
        payloads: Payloads,
        counts: QueueCounts,
        router: Router,
        split: SplitQueues,
    ) -> None:
        self._access = access
        self._payloads = payloads
        self._counts = counts
        self._router = router
        self._split = split
        self.polls_not_waited = 0
        """Long polls that were answered at once, since too many wait."""

    def hand_out(self, exchange: Exchange, ticket: Ticket | None, deliveries: Deliveries) -> None:
        """Answer with received messages; those that cannot be written are given back."""
        gateway, operation, queue = exchange.gateway, exchange.operation, exchange.queue
        assert isinstance(operation, ReceiveMessage)
        assert queue is not None
        assert exchange.caller is not None
        if exchange.changes != self._access.changes:
            try:
                self._access.check_waited(
                    operation, exchange.caller, exchange.client, exchange.kept_headers or {}
                )
            except (QueueError, AuthError) as refusal:
                self._refuse(exchange, ticket, deliveries, refusal)
                return
        if not deliveries.leases:
            self._counts.received_none(queue.queue_id, is_limited=deliveries.is_limited)
            if exchange.does_not_wait:
                self.polls_not_waited += 1
                gateway.refuse(exchange, RequestThrottled(_TOO_MANY_POLLS))
                return
        admit = partial(self._access.check_opening, queue, exchange.caller, exchange.client)
        try:
            received = self._payloads.received(
                operation, queue, deliveries, admit, as_json=exchange.wire is JSON
            )
            if isinstance(received, bytes):
                kind, body = CONTENT_TYPE_AWS_JSON, received
            else:
                kind, body = encode_answer(exchange, received)
        except QueueError as refusal:  # such as: a key was disabled meanwhile
            self._refuse(exchange, ticket, deliveries, refusal)
            return
        if len(body) >= COUNTED_BYTES_MIN and not exchange.correct(len(body)):
            self._refuse(exchange, ticket, deliveries, RequestThrottled(NO_ROOM))
            return
        if deliveries.leases and deliveries.leases[0].is_taken:
            exchange.taken = len(deliveries.leases)
        written = gateway.write(exchange, 200, kind, body)
        if deliveries.leases and written:
            self._counts.received(queue.queue_id, deliveries)
            if exchange.taken:
                self._remove_taken(exchange, ticket, deliveries)
        elif deliveries.leases:
            self._give_back(exchange, ticket, deliveries)

    def _refuse(
        self,
        exchange: Exchange,
        ticket: Ticket | None,
        deliveries: Deliveries,
        refusal: QueueError | AuthError,
    ) -> None:
        """Answer with an error; what was received is given back."""
        if deliveries.leases:
            self._give_back(exchange, ticket, deliveries)
        exchange.gateway.refuse(exchange, refusal)

    def _give_back(self, exchange: Exchange, ticket: Ticket | None, deliveries: Deliveries) -> None:
        """Make messages visible again that could not be written to the client."""
        request = _about_received(ReturnMessages(), exchange, deliveries)
        if isinstance(ticket, SplitReceive):
            self._split.give_back(request, ticket)
        else:
            self._router.give_back(request, ticket)

    def _remove_taken(
        self, exchange: Exchange, ticket: Ticket | None, deliveries: Deliveries
    ) -> None:
        """Have messages removed that were written to the client, and are delivered at most once."""
        request = _about_received(RemoveTaken(), exchange, deliveries)
        if isinstance(ticket, SplitReceive):
            self._split.remove_taken(request, ticket)
        else:
            self._router.submit(request, lambda answer: None)

    def count_lost(self, exchange: Exchange) -> None:
        """Note that the connection broke after an answer with messages that do not come again."""
        assert exchange.queue is not None
        self._counts.lost(exchange.queue.queue_id, exchange.taken)


def without_wait(
    exchange: Exchange, operation: ReceiveMessage, queue: QueueDefinition
) -> ReceiveMessage:
    """The receive without its wait.

    Available messages are handed out; without any, `hand_out` throttles the client, which would
    repeat an empty receive at once.
    """
    exchange.does_not_wait = wait_ms(operation, queue.settings) > 0
    return msgspec.structs.replace(operation, wait_time_seconds=0)


def _about_received(operation: Operation, exchange: Exchange, deliveries: Deliveries) -> Request:
    """The request of a host about what one of its receives got."""
    assert exchange.queue is not None
    assert exchange.caller is not None
    receipts = receipts_of(deliveries)
    return Request(operation, exchange.queue, exchange.caller, exchange.request_id, receipts)


def encode_answer(exchange: Exchange, result: Answer) -> tuple[bytes, bytes]:
    """Content type and body."""
    if exchange.wire is JSON:
        return CONTENT_TYPE_AWS_JSON, encode_json(result)
    assert exchange.action is not None
    assert result is None or isinstance(result, Result)
    body = encode_result(exchange.action.name, exchange.wire, result, exchange.request_id)
    return content_type(exchange.wire), body
