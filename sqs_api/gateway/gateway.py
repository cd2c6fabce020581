"""Gateway: one request from its bytes to its answer.

authenticate -> decode -> check -> find the queue -> make its payload -> submit; back: encode ->
write. Synchronous on the way down, so `http/connection.py` needs no task for a message; the answer
arrives by a callback once the shard releases it. Actions on queues run in tasks of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

import structlog

from auth.auth_errors import AccessDenied, AuthError, MissingAuthenticationToken
from auth.caller import Caller
from cluster.clock import Clock, Entropy
from cluster.parts.split_queues import SplitQueues
from cluster.parts.split_receives import SplitReceive
from cluster.shards.router import Router
from cluster.tasks import start_task
from sqs_api.gateway.access import Access, Asker
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.client import Authenticate, Client, reached_at
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.other_services import Given, OtherService, OtherServices
from sqs_api.gateway.payload import PAYLOADS, MakePayload, Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.receive_answers import ReceiveAnswers, encode_answer, without_wait
from sqs_api.gateway.recheck_refusal import RecheckRefusal
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.protocol.codec import decode_request, detect_wire, encode_error
from sqs_api.protocol.reply import HeaderLines, date_line, reply
from sqs_api.settings.origins import AllowedOrigins
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import (
    InternalError,
    QueueError,
    RequestThrottled,
    ServiceUnavailable,
    without_frames,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.handing_out import NO_ROOM
from visibility.rules.receive import wait_ms, waiting_on
from visibility.state.waiters import Ticket


class Bounds(NamedTuple):
    """Limits on the use of this process by its clients."""

    memory: RequestMemory
    rates: Rates
    disk: DiskSpace | None
    """None: leaders refuse what finds no space."""
    waiting_polls_max: int


class Gateway:
    """Turns requests into answers."""

    def __init__(
        self,
        *,
        authenticate: Authenticate,
        queues: QueueActions,
        router: Router,
        split: SplitQueues,
        accounting: Accounting,
        clock: Clock,
        entropy: Entropy,
        public_url: str | None,
        payloads: Payloads,
        access: Access,
        bounds: Bounds,
        counts: QueueCounts,
        origins: AllowedOrigins,
        recheck_refusal: RecheckRefusal,
        services: Sequence[OtherService],
    ) -> None:
        """`services` are those beside SQS."""
        self._authenticate = authenticate
        self._queues = queues
        self._router = router
        self._split = split
        self._accounting = accounting
        self._monotonic_s = clock.monotonic_s
        self._wall_s = clock.wall_s
        self._public_url = public_url
        self._payloads = payloads
        self._waiting_polls_max = bounds.waiting_polls_max
        self._origins = origins or None
        """None without any, so that requests need not look for theirs."""
        self._access = access
        self._disk = bounds.disk
        self.memory = bounds.memory
        self._rates = bounds.rates if bounds.rates.is_needed else None
        self._log = structlog.get_logger("gateway")
        self._date = b""
        """The Date header's value of the second before `_next_second`."""
        self._next_second = 0
        self._tasks: set[asyncio.Task[None]] = set()
        bits = entropy.bits128()
        self._id_prefix = f"{bits >> 96:08x}-{bits >> 80 & 0xFFFF:04x}-4{bits >> 68 & 0xFFF:03x}-8"
        self._id_prefix += f"{bits >> 56 & 0xFFF:03x}-"
        self._ids = 0
        self.counts = counts
        self.receives = ReceiveAnswers(access, payloads, counts, router, split)
        self._recheck_refusal = recheck_refusal
        self._others = OtherServices(services, accounting)
        self.outstanding = 0
        """Requests that were begun and not answered yet."""

    def begin(
        self,
        client: Client,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
    ) -> Exchange:
        """Answer a request through `client`: at once if refused, else when its outcome is known.

        `target` is the raw path and query, `headers` maps lower-case names to values.
        """
        exchange = self._exchange(client, headers, body)
        given = (method, target, headers, body)
        try:
            self._dispatch(exchange, given)
        except (QueueError, AuthError) as refusal:
            if exchange.action is None:
                exchange.wire = detect_wire(headers)
            if self._recheck_refusal.may_lift(refusal):
                again = self._dispatch_again(refusal, exchange, given)
                start_task(self._tasks, self._finish(exchange, again))
            elif exchange.action is not None or not self._others.begin(exchange, given):
                self.refuse(exchange, refusal)
        except Exception:
            if exchange.action is None:
                exchange.wire = detect_wire(headers)
            self.fail(exchange)
        return exchange

    def refuse_unread(
        self, client: Client, headers: Mapping[bytes, bytes], refusal: QueueError
    ) -> None:
        """Answer a request whose body is not read."""
        exchange = self._exchange(client, headers, b"")
        exchange.wire = detect_wire(headers)
        self._begin_second(self._wall_s())
        self._write_refusal(exchange, refusal)

    def _begin_second(self, now_s: float) -> None:
        self._next_second, self._date = int(now_s) + 1, date_line(now_s)

    def _exchange(self, client: Client, headers: Mapping[bytes, bytes], body: bytes) -> Exchange:
        self.outstanding += 1
        self._ids += 1
        request_id = self._id_prefix + self._ids.to_bytes(6, "big").hex()
        exchange = Exchange(self, client, request_id, self._monotonic_s(), len(body))
        if self._origins is not None:
            exchange.letting = self._origins.headers_of_answer(headers)
        return exchange

    def cancel(self, exchange: Exchange) -> None:
        """End a long poll whose client hung up, or a receive that is to be decided again."""
        if exchange.ticket is not None and self._cancelled(exchange.ticket):
            exchange.ticket = None
            self.outstanding -= 1
            if exchange.held_bytes:
                exchange.give_back()  # a leader that was deposed had decided it

    def _cancelled(self, ticket: Ticket) -> bool:
        split = isinstance(ticket, SplitReceive)
        return self._split.cancel(ticket) if split else self._router.cancel(ticket)

    async def drain(self) -> None:
        """Wait until every request was answered."""
        # An event instead of looking would cost every request; a stop happens once.
        while self.outstanding > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    # -- down --------------------------------------------------------------------------------------

    def _dispatch(self, exchange: Exchange, given: Given) -> None:
        method, target, headers, body = given
        now_s = self._wall_s()
        if now_s >= self._next_second:
            self._begin_second(now_s)
        try:
            caller = self._authenticate(method, target, headers, body, now_s)
            other = self._others.by_target.get(headers.get(b"x-amz-target", b""))
            if other is not None:
                self._others.begin_signed(other, exchange, given, caller)
                return
            decoded = decode_request(method, target, headers, body)
        except MissingAuthenticationToken as unsigned:
            if not self._access.may_admit_unsigned:
                raise
            try:  # whether a queue's policy lets everyone make it
                decoded = decode_request(method, target, headers, body)
                ACTIONS[decoded.action].check(decoded.operation)
                caller = self._access.nobody_may(decoded.operation, exchange.client, headers)
            except (QueueError, AuthError):
                raise unsigned from None
        operation = decoded.operation
        exchange.wire = decoded.wire
        exchange.action = action = ACTIONS[decoded.action]
        exchange.operation = operation
        exchange.caller = caller
        action.check(operation)
        if self._rates is not None:
            self._rates.check_account(caller)
        disk = self._disk
        if disk is not None and action.takes_space and disk.refuses(action.request):
            raise disk.refuse()
        make_payload = PAYLOADS.get(action.request)
        if make_payload is None:
            self._access.admit(operation, Asker(caller, exchange.client, headers))
            answer = self._answer_queue_action(exchange, operation, caller, headers)
            start_task(self._tasks, self._finish(exchange, answer))
        else:
            self._submit(exchange, make_payload, operation, caller, headers)

    async def _dispatch_again(
        self, refusal: QueueError | AuthError, exchange: Exchange, given: Given
    ) -> None:
        """Dispatch a request that was refused once more, after the news."""
        self._access.denied -= isinstance(refusal, AccessDenied)
        await self._recheck_refusal.hear(refusal)
        self._dispatch(exchange, given)

    def _submit(
        self,
        exchange: Exchange,
        make_payload: MakePayload,
        operation: Operation,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Have a shard decide an action on the messages of a queue."""
        url: str = operation.queue_url  # type: ignore[attr-defined]
        room = exchange if type(operation) is ReceiveMessage else None
        queue = self._access.queue(operation, url, caller, exchange.client, headers, room)
        if room is not None:
            exchange.changes = self._access.changes
            if self.memory.is_short_for(caller) and self._is_led_elsewhere(queue):
                raise RequestThrottled(NO_ROOM)  # a leader elsewhere does not know
            if self.outstanding > self._waiting_polls_max:
                assert type(operation) is ReceiveMessage
                operation = exchange.operation = without_wait(exchange, operation, queue)
        exchange.queue = queue
        if self._rates is not None:
            self._rates.check_queue(operation, queue)
        payload = make_payload(self._payloads, operation, queue, caller, headers)
        if self._rates is not None:
            self._rates.check_groups(queue, payload)
        target_queue = None
        if queue.settings.redrive_policy is not None:
            target_queue = self._queues.dead_letter_queue(queue)
        request = Request(operation, queue, caller, exchange.request_id, payload, target_queue)
        router = self._split if queue.parts else self._router
        exchange.ticket = router.submit(request, exchange.on_answer, room)

    def _is_led_elsewhere(self, queue: QueueDefinition) -> bool:
        if queue.parts:
            return self._split.is_led_elsewhere(queue)
        return self._router.is_led_elsewhere(queue.shard)

    async def _finish(self, exchange: Exchange, work: Awaitable[None]) -> None:
        """Runs in its own task, which continues if the client hangs up."""
        try:
            await work
        except (QueueError, AuthError) as refusal:
            self.refuse(exchange, refusal)
        except Exception:
            self.fail(exchange)

    async def _answer_queue_action(
        self,
        exchange: Exchange,
        operation: Operation,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> None:
        base_url = self._public_url or reached_at(headers, exchange.client)
        answered = await self._queues.answer(operation, caller, base_url, exchange.request_id)
        self.succeed(exchange, answered)

    # -- up ----------------------------------------------------------------------------------------

    def succeed(self, exchange: Exchange, result: Answer) -> bool:
        """Answer with a result; False if the client did not get it."""
        return self.write(exchange, 200, *encode_answer(exchange, result))

    def go_on(self, exchange: Exchange, ticket: Ticket) -> None:
        """Take a request that began before its queue got other parts to these. A long poll waits
        there for the rest of its time."""
        request, operation = ticket.request, exchange.operation
        if type(operation) is ReceiveMessage:
            wait_s = wait_ms(operation, request.queue.settings) / 1000
            request = waiting_on(request, wait_s + exchange.started_s - self._monotonic_s())
        exchange.ticket = self._split.submit(request, exchange.on_answer, exchange)

    def refuse(self, exchange: Exchange, refusal: QueueError | AuthError) -> None:
        """Answer with an error."""
        if isinstance(refusal, ServiceUnavailable):
            action = "-" if exchange.action is None else exchange.action.name
            self._log.error("unavailable", request_id=exchange.request_id, action=action)
        self._write_refusal(exchange, refusal)

    def _write_refusal(self, exchange: Exchange, refusal: QueueError | AuthError) -> None:
        exchange.refusal = without_frames(refusal)
        error = encode_error(refusal, exchange.wire, exchange.request_id)
        self.write(exchange, error.status, error.content_type, error.body, error.headers)

    def fail(self, exchange: Exchange) -> None:
        """Answer after a bug of ours; call it in the exception's handler."""
        self._log.exception("request_failed", request_id=exchange.request_id)
        if not exchange.answered:
            self.refuse(exchange, InternalError())

    def write(
        self,
        exchange: Exchange,
        status: int,
        kind: bytes,
        body: bytes,
        headers: HeaderLines = (),
    ) -> bool:
        """Write an answer; False if the client did not get it."""
        self.outstanding -= 1
        exchange.answered = True
        taken_s = self._monotonic_s() - exchange.started_s
        self._accounting.answered(exchange, status, len(body), taken_s)
        if exchange.letting:
            headers += exchange.letting
        written = exchange.client.write_reply(
            reply(status, kind, exchange.request_id, self._date, body, headers)
        )
        if exchange.held_bytes:
            exchange.give_back()  # what the client has not read is held by its connection
        return written
